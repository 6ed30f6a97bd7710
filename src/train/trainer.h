// The training loop people trust with a week of compute: batches in, updates, validation inside the
// loop, metrics, checkpoints from which it goes on to the bit, and the ledger of where the time
// went.
#pragma once
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "exec/ledger.h"
#include "exec/session.h"
#include "model/model.h"
#include "train/checkpoint.h"
#include "train/program.h"
#include "train/run_folder.h"
#include "train/settings.h"
#include "train/training_data.h"

namespace millrace {

struct StepReport {
  int64_t step = 0, total = 0;  // updates done, updates planned
  double loss = 0;              // mean over the updates since the last report
  double grad_norm = 0, learning_rate = 0;
  double tokens_per_second = 0, step_seconds = 0;     // every place that was computed
  double useful_share = 1;                            // of these that were no padding
  double elapsed_seconds = 0, remaining_seconds = 0;  // elapsed over all sittings
  double input_wait_share = 0;
};

struct EpochReport {
  int64_t epoch = 0, epochs = 0;  // 1-based
  double loss = 0;                // mean over its updates
  double seconds = 0, samples_per_second = 0;
  std::vector<std::pair<std::string, double>>
      shares;  // of the time, by ledger owner; largest first
};

// As a line of a log.
std::string describe(const StepReport& report);
std::string describe(const EpochReport& report);

using Metrics = std::map<std::string, double>;

// Who watches: the terminal in the program, nobody in tests.
class TrainObserver {
 public:
  virtual ~TrainObserver() = default;
  virtual void step(const StepReport&) {}
  virtual void epoch(const EpochReport&) {}
  virtual void evaluated(int64_t /*step*/, const Metrics&, bool /*best*/) {}
  virtual void sampled(int64_t /*step*/, const std::string& /*text*/) {}
  virtual void saved(int64_t /*step*/) {}  // and on disk
  virtual void note(const std::string& /*text*/) {}
};

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
  bool stopped = false;        // before its end, by a signal or runtime.stop_after
  bool early_stopped = false;  // no gain for training.early_stop_patience validations
  int64_t skipped_updates = 0, rollbacks = 0;
  std::vector<double> losses;       // one per update of this sitting
  std::optional<Error> save_error;  // the last checkpoint is not on disk
  std::string sample;
  Ledger ledger;
};

// All updates done and the last one validated, or no gain for as long as the settings allow.
bool is_finished(const TrainerState& state, const Settings& settings, const RunLength& length);

// What validation measures.
std::vector<std::string> metric_names();

// `run` may be null: nothing is written then (tests, trials). `resume` is a verified checkpoint of
// this model and these settings. Asks train/signals.h whether to stop; the caller decides whether
// signals are taken.
TrainResult train(const Model& model, const Settings& settings, const TrainingData& data,
                  Backend& backend, const Programs& programs, RunFolder* run,
                  TrainObserver& observer, const FoundCheckpoint* resume = nullptr);

// All validation batches, with the weights of a folder.
Metrics evaluate_model(const Model& model, const TrainingData& data, Backend& backend,
                       const fs::path& folder);

}  // namespace millrace
