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
  // "faster", "faster, higher loss", "no effect", "not told from noise", "slower",
  // "does not fit: …"
  std::string verdict;

  bool is_measured() const { return runs.front().is_measured(); }
  int64_t peak_bytes() const;  // the least: a run that measures the machine, too, takes more
};
constexpr std::string_view kFaster = "faster", kHigherLoss = "faster, higher loss",
                           kNoEffect = "no effect", kUnclear = "not told from noise",
                           kSlower = "slower";
std::string_view verdict_of(const Gain& gain);

struct SearchOptions {
  double budget_seconds = 300;
  double spent_seconds = 0;  // of it, before the search
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

// How many updates a measurement has: as many as take `trial_seconds`, but no more than let `runs`
// of them end within `budget_seconds`, by a look at a few of them. Where not even as many as the
// look has do, these.
int64_t updates_of_trial(const Measured& look, double trial_seconds, double runs,
                         double budget_seconds);
// What a search runs at least, for one remedy: it is tried, and all is confirmed.
constexpr int kTrying = 3, kConfirming = 4;

// `first` is a measurement of the config as it is, over `updates`.
SearchResult search(const TryOut& try_out, Measured first, int64_t updates,
                    std::vector<Remedy> remedies, const SearchOptions& options);

}  // namespace millrace
