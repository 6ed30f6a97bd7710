#include "train/report.h"

#include <fmt/format.h>

#include "core/text.h"

namespace millrace {

std::string describe(const StepReport& r) {
  return fmt::format(
      "step={}/{} loss={:.4f} lr={:.2e} grad_norm={:.3f} tok/s={:.0f} useful={:.1f}% step={} "
      "wait={:.1f}% elapsed={} left={}",
      r.step, r.total, r.loss, r.learning_rate, r.grad_norm, r.tokens_per_second,
      100 * r.useful_share, human_seconds(r.step_seconds), 100 * r.input_wait_share,
      human_seconds(r.elapsed_seconds), human_seconds(r.remaining_seconds));
}

std::string describe(const EpochReport& r) {
  std::string text = fmt::format(
      "Epoch [{}/{}] Average Train Loss: {:.4f}\n"
      "  Epoch time: {:.1f}s | Throughput: {:.0f} samples/sec",
      r.epoch, r.epochs, r.loss, r.seconds, r.samples_per_second);
  const char* between = " | ";
  for (const auto& [name, share] : r.shares)
    if (share >= 0.005) {
      text += fmt::format("{}{} {:.0f} %", between, name, 100 * share);
      between = ", ";
    }
  return text;
}

Metrics metrics_of(const StepReport& r) {
  return {{"train/loss", r.loss},
          {"train/grad_norm", r.grad_norm},
          {"train/learning_rate", r.learning_rate},
          {"throughput/tokens_per_sec", r.tokens_per_second},
          {"throughput/useful_tokens_per_sec", r.tokens_per_second * r.useful_share},
          {"data/useful_share", r.useful_share},
          {"throughput/steps_per_sec", 1 / r.step_seconds},
          {"time/step", r.step_seconds}};
}

Metrics metrics_of(const EpochReport& r) {
  Metrics metrics{{"train/epoch_loss", r.loss},
                  {"train/epoch", static_cast<double>(r.epoch)},
                  {"time/epoch", r.seconds},
                  {"throughput/samples_per_sec", r.samples_per_second}};
  for (const auto& [owner, share] : r.shares) metrics["time/epoch_" + owner] = share;
  return metrics;
}

std::string describe_evaluation(int64_t step, const Metrics& metrics, bool best) {
  std::string text = fmt::format("step={} ", step);
  for (const auto& [name, value] : metrics) text += fmt::format("{}={:.4f} ", name, value);
  return text + (best ? "best=yes" : "best=no");
}

}  // namespace millrace
