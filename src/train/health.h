// Is this loss out of line with the last ones?
#pragma once
#include <cstddef>
#include <deque>

namespace millrace {

inline constexpr size_t kSpikeWindow = 64, kSpikeLeast = 16;

// Standard deviations of `loss` above the mean of the recent ones; 0 while there are too few to
// say. The deviation is taken as at least 1 % of the mean, so that a flat loss does not make every
// wiggle a spike. Then remembers the loss: one beyond `limit` as if it stood at the limit, so that an
// outlier does not hide the next one and a new level is learned in time.
double spike_sigma(std::deque<double>& recent, double loss, double limit);

}  // namespace millrace
