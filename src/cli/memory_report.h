// What `plan` and `train` say about memory: totals, contributors, remedies.
#pragma once
#include <string>
#include <vector>

#include "cli/load.h"
#include "train/program.h"

namespace millrace {

Cost update_cost(const Programs& programs, const Settings& settings);

// This process as it stands, the arena, and the copy that checkpoints are written from.
int64_t predicted_process_bytes(const Programs& programs, const Model& model);

struct Contributor {
  std::string what;
  int64_t bytes;
};
// What is alive at the peak of the step, largest first.
std::vector<Contributor> contributors(const Programs& programs);

// Changes to the config that were planned and found to fit, as "a.b=c  (needs …)".
std::vector<std::string> remedies(const RunRequest& request, const LoadedRun& run, int64_t limit,
                                  Backend& backend);

Error does_not_fit(const RunRequest& request, const LoadedRun& run, const Programs& programs,
                   int64_t limit, Backend& backend);

}  // namespace millrace
