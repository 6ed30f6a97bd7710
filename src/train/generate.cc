#include "train/generate.h"

#include <algorithm>
#include <cmath>

#include "core/rng.h"

namespace millrace {

int32_t sample_token(const float* logits, int64_t n, double temperature, double uniform) {
  const auto best = static_cast<int32_t>(std::max_element(logits, logits + n) - logits);
  if (!(temperature > 0)) return best;
  double sum = 0;
  for (int64_t v = 0; v < n; ++v) sum += std::exp((logits[v] - logits[best]) / temperature);
  double left = uniform * sum;
  for (int64_t v = 0; v < n; ++v) {
    left -= std::exp((logits[v] - logits[best]) / temperature);
    if (left < 0) return static_cast<int32_t>(v);
  }
  return best;
}

std::vector<int32_t> generate(Session& session, size_t plan, int64_t allowed,
                              std::vector<int32_t> tokens, const GenerateOptions& options) {
  RandomStream random(options.seed, RandomUse::generate);
  const int64_t window = session.type("prompt").numel();
  std::vector<int32_t> padded(static_cast<size_t>(window));
  const auto goal = tokens.size() + static_cast<size_t>(options.length);
  while (tokens.size() < goal) {
    // The last `window` tokens, left-aligned; causal attention ignores what stands after them.
    const size_t used = std::min(tokens.size(), static_cast<size_t>(window));
    std::fill(padded.begin(), padded.end(), 0);
    std::copy(tokens.end() - static_cast<std::ptrdiff_t>(used), tokens.end(), padded.begin());
    const auto row = static_cast<int32_t>(used) - 1;
    session.write<int32_t>("prompt", padded);
    session.write<int32_t>("prompt_row", std::span(&row, 1));
    session.run(plan);
    const auto logits = session.output(plan, "logits");
    tokens.push_back(sample_token(logits.data(),
                                  std::min(static_cast<int64_t>(logits.size()), allowed),
                                  options.temperature, random.uniform()));
  }
  return tokens;
}

}  // namespace millrace
