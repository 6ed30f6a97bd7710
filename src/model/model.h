// A model family: its settings, its parameter table, and the graph it builds. One file per family
// in model/, one line in model_list.inc; nothing outside model/ knows a family by name.
#pragma once
#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "data/batch_shape.h"
#include "graph/builder.h"
#include "io/gguf.h"
#include "io/schema.h"
#include "model/external_config.h"

namespace millrace {

// One row of the parameter table.
struct Parameter {
  std::string name;  // "layers.0.attention.qkv.weight"
  Shape shape;
  enum class Init { normal, zeros, ones } init = Init::normal;
  double init_std = 0.02;
  bool decay = true;  // weight decay applies

  // The name(s) the Hugging Face ecosystem gives it; none: its own. Several: parts of `shape`'s
  // last dimension, each `part_widths` wide, or, without widths, all of it under each name.
  // `transposed`: stored there as [out, in].
  std::vector<std::string> external;
  std::vector<int64_t> part_widths;
  bool transposed = false;

  // Set by model/tuning.h. Not trained: no gradient, no moments.
  bool trained = true;
  bool adapter = false;  // half of a low-rank addition to a linear layer

  size_t parts() const { return std::max<size_t>(1, external.size()); }
  const std::string& external_name(size_t part) const {
    return external.empty() ? name : external[part];
  }
};

// Longest sequences, in tokens: training.max_length and, of pairs that stand apart,
// training.max_source_length.
struct MaxLengths {
  int64_t target = 0, source = 0;
  bool operator==(const MaxLengths&) const = default;
};

// Of a model: those of training, unless it was read from a config and has its own, which training
// must not exceed.
void resolve_lengths(Schema& schema, MaxLengths& field, MaxLengths lengths);

// What a model can read besides plain rows.
struct Takes {
  bool packed_rows = false;  // several sequences in a row
  bool pairs = false;        // source and target of a pair apart, and nothing but pairs
  bool open_words = false;   // of pairs, also the rare words of a source, to copy them
  bool states = false;       // vectors of numbers instead of tokens, and nothing but these
  StateParts parts = {};     // of these, once the model is resolved
  int64_t classes = 0;       // of these: one of so many for each part; 0: none
};

// A model as GGUF has it.
struct GgufForm {
  std::vector<GgufEntry> metadata;
  // The table with the names, parts and layouts of that world.
  std::vector<Parameter> table;
  // Of queries and keys, by those names: their heads. Rotary positions turn neighbours there, and
  // elements half a head apart here.
  std::map<std::string, int64_t> rotary_heads;
  std::vector<GgufTensor> more;  // that are no parameters
};

class Model {
 public:
  virtual ~Model() = default;
  // Declares the family's keys under "model.".
  virtual void declare(Schema& schema) = 0;
  // Fills what was `auto` and refuses sizes that contradict each other. `vocab_size` comes from the
  // tokenizer; of states it is the numbers that each has.
  virtual void resolve(Schema& schema, int64_t vocab_size, MaxLengths lengths) = 0;
  virtual std::vector<Parameter> parameters() const = 0;
  // Declares inputs "tokens" and "targets" (i32 [B,T], -1: not scored); returns the loss:
  // Builder::loss_scale() times the sum of the targets' negative log-likelihoods. For packed rows
  // also "segments" and "positions" (i32 [B,T]): which sequence of its row a token is of, and where
  // in it; tokens of different sequences do not see each other. Of pairs, tokens and targets are
  // the target's, and there are "source" (i32 [B,S]) and "source_lengths" (i32 [B]). With open
  // words also "source_open" (i32 [B,S]); targets from vocab_size() on are words of it. Of states,
  // in the place of tokens and targets: "states" and "state_targets" (f32 [B,T,C]), "parts" (i32
  // [B,T]: context, previous, current) and "weights" (f32 [B,T,1], 0: not scored); the loss is the
  // sum over the states that are scored, and in evaluation the output "predicted" [B,T,C] is what
  // the model takes the targets to be. With classes also "class_targets" (i32 [B,T], -1: none) and
  // "class_scale" ([]): the loss has, times these two scales, the sum of their negative
  // log-likelihoods too, which in evaluation is also the output "class_loss", and "class_logits"
  // [B,T,classes] is an output.
  virtual Value build_loss(Builder& b, BatchShape shape) const = 0;
  // The graph of generation: T new tokens behind those that a key/value cache of `capacity` tokens
  // holds. Declares prompt_leaf(T) (i32 [B,T]), "position" (i32 [B], tokens in the cache) and
  // "prompt_row" (i32 [B], the rows of [B*T] to predict after); returns their logits [B, V]. The
  // caches are leaves of kind cache, the same in every plan of one batch and capacity. With several
  // rows to a source (shape.beams) also kBeamHistory and kBeamParents: what a model keeps by place
  // is found through the first, what it keeps as a state is taken from the second's row.
  virtual Value build_decode(Builder& b, BatchShape shape, int64_t capacity) const = 0;
  // False: logits alone are not what it predicts, and training writes no sample text. One that
  // copies words has the outputs "gate" [B] and "attention" [B,S] too, with which search and
  // drawing make the whole.
  virtual bool logits_are_all() const { return true; }
  virtual Takes takes() const { return {}; }
  // Of pairs: the longest source as the family's own keys have it; 0: they do not say.
  virtual int64_t own_source_length() const { return 0; }
  // Keeps what build_decode, of the same rows and capacity, needs of the sources in leaves of kind
  // cache. Of pairs: declares the inputs "source" [sources,S] and "source_lengths". Of prompts,
  // which a text goes on from: the next T tokens of each, prompt_leaf(T) [sources,T] and "position"
  // [sources], for all of its rows; with several rows to a source in the first of them.
  virtual void build_encode(Builder& b, BatchShape shape, int64_t capacity) const {
    (void)shape, (void)capacity;
    b.fail("this model has no sources");
  }
  virtual int64_t vocab_size() const = 0;      // of states: the numbers that each has
  virtual MaxLengths max_lengths() const = 0;  // that it has positions for
  // The model as a Hugging Face style config.json, and back: false when the config is of another
  // family, Error with the field when it is of this one but asks for what the family cannot do.
  // What was read are the defaults that declare() then binds.
  virtual std::string external_config() const = 0;
  virtual bool read_external_config(const ExternalConfig& config) = 0;
  // Patterns (matches_name) of tensors that files elsewhere have beside the parameters and that
  // follow from the config.
  virtual std::vector<std::string> external_constants() const { return {}; }
  // Nothing: llama.cpp has no such model.
  virtual std::optional<GgufForm> gguf_form() const { return std::nullopt; }
};

// Refuses a config: what is wrong is also what was got.
[[noreturn]] void refuse_sizes(Schema& schema, const char* key, const std::string& what,
                               const std::string& expected, const std::string& remedy);
// What `auto` stands for.
void set_auto(Schema& schema, const char* key, int64_t& field, int64_t value, const char* why);
// The vocabulary: `auto`, or no smaller than the tokenizer's.
void resolve_vocabulary(Schema& schema, int64_t& field, int64_t tokenizer_size);

// A config.json for a shape without a name elsewhere, so that no other program takes it for a model
// it knows: the family's keys and values; and the way back, false when it is another's.
std::string own_config_text(std::string_view family, const Model& model,
                            const nlohmann::ordered_json& keys);
bool read_own_config(std::string_view family, Model& model, const ExternalConfig& config);

// Inputs of a decode graph with several rows to a source, as in a beam search: i32 [B,capacity], by
// place the row whose cache holds it; i32 [B], the row that each goes on from.
inline constexpr const char *kBeamHistory = "beam_history", *kBeamParents = "beam_parents";
// Of the encode graph, for a model whose rows begin with a state of their source: i32 [B], the
// source of a row.
inline constexpr const char* kBeamSources = "beam_sources";
// Of a search with a model that copies: i32 [sources,S], the columns of copy_mix for the words of
// the sources.
inline constexpr const char* kBeamColumns = "beam_columns";

// The input of the new tokens: plans of different T share a session, so each has its own.
inline std::string prompt_leaf(int64_t length) { return fmt::format("prompt{}", length); }

std::vector<std::string> model_families();
std::unique_ptr<Model> make_model(std::string_view family);
// The model of a config.json, and which family it is of; `name` is the file's, for messages.
std::unique_ptr<Model> model_from_external_config(std::string_view json, const std::string& name,
                                                  std::string* family_found = nullptr);

}  // namespace millrace
