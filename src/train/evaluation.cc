#include "train/evaluation.h"

#include <algorithm>
#include <cmath>

#include "data/sampler.h"

namespace millrace {

Evaluation::Evaluation(const Settings& settings, const TextData& data)
    : s_(settings),
      data_(data),
      begins_(sequential_begins(static_cast<int64_t>(data.validation.size()), settings.max_length,
                                settings.max_length - settings.eval_context,
                                settings.max_eval_batches * settings.batch_size)),
      tokens_(static_cast<size_t>(settings.batch_size * settings.max_length)),
      targets_(tokens_.size()) {}

std::optional<double> Evaluation::run(Session& session, size_t plan,
                                      const std::function<bool()>& stop) {
  Ledger inside;  // evaluation's own node times do not mix with training's
  const auto windows = static_cast<int64_t>(begins_.size());
  const float scale = 1.0f / static_cast<float>(s_.max_length);
  double sum = 0;
  int64_t scored = 0;
  for (int64_t first = 0; first < windows; first += s_.batch_size) {
    if (stop()) return std::nullopt;
    const int64_t count = std::min(s_.batch_size, windows - first);
    std::fill(tokens_.begin(), tokens_.end(), 0);
    std::fill(targets_.begin(), targets_.end(), -1);
    fill_batch(data_.validation,
               std::span(begins_).subspan(static_cast<size_t>(first), static_cast<size_t>(count)),
               s_.max_length, tokens_.data(), targets_.data());
    for (int64_t i = 0; i < count; ++i)
      if (first + i > 0)
        std::fill_n(targets_.begin() + static_cast<std::ptrdiff_t>(i * s_.max_length),
                    s_.eval_context, -1);
    scored += count * (s_.max_length - s_.eval_context) + (first == 0 ? s_.eval_context : 0);
    session.write<int32_t>("tokens", tokens_);
    session.write<int32_t>("targets", targets_);
    session.write<float>("loss_scale", std::span(&scale, 1));
    session.run(plan, &inside);
    sum += session.scalar_output(plan, "loss") * static_cast<double>(s_.max_length);
  }
  return scored > 0 ? sum / static_cast<double>(scored) : NAN;
}

}  // namespace millrace
