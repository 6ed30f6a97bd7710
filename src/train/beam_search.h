// Beam search: the likeliest targets of many sources at once, or the likeliest texts that go on
// from many prompts. All hypotheses of all sources are rows of one plan; a source is encoded, or a
// prompt read, once for all of its hypotheses.
//
// The best `beam` beginnings of each source grow by a token a step. One that ends among the best of
// its step is finished; a source is done when `beam` of its hypotheses are. The best is the one
// with the largest log-probability over length^length_penalty.
#pragma once
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "data/tokenizer.h"
#include "exec/session.h"
#include "train/program.h"

namespace millrace {

struct BeamOptions {
  int64_t beam = 4;
  double length_penalty = 1;
  int64_t no_repeat_ngram = 0;  // so many tokens in a row do not come twice; 0: they may
  int64_t min_length = 0;       // tokens before the end
};

// What the tokenizer has to say about targets.
struct TargetTokens {
  int32_t start = 0, end = 0;
  int32_t unknown = -1;  // what a copied word is to the model that copies, and is never written
  int64_t count = 0;     // tokens that can be drawn; the model may have more
};

// A source, or the prompt of a model that takes none. For a model that copies also the same tokens
// with rare words by ids behind the vocabulary, which hypotheses then may hold.
struct BeamSource {
  std::vector<int32_t> ids, open = {};
};
// Of a text, with its end token; `rare` gets the words that ids behind the vocabulary stand for.
BeamSource source_to_copy(const Tokenizer& tokenizer, std::string_view text, const TextPlace& place,
                          std::vector<std::string>& rare);

struct Hypothesis {
  std::vector<int32_t> tokens;  // without start and end
  double score = 0;             // by which it was chosen
};

class BeamSearch {
 public:
  // `first_plan` of the session and the one behind it are BeamPlans of this room and beam.
  BeamSearch(const Model& model, Session& session, size_t first_plan, const BeamRoom& room,
             const BeamOptions& options)
      : copies_(model.takes().open_words),
        prompts_(!model.takes().pairs),
        positions_(model.max_lengths().target),
        capacity_(beam_capacity(model, room)),
        vocabulary_(static_cast<int32_t>(model.vocab_size())),
        session_(session),
        encode_(first_plan),
        decode_(first_plan + 1),
        room_(room),
        options_(options) {}
  const BeamRoom& room() const { return room_; }

  // The best hypothesis of each, with the weights the session holds.
  std::vector<Hypothesis> search(std::span<const BeamSource> sources, const TargetTokens& tokens);

 private:
  std::vector<int32_t> encode(std::span<const BeamSource> sources);  // returns their lengths
  // The prompts as far as they are kept; all but their last tokens are in the caches.
  std::vector<std::vector<int32_t>> read(std::span<const BeamSource> sources);
  bool copies_, prompts_;
  int64_t positions_, capacity_;
  int32_t vocabulary_;
  Session& session_;
  size_t encode_, decode_;
  BeamRoom room_;
  BeamOptions options_;
};

// How the options of a search, "beam", "length-penalty", "no-repeat-ngram" and "min-tokens", are
// written by whoever asks for one: where one was said, and with another value.
struct BeamSpelling {
  std::function<std::string(const std::string& option)> where;
  std::function<std::string(const std::string& option, const std::string& value)> with;
};
// Refuses options that are none, or that contradict the model or each other: it has so many words,
// and a text at most so many tokens.
void check_beam(const BeamOptions& options, int64_t words, int64_t most_tokens,
                const BeamSpelling& spelling);

// Sources of a batch where nobody says: a GPU takes many for the time of few.
inline int64_t sources_at_once(const Backend& backend) { return backend.on_host() ? 64 : 256; }
// And in a search: of prompts, which stand in the caches of all hypotheses, fewer when they are
// long.
int64_t sources_at_once(const Backend& backend, const Model& model, int64_t beam);

// A beam search with a session of its own.
class BeamSession {
 public:
  BeamSession(const Model& model, const BeamRoom& room, const BeamOptions& options,
              const PassOptions& passes, Backend& backend);
  // Parameters are written into it, and refresh() called, before anything is searched.
  Session& session() { return session_; }
  void refresh() { session_.run(2); }
  BeamSearch& beam() { return beam_; }

 private:
  // Error (does_not_fit) when the machine has no room for it.
  Session open(const BeamRoom& room, const BeamOptions& options, Backend& backend) const;
  BeamPlans plans_;
  Plan refresh_;
  Session session_;
  BeamSearch beam_;
};

}  // namespace millrace
