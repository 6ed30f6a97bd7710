// A model family: its settings, its parameter table, and the graph it builds. One file per family
// in model/, one line in model_list.inc; nothing outside model/ knows a family by name.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "graph/builder.h"
#include "io/schema.h"

namespace millrace {

// One row of the parameter table.
struct Parameter {
  std::string name;  // "layers.0.attention.qkv.weight"
  Shape shape;
  enum class Init { normal, zeros, ones } init = Init::normal;
  double init_std = 0.02;
  bool decay = true;  // weight decay applies

  // The name(s) the Hugging Face ecosystem gives it. Several: parts of `shape`'s last dimension,
  // each `part_widths` wide. `transposed`: stored there as [out, in].
  std::vector<std::string> external;
  std::vector<int64_t> part_widths;
  bool transposed = false;
};

struct BatchShape {
  int64_t batch = 1;   // B
  int64_t length = 1;  // T
};

class Model {
 public:
  virtual ~Model() = default;
  // Declares the family's keys under "model.".
  virtual void declare(Schema& schema) = 0;
  // Fills what was `auto` and refuses sizes that contradict each other. `vocab_size` comes from the
  // tokenizer, `max_length` from training.max_length.
  virtual void resolve(Schema& schema, int64_t vocab_size, int64_t max_length) = 0;
  virtual std::vector<Parameter> parameters() const = 0;
  // Declares inputs "tokens", "targets" (i32 [B,T]) and "loss_scale" ([]); returns the loss:
  // loss_scale times the sum of the tokens' negative log-likelihoods.
  virtual Value build_loss(Builder& b, BatchShape shape) const = 0;
  // Declares "prompt" (i32 [B,T]) and "prompt_row" (i32 [B], the rows of [B*T] to predict after);
  // returns their logits [B, V].
  virtual Value build_logits(Builder& b, BatchShape shape) const = 0;
  virtual int64_t vocab_size() const = 0;
  // The model as a Hugging Face style config.json.
  virtual std::string external_config() const = 0;
};

std::vector<std::string> model_families();
std::unique_ptr<Model> make_model(std::string_view family);

}  // namespace millrace
