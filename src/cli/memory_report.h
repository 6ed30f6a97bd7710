// What `plan` and `train` say about cost and memory: totals, contributors, remedies.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "cli/load.h"
#include "train/program.h"

namespace millrace {

Cost update_cost(const Programs& programs, const Settings& settings);
// What the fixed order of sums costs; "" where that was not measured.
std::string order_text(const Plan& step);

// The most memory a run will take: on the host all of this process, that is as it stands, the
// arena, and the copy that checkpoints are written from; on a device the arena, context and
// libraries, where these were measured.
std::optional<int64_t> predicted_peak_bytes(const Programs& programs, const Model& model,
                                            const Backend& backend);
// What stands behind the arena in `plan` and at the end of `train`.
std::string predicted_text(std::optional<int64_t> predicted, const Backend& backend);
std::string measured_text(std::optional<int64_t> peak, std::optional<int64_t> predicted,
                          const Backend& backend);

// With changes to the config that were planned and found to fit, or to come near.
Error does_not_fit(const RunRequest& request, const LoadedRun& run, const Programs& programs,
                   int64_t limit, Backend& backend);
// Throws it where the programs take more than memory_room(): before anything is created.
void check_fit(const RunRequest& request, const LoadedRun& run, const Programs& programs,
               Backend& backend);

}  // namespace millrace
