// Is this loss out of line with the last ones?
#pragma once
#include <cstdint>
#include <deque>

namespace millrace {

struct LossHistory {
  std::deque<double> recent;
  int64_t spikes_in_a_row = 0;
};

inline constexpr int64_t kSpikeWindow = 64, kSpikeLeast = 16;

// Standard deviations of `loss` above the mean of the recent ones; 0 while there are too few to
// say. The deviation is taken as at least 1 % of the mean, so that a flat loss does not make every
// wiggle a spike. Then remembers the loss, but not one beyond `limit`: an outlier must not hide the
// next one. After kSpikeLeast of them in a row it is a new level, learned from the start.
double spike_sigma(LossHistory& history, double loss, double limit);

}  // namespace millrace
