// The training loop: batches in, updates, validation inside the loop, metrics, a checkpoint at the
// end, and the ledger of where the time went.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "data/text_source.h"
#include "exec/ledger.h"
#include "exec/session.h"
#include "model/model.h"
#include "train/program.h"
#include "train/run_folder.h"
#include "train/settings.h"

namespace millrace {

struct StepReport {
  int64_t step = 0, total = 0;  // updates done, updates planned
  double loss = 0;              // mean over the updates since the last report
  double grad_norm = 0, learning_rate = 0;
  double tokens_per_second = 0;
  double elapsed_seconds = 0, remaining_seconds = 0;
  double input_wait_share = 0;
};

// Who watches: the terminal in the program, nobody in tests.
class TrainObserver {
 public:
  virtual ~TrainObserver() = default;
  virtual void step(const StepReport&) {}
  virtual void evaluated(int64_t /*step*/, double /*loss*/) {}
  virtual void note(const std::string& /*text*/) {}
};

struct TrainResult {
  int64_t steps = 0;
  double first_loss = 0, last_loss = 0, validation_loss = 0, best_validation_loss = 0;
  double seconds = 0;            // of the loop
  double tokens_per_second = 0;  // over updates only, without evaluation
  double median_step_seconds = 0;
  bool stopped = false;         // by SIGINT or SIGTERM; state saved
  int64_t skipped_updates = 0;  // non-finite gradient norms
  std::vector<double> losses;   // one per update
  fs::path checkpoint;
  std::string sample;
  Ledger ledger;
};

int64_t planned_steps(const Settings& settings, const TextData& data);

// `run` may be null: nothing is written then (tests, trials).
TrainResult train(const Model& model, const Settings& settings, const TextData& data,
                  Backend& backend, const Programs& programs, RunFolder* run,
                  TrainObserver& observer);

}  // namespace millrace
