// What an update will take, before it runs: every node at the ceiling of the device, and as near to
// it as profiles have seen its op.
#pragma once
#include <optional>
#include <span>
#include <vector>

#include "data/batches.h"
#include "doctor/machine_profile.h"
#include "train/program.h"

namespace millrace {

struct PredictedTime {
  double least = 0;                // seconds with every node at the ceiling
  std::optional<double> expected;  // as profiled; none: no profile was
  double unknown = 0;              // of the expected ones, those of ops that no profile has seen

  double best_known() const { return expected.value_or(least); }
  PredictedTime& add(const PredictedTime& other, double times);
};

PredictedTime predict(const Plan& plan, const PrecisionProfile& machine);

// How often each shape of a batch comes, by looking at some of an epoch.
std::vector<double> shape_shares(const Batches& batches);
// Of an update, `grad_accum` batches of these shapes. What the host does beside, and waiting for
// data, is not in it.
PredictedTime predict_update(const Programs& programs, int64_t grad_accum,
                             std::span<const double> shares, const PrecisionProfile& machine);

}  // namespace millrace
