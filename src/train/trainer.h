// The training loop people trust with a week of compute: batches in, updates, validation inside the
// loop, metrics, checkpoints from which it goes on to the bit, and the ledger of where the time
// went.
#pragma once
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "exec/ledger.h"
#include "exec/session.h"
#include "model/model.h"
#include "train/checkpoint.h"
#include "train/program.h"
#include "train/report.h"
#include "train/run_folder.h"
#include "train/settings.h"
#include "train/training_data.h"

namespace millrace {

struct TrainResult {
  int64_t steps = 0;  // updates, over all sittings
  double first_loss = 0, last_loss = 0;
  double validation_loss = std::numeric_limits<double>::quiet_NaN();  // the last of this sitting
  std::optional<double> best_metric;
  int64_t best_step = 0;
  double seconds = 0;            // of the loop, this sitting
  double all_seconds = 0;        // over all sittings
  double tokens_per_second = 0;  // over updates only, without evaluation; places
  double useful_share = 1;       // of the places that were no padding
  double median_step_seconds = 0;
  double flops_per_second = 0;  // of all updates of this sitting
  bool stopped = false;         // before its end, by a signal or runtime.stop_after
  bool early_stopped = false;   // no gain for training.early_stop_patience validations
  int64_t skipped_updates = 0, rollbacks = 0;
  std::optional<int64_t> device_bytes;  // of a device's memory, at the end, where it tells
  std::vector<double> losses;           // one per update of this sitting
  std::optional<Error> save_error;      // the last checkpoint is not on disk
  std::string sample;
  Ledger ledger;
};

// `run` may be null: nothing is written then (tests, trials). `resume` is a verified checkpoint of
// this model and these settings. Asks train/signals.h whether to stop; the caller decides whether
// signals are taken.
TrainResult train(const Model& model, const Settings& settings, const TrainingData& data,
                  Backend& backend, const Programs& programs, RunFolder* run,
                  TrainObserver& observer, const FoundCheckpoint* resume = nullptr);

}  // namespace millrace
