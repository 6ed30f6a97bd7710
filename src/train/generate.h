// Text from a model: one token after another, each drawn from the distribution after the last
// window.
#pragma once
#include <cstdint>
#include <functional>
#include <vector>

#include "exec/session.h"

namespace millrace {

struct GenerateOptions {
  int64_t length = 300;
  double temperature = 0.8;  // 0: the likeliest token
  uint64_t seed = 1;
};

// `session` runs plan `plan`, a logits graph of batch one; `allowed` tokens of the vocabulary can
// be drawn (the tokenizer may have fewer than the model).
std::vector<int32_t> generate(Session& session, size_t plan, int64_t allowed,
                              std::vector<int32_t> prompt, const GenerateOptions& options);

// Draws from logits[0, n) at a temperature, with a uniform number in [0, 1).
int32_t sample_token(const float* logits, int64_t n, double temperature, double uniform);

}  // namespace millrace
