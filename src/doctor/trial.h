// One way to run a config, tried for real: `millrace profile` in a process of its own, so that
// nothing of it is left behind. What does not fit, fails or hangs is an outcome like any other.
#pragma once
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "core/file.h"

namespace millrace {

struct Measured {
  enum class Outcome { measured, does_not_fit, failed, timed_out };
  Outcome outcome = Outcome::measured;
  std::string reason;            // of any other outcome, a sentence
  double tokens_per_second = 0;  // useful ones, with validation and checkpoints at their pace
  double update_seconds = 0;     // one update, without those
  double noise = 0;              // between parts of this measurement, as a share
  double loss = 0;               // mean of the measured updates
  int64_t peak_bytes = 0;        // of the device, or resident on the host
  nlohmann::ordered_json profile;

  bool is_measured() const { return outcome == Outcome::measured; }
};
std::string_view outcome_name(Measured::Outcome outcome);

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
  bool is_faster() const { return ratio - 1 > noise + kLeast; }
  bool is_slower() const { return 1 - ratio > noise + kLeast; }
  static constexpr double kLeast = 0.01;  // less than that is not worth a change
};
Gain gain_of(const std::vector<Measured>& before, const std::vector<Measured>& after,
             double spread);

}  // namespace millrace
