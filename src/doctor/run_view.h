// The picture of `millrace watch`: a pure function of what a run folder tells and of the terminal.
#pragma once
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "doctor/recorded_run.h"

namespace millrace {

struct ViewOptions {
  int columns = 100, rows = 40;
  bool colour = false;
  double now = 0;  // seconds since 1970
};

// At most `rows` lines of at most `columns` columns.
std::vector<std::string> run_view(const RecordedRun& run, const ViewOptions& options);
nlohmann::ordered_json run_json(const RecordedRun& run);

// Where the time of an update goes, in seconds by ledger owner, over train[first..]: each window
// counts by its updates.
struct TimeBudget {
  std::array<double, kOwners> seconds{};
  double total = 0;              // of an update
  double tokens_per_second = 0;  // of the same windows
  int64_t updates = 0, windows = 0;
};
TimeBudget time_budget(const RecordedRun& run, size_t first);

}  // namespace millrace
