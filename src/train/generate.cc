#include "train/generate.h"

#include <algorithm>
#include <cmath>

#include "core/clock.h"
#include "core/rng.h"
#include "train/program.h"

namespace millrace {

int32_t sample_token(std::span<const float> logits, const GenerateOptions& options,
                     double uniform) {
  const auto best =
      static_cast<size_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
  if (!(options.temperature > 0)) return static_cast<int32_t>(best);
  const double top = logits[best];
  std::vector<double> weight(logits.size());
  for (size_t v = 0; v < logits.size(); ++v)
    weight[v] = std::exp((static_cast<double>(logits[v]) - top) / options.temperature);
  std::vector<size_t> order(logits.size());  // of the tokens that can be drawn
  for (size_t v = 0; v < order.size(); ++v) order[v] = v;
  auto likelier = [&](size_t a, size_t b) {
    return weight[a] != weight[b] ? weight[a] > weight[b] : a < b;
  };
  if (const auto k = static_cast<size_t>(options.top_k); options.top_k > 0 && k < order.size()) {
    std::nth_element(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(k), order.end(),
                     likelier);
    order.resize(k);
  }
  auto sum_of = [&] {
    double sum = 0;
    for (size_t v : order) sum += weight[v];
    return sum;
  };
  if (options.top_p < 1) {
    std::sort(order.begin(), order.end(), likelier);
    const double wanted = options.top_p * sum_of();
    double sum = 0;
    size_t kept = 0;
    while (kept < order.size() && (kept == 0 || sum < wanted)) sum += weight[order[kept++]];
    order.resize(kept);
  }
  std::sort(order.begin(), order.end());
  double left = uniform * sum_of();
  for (size_t v : order) {
    left -= weight[v];
    if (left < 0) return static_cast<int32_t>(v);
  }
  return static_cast<int32_t>(best);  // rounding used up the last weight
}

Generated generate(Session& session, const GeneratePlans& plans, int64_t allowed,
                   std::vector<int32_t> prompt, const GenerateOptions& options,
                   const std::function<bool(int32_t)>& on_token, std::vector<int32_t> open) {
  MR_CHECK(!prompt.empty(), "an empty prompt");
  const auto chunk = static_cast<size_t>(prefill_chunk(plans.capacity));
  RandomStream random(options.seed, RandomUse::generate, options.number);
  Generated g;
  const bool pairs = plans.max_source > 0, copies = !open.empty();
  if (pairs) {
    const int64_t start = now_ns();
    prompt.resize(std::min(prompt.size(), static_cast<size_t>(plans.max_source)));
    const auto length = static_cast<int32_t>(prompt.size());
    g.prefilled = length;
    prompt.resize(static_cast<size_t>(plans.max_source));
    session.write_input<int32_t>(plans.prefill, "source", prompt);
    session.write_input<int32_t>(plans.prefill, "source_lengths", std::span(&length, 1));
    session.run(plans.prefill);
    if (copies) {
      open.resize(static_cast<size_t>(length));
      open.resize(static_cast<size_t>(plans.max_source), -1);
      session.write_input<int32_t>(plans.decode, kBeamColumns, open);
    }
    g.prefill_seconds = seconds_since(start);
    prompt = {plans.start_id};
  }
  g.tokens = std::move(prompt);
  std::vector<int32_t> padded(chunk);
  size_t from = 0, cached = 0;  // the cache holds tokens [from, from + cached)
  // Puts tokens behind those in the cache; afterwards the logits are those behind the last.
  auto run = [&](size_t plan, std::span<const int32_t> tokens, size_t count) {
    const auto position = static_cast<int32_t>(cached), row = static_cast<int32_t>(count) - 1;
    session.write_input<int32_t>(plan, prompt_leaf(std::ssize(tokens)), tokens);
    session.write_input<int32_t>(plan, "position", std::span(&position, 1));
    session.write_input<int32_t>(plan, "prompt_row", std::span(&row, 1));
    session.run(plan);
    cached += count;
  };
  for (int64_t i = 0; i < options.max_tokens; ++i) {
    if (pairs && std::ssize(g.tokens) > plans.capacity) break;
    const auto seen = std::ssize(g.tokens) - static_cast<int64_t>(from);
    if (const int64_t kept = prompt_kept(seen, plans.capacity); kept < seen) {
      from += static_cast<size_t>(seen - kept);
      cached = 0;
    }
    const int64_t start = now_ns();
    size_t plan = plans.decode;
    if (const auto waiting = std::span<const int32_t>(g.tokens).subspan(from + cached);
        waiting.size() == 1) {
      // A rare word is unknown to the model that copied it.
      const int32_t token = copies && waiting[0] >= allowed ? plans.unknown_id : waiting[0];
      run(plans.decode, std::span(&token, 1), 1);
      g.decode_seconds += seconds_since(start);
      ++g.decoded;
    } else {
      plan = plans.prefill;
      for (size_t at = 0; at < waiting.size(); at += chunk) {
        const auto part = waiting.subspan(at, std::min(chunk, waiting.size() - at));
        // What fills up the last chunk stands behind the tokens, where nobody sees it.
        std::fill(std::copy(part.begin(), part.end(), padded.begin()), padded.end(), 0);
        run(plans.prefill, padded, part.size());
      }
      g.prefill_seconds += seconds_since(start);
      g.prefilled += std::ssize(waiting);
    }
    auto logits = session.output(plan, copies ? "probabilities" : "logits");
    if (std::ssize(logits) > allowed && !copies) logits.resize(static_cast<size_t>(allowed));
    for (float logit : logits)
      if (!std::isfinite(logit))
        throw Error({.code = ErrorCode::failure,
                     .what = fmt::format("the model's {} are not finite",
                                         copies ? "probabilities" : "logits"),
                     .where = fmt::format("behind token {}", g.tokens.size()),
                     .expected = "finite numbers",
                     .got = fmt::format("{}", logit),
                     .remedy = "weights of a model that did not diverge"});
    if (copies) {
      for (float& p : logits) p = std::log(p);
      logits[static_cast<size_t>(plans.unknown_id)] = -INFINITY;
    }
    g.tokens.push_back(sample_token(logits, options, random.uniform()));
    if (on_token && !on_token(g.tokens.back())) break;
  }
  if (pairs) g.tokens.erase(g.tokens.begin());
  return g;
}

}  // namespace millrace
