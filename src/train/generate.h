// Text from a model: the prompt goes into the key/value cache by chunks, then token after token,
// each drawn from the distribution after the last.
#pragma once
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "exec/session.h"

namespace millrace {

struct GenerateOptions {
  int64_t max_tokens = 300;
  double temperature = 0.8;  // 0: the likeliest token
  int64_t top_k = 0;         // only the k likeliest tokens; 0: all
  double top_p = 1;          // only the likeliest tokens that together have this probability
  uint64_t seed = 1;
  uint64_t number = 0;  // of the text among those of one seed: each is drawn by its own
};

struct Generated {
  std::vector<int32_t> tokens;  // the prompt and what follows it
  int64_t prefilled = 0, decoded = 0;
  double prefill_seconds = 0, decode_seconds = 0;  // of the two plans
};

// Where in a session DecodePlans stand, and the tokens their cache holds. For a model that takes
// pairs: the longest source, and what a target begins with; for one that copies words: what a
// copied one is to it, which is never written.
struct GeneratePlans {
  size_t prefill, decode;
  int64_t capacity;
  int64_t max_source = 0;
  int32_t start_id = -1, unknown_id = -1;
};

// `allowed` tokens of the vocabulary can be drawn (the tokenizer may have fewer than the model).
// `on_token` sees each new token as soon as it is drawn; false ends the text there.
//
// A text that outgrows the cache goes on with its newer half: those tokens are put in anew from
// position 0, so that the model sees between half the capacity and all of it. A prompt that is
// longer than the cache is cut the same way. The prompt must not be empty.
//
// For a model that takes pairs the prompt is the source, and the tokens are those of a target,
// without its start; it ends where the cache does. One that copies words takes the source also with
// rare words by ids behind the vocabulary, `open`, which its tokens then may be.
Generated generate(Session& session, const GeneratePlans& plans, int64_t allowed,
                   std::vector<int32_t> prompt, const GenerateOptions& options,
                   const std::function<bool(int32_t)>& on_token = {},
                   std::vector<int32_t> open = {});

// Draws a token with a uniform number in [0, 1): temperature first, then the top_k likeliest of
// what is there, then top_p of what is left. Of equally likely tokens the one with the lower id
// counts as likelier. Of the logits at least one is finite, and the others may be minus infinity:
// such tokens are not drawn.
int32_t sample_token(std::span<const float> logits, const GenerateOptions& options, double uniform);

}  // namespace millrace
