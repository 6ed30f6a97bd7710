// Tries remedies for real, one by one and then together, and keeps what is faster: measurements in
// turns with the config as it is (machines drift), gains with the noise of the repetitions, and at
// the end the whole against the original once more.
#pragma once
#include <optional>

#include "doctor/findings.h"
#include "doctor/trial.h"

namespace millrace {

struct Tried {
  Remedy remedy;
  std::vector<Measured> runs;  // of one that was measured, else the one that was not
  Gain gain;
  bool kept = false;
  std::string verdict;  // "faster", "no effect", "slower", "does not fit: …"
};

struct SearchOptions {
  double budget_seconds = 300;
  double trial_seconds = 3;  // of measured updates
  std::function<void(const std::string&)> say = [](const std::string&) {};
};

struct SearchResult {
  int64_t updates = 0;             // of a trial
  std::vector<Measured> original;  // of the config as it is, all of them
  std::vector<Tried> alone, together;
  std::vector<std::string> left_out;   // what was not tried, and why
  std::vector<std::string> overrides;  // of what was kept
  std::optional<Gain> confirmed;       // the whole against the original, once more
  bool is_faster() const { return confirmed && confirmed->is_faster(); }
  std::vector<Measured> final_runs;  // of the whole, that say so
  double seconds = 0;
};

// How many updates a trial measures, of a look at a few of them.
int64_t updates_of_trial(const Measured& look, double trial_seconds);

// `first` is a measurement of the config as it is, over `updates`.
SearchResult search(const TryOut& try_out, Measured first, int64_t updates,
                    std::vector<Remedy> remedies, const SearchOptions& options);

}  // namespace millrace
