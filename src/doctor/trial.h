// One way to run a config, tried for real: `millrace profile` in a process of its own, so that
// nothing of it is left behind. What does not fit, fails or hangs is an outcome like any other.
#pragma once
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/file.h"

namespace millrace {

struct Measured {
  enum class Outcome { measured, does_not_fit, failed, timed_out };
  Outcome outcome = Outcome::measured;
  std::string reason;            // of any other outcome, a sentence
  double tokens_per_second = 0;  // useful ones, with validation and checkpoints at their pace
  double update_seconds = 0;     // one update, without those
  double more_seconds = 0;       // that one more update takes such a run, checkpoints included
  std::optional<double> noise;   // between parts of this measurement, as a share; where known
  double loss = 0;               // mean of the measured updates; NaN: one was not finite
  double loss_error = 0;         // how far this mean may be off: what the updates differ by
  int64_t peak_bytes = 0;        // of the device, or resident on the host
  int64_t updates = 0;           // that were measured
  double seconds = 0;            // of all of it, with starting the process
  nlohmann::ordered_json profile;

  bool is_measured() const { return outcome == Outcome::measured; }
};
std::string_view outcome_name(Measured::Outcome outcome);

// What `millrace profile --json` printed. An outcome of its own where that cannot be read.
void take_report(std::string_view report, Measured& measured);

// How trials are run: settings changed as on a command line, updates to measure.
using TryOut = std::function<Measured(const std::vector<std::string>& overrides, int64_t updates)>;

// Tries a config by running this program again; what the trials write lies under `folder`.
struct TrialRunner {
  std::vector<std::string> request;  // config and overrides, as on a command line
  fs::path folder;
  double limit_seconds = 600;   // of one
  bool keeps_timeline = false;  // timeline.svg stays in the folder of the trial

  Measured operator()(const std::vector<std::string>& overrides, int64_t updates) const;
};

// By how much the second fastest of some runs of the same thing is slower than the fastest, as a
// share.
double gap_of(const std::vector<Measured>& runs);
// How much undisturbed runs of the same thing differ, as a share: the usual gap of such groups, and
// no less than the parts of a run differ by.
double spread_of(const std::vector<std::vector<Measured>>& groups);

// Several measurements of one thing and of another, taken in turns: how many times as fast the
// second is, and how sure that is. The fastest of each counts: what others do on the machine makes
// runs slower, never faster.
struct Gain {
  double ratio = 1;
  double noise = 0;  // as a share of the ratio: another such comparison agrees within it, 19 of 20
  double least() const { return ratio * (1 - noise); }
  double most() const { return ratio * (1 + noise); }
  bool is_faster() const { return least() > 1 + kLeast; }
  bool is_slower() const { return most() < 1 - kLeast; }
  // It may be none, and it may be one that counts.
  bool is_unclear() const { return !is_faster() && most() > 1 + kCounts; }
  static constexpr double kLeast = 0.01;   // less than that is not worth a change
  static constexpr double kCounts = 0.05;  // a finding of that size is not low any more
};
Gain gain_of(const std::vector<Measured>& before, const std::vector<Measured>& after,
             double spread);

// The mean loss of the same number of updates, as it is and changed.
struct LossChange {
  double before = 0, after = 0;
  double spread = 0;  // two such means are apart by less, 19 of 20, if nothing is different
  bool is_higher() const;
};
LossChange loss_change(const Measured& before, const Measured& after);

}  // namespace millrace
