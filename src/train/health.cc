#include "train/health.h"

#include <algorithm>
#include <cmath>

namespace millrace {

double spike_sigma(std::deque<double>& recent, double loss, double limit) {
  if (!std::isfinite(loss)) return 0;
  double sigma = 0;
  if (recent.size() >= kSpikeLeast) {
    double mean = 0, variance = 0;
    const auto n = static_cast<double>(recent.size());
    for (const double v : recent) mean += v / n;
    for (const double v : recent) variance += (v - mean) * (v - mean) / n;
    const double deviation = std::max({std::sqrt(variance), 0.01 * std::fabs(mean), 1e-12});
    sigma = (loss - mean) / deviation;
    if (limit > 0 && sigma > limit) loss = mean + limit * deviation;
  }
  recent.push_back(loss);
  if (recent.size() > kSpikeWindow) recent.pop_front();
  return sigma;
}

}  // namespace millrace
