// What a run tells while it trains, and who listens.
#pragma once
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "exec/ledger.h"

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

struct UpdateReport {
  int64_t step = 0;
  int64_t places = 0, useful = 0;  // of its batches; those that were no padding
  bool last = true;  // of the updates that a device gave back together; their time is shared
};

struct EpochReport {
  int64_t epoch = 0, epochs = 0;  // 1-based
  double loss = 0;                // mean over its updates
  double seconds = 0, samples_per_second = 0;
  std::vector<std::pair<std::string, double>>
      shares;  // of the time, by ledger owner; largest first
};

// As lines of a log.
std::string describe(const StepReport& report);
std::string describe(const EpochReport& report);

using Metrics = std::map<std::string, double>;
// What an evaluation does, and how much of it is done; called often.
using EvaluationProgress = std::function<void(const char* what, int64_t done, int64_t all)>;
Metrics metrics_of(const StepReport& report);
Metrics metrics_of(const EpochReport& report);
std::string describe_evaluation(int64_t step, const Metrics& metrics, bool best);

// Who watches: the terminal in the program, nobody in tests.
class TrainObserver {
 public:
  virtual ~TrainObserver() = default;
  virtual void step(const StepReport&) {}
  // After every update, before what is due then; may set the ledger's timeline.
  virtual void updated(const UpdateReport&, Ledger&) {}
  virtual void epoch(const EpochReport&) {}
  // While it validates: what it does, and how much of it is done.
  virtual void evaluating(const char* /*what*/, int64_t /*done*/, int64_t /*all*/) {}
  virtual void evaluated(int64_t /*step*/, const Metrics&, bool /*best*/) {}
  virtual void sampled(int64_t /*step*/, const std::string& /*text*/) {}
  virtual void saved(int64_t /*step*/) {}  // and on disk
  virtual void note(const std::string& /*text*/) {}
};

}  // namespace millrace
