// A training measured for some updates: where the time of an update goes, once it runs evenly, and
// what validation and checkpoints add at the pace the config has them.
#pragma once
#include <optional>
#include <span>
#include <vector>

#include "core/timeline.h"
#include "train/trainer.h"

namespace millrace {

struct ProfileOptions {
  int64_t updates = 40;
  int64_t warm_up = 3;    // before them: threads, caches and captured steps come to be
  int64_t pictured = 10;  // of them, the last ones: in the timeline
  int64_t tail = 4;       // behind them: what comes seldom comes once
  Ceiling ceiling = {};   // as it was measured before; measured where it is not known
};
// Enough for a device to have captured the step of most shapes.
int64_t warm_up_of(const Backend& backend, const Programs& programs);

// What comes now and then: validation, a checkpoint, a sample.
struct Occasion {
  double seconds = 0;        // what one costs the updates; a checkpoint is written beside them
  double every_updates = 0;  // as the config has it; 0: once, at the end
  double per_update() const { return every_updates > 0 ? seconds / every_updates : 0; }
};

struct Profile {
  ProfileOptions options;
  std::vector<double> update_seconds;  // of each measured update
  double seconds = 0;                  // of one, their mean
  double undisturbed = 0;  // of one, by the faster parts: others on the machine only make it slower
  std::optional<double> noise;  // what these parts differ by, as a share; few tell nothing
  double places_per_update = 0, useful_share = 1, flops_per_update = 0;
  Ledger ledger;  // of the measured updates
  Occasion validation, checkpoint, sample;
  double texts_share = 0;    // of validation's time
  bool saves_often = false;  // checkpoints are among the measured updates
  Ceiling ceiling;
  double mean_loss = 0;             // of the measured updates
  double loss_error = 0;            // of this mean, by how much updates next to each other differ
  bool ceiling_is_new = false;      // measured now
  double ceiling_seconds = 0;       // that this took
  int64_t peak_resident_bytes = 0;  // before it: of the training alone
  std::optional<double> watts;      // that the device drew meanwhile, where it tells
  std::string slowed;               // why it held its clock down meanwhile, where it did
  int64_t updates_of_run = 0;       // as the config has it
  double updates_per_epoch = 0;
  TrainResult result;

  // Of an update; occasions at their pace.
  double owner_seconds(Owner owner) const;
  std::vector<std::pair<const char*, const Occasion*>> occasions() const;  // that there are
  double seconds_with_occasions() const;
  double useful_tokens_per_second() const {  // with them, undisturbed
    return places_per_update * useful_share / (seconds_with_occasions() - seconds + undisturbed);
  }
};

// The mean time of an update where nothing disturbs it, and what parts of the run differ by. Others
// on the machine, seen or unseen, make some parts of a run slower and none faster: of how much
// slower each part is than the best updates of the same size, the share that a fifth of the parts
// are below. A part holds `least` updates or more, so that all have of everything that comes again
// and again.
struct Pace {
  double seconds;
  std::optional<double> noise;
};
Pace undisturbed_pace(std::span<const double> times, std::span<const int64_t> sizes, double least);
// How far the mean of some losses may be off, one standard deviation. A trend is no deviation; of
// one loss nothing is known: NaN.
double error_of_mean(std::span<const double> losses);

// Trains in `run`, whose checkpoints are the caller's to remove. The timeline must outlive it.
Profile profile(const Model& model, Settings settings, const TrainingData& data, Backend& backend,
                const Programs& programs, RunFolder& run, ProfileOptions options,
                Timeline& timeline);

}  // namespace millrace
