#include "train/health.h"

#include <algorithm>
#include <cmath>

namespace millrace {

double spike_sigma(LossHistory& history, double loss, double limit) {
  if (!std::isfinite(loss)) return 0;
  auto& recent = history.recent;
  double sigma = 0;
  if (std::ssize(recent) >= kSpikeLeast) {
    double mean = 0, variance = 0;
    const auto n = static_cast<double>(recent.size());
    for (const double v : recent) mean += v / n;
    for (const double v : recent) variance += (v - mean) * (v - mean) / n;
    sigma = (loss - mean) / std::max({std::sqrt(variance), 0.01 * std::fabs(mean), 1e-12});
  }
  if (limit > 0 && sigma > limit) {
    if (++history.spikes_in_a_row >= kSpikeLeast) history = {};
    return sigma;
  }
  history.spikes_in_a_row = 0;
  recent.push_back(loss);
  if (std::ssize(recent) > kSpikeWindow) recent.pop_front();
  return sigma;
}

}  // namespace millrace
