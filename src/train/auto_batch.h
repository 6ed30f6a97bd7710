// What `training.batch_size: auto` stands for.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "train/program.h"
#include "train/training_data.h"

namespace millrace {

// The batches it is chosen from, ascending. Without an effective batch: round numbers, two for
// every doubling (96, 128, 192, ...), since a percent more sequences is no gain and an odd number
// of rows is slower. With one: its divisors.
std::vector<int64_t> auto_batches(int64_t effective_batch);

// What a person gave up by naming no batch: an optimizer wants updates more than it wants large
// batches. Fewer than these are left to nobody who did not ask for it.
constexpr int64_t kUpdatesOfEpoch = 50, kUpdatesOfRun = 1000;

struct AutoBatch {
  int64_t batch = 1;
  std::string reason;  // why it is no larger one
};

// The largest that leaves enough updates and fits `limit` bytes with nothing computed twice; where
// not even the smallest does, the largest that fits with recomputation, as far as the settings
// allow it; and where nothing fits, the smallest. `data` is shaped for any batch: that of
// `settings`.
AutoBatch choose_batch(const Model& model, const Settings& settings, const TrainingData& data,
                       int64_t limit, Backend& backend);

}  // namespace millrace
