// The sequences of states that training reads from paths: windows that end with the states to be
// predicted, with as much of their path before them as there is room for.
#pragma once
#include <cstdint>
#include <vector>

#include "data/batch_shape.h"
#include "data/bucketing.h"
#include "data/dataset.h"

namespace millrace {

struct StateOptions {
  StateParts parts = {};
  int64_t max_length = 0;     // states of a sequence
  int64_t window_stride = 1;  // states between the ends of two windows of a path, from its end on
  bool rotate = false;  // in training each sequence is turned in the plane of its first two numbers
  bool skip_short = false;  // paths with too few states are passed over; else Error
};

// Sorted by length.
struct StateSample {
  int64_t begin = 0;  // point of the store
  int64_t states = 0;
};
struct StateSamples {
  std::vector<StateSample> samples;
  LengthHistogram places;                       // StateParts::places of their lengths
  int64_t paths = 0, short_paths = 0, cut = 0;  // cut: samples that lost a part of their context
};

// Error when no path is long enough, or one is not and none may be passed over.
StateSamples find_state_samples(const Dataset& data, SplitName split, const StateOptions& options);

}  // namespace millrace
