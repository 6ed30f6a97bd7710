// Two runs side by side: where the time of an update went, and what else differs.
#pragma once
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "doctor/recorded_run.h"
#include "doctor/run_view.h"

namespace millrace {

struct Difference {
  std::string name, a, b;
};

struct LossPair {
  int64_t step = 0;
  double a = kMissing, b = kMissing;
};

struct Comparison {
  TimeBudget a, b;
  // Two standard errors of the difference of the two means, from the spread of the windows' times
  // of an update; nothing where a run has fewer than three windows.
  std::optional<double> noise;
  std::vector<std::pair<Owner, double>> changes;  // seconds an update, b - a; largest first
  std::vector<LossPair> losses, validation;       // at the same updates
  std::vector<Difference> workload;               // what makes the times of two updates no match
  std::vector<Difference> config, machine;

  // Longer by more than this share of a's time, beyond the noise. False where the noise is unknown.
  bool is_regression(double share) const;
};

Comparison compare(const RecordedRun& a, const RecordedRun& b);
std::string comparison_text(const Comparison& comparison, const RecordedRun& a,
                            const RecordedRun& b, double max_regression, bool colour);
nlohmann::ordered_json comparison_json(const Comparison& comparison, const RecordedRun& a,
                                       const RecordedRun& b, double max_regression);

}  // namespace millrace
