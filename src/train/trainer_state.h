// What a training run must remember besides weights and moments, so that a resumed run does exactly
// what the uninterrupted one would have done. trainer_state.json holds it, with the field names the
// Hugging Face Trainer uses where it has them.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>

#include "core/file.h"
#include "train/health.h"
#include "train/settings.h"

namespace millrace {

inline constexpr const char* kTrainerStateName = "trainer_state.json";

// Sums since the last metric line, or since the epoch began.
struct LossSum {
  double loss = 0;
  int64_t steps = 0;
  void add(double value) {
    loss += value;
    ++steps;
  }
  double mean() const { return loss / static_cast<double>(steps); }
};

struct TrainerState {
  int64_t step = 0;     // updates done, the skipped ones among them
  int64_t samples = 0;  // data cursor: position of the next batch (data/batches.h)
  int64_t tokens = 0;   // tokens trained on
  int64_t places = 0;   // the same with padding
  double first_loss = 0, last_loss = 0;
  LossSum window, epoch;
  int64_t evaluated_step = -1, sampled_step = -1;  // the last that were completed
  int64_t evaluations = 0;

  std::string metric_name;  // what the following are of; empty: nothing validated yet
  bool has_best = false;
  double best_metric = 0;
  int64_t best_step = 0, evaluations_without_gain = 0;
  double last_metric = 0;

  int64_t skipped = 0, skipped_in_a_row = 0, rollbacks = 0;
  LossHistory losses;  // what a spike is judged against

  double seconds = 0;         // of training, over all sittings
  int64_t metrics_bytes = 0;  // length of metrics.jsonl that belongs to this state
  std::string data_digest;    // of the training tokens
  std::string choices;        // algorithms that were chosen by measurement

  // Of the last step, by checkpoint.metric. True: no other was as good.
  bool add_evaluation(double metric, const Settings& settings);
  // Values of another metric than this compare with none of it: forgets them. True: there were
  // some.
  bool judge_by(const std::string& metric);

  std::string to_json(int64_t total_steps, double epochs) const;
  static TrainerState from_json(std::string_view text, const std::string& where);
  static TrainerState of_checkpoint(const fs::path& folder);
};

// All updates done and the last one validated, or no gain for as long as the settings allow.
bool is_finished(const TrainerState& state, const Settings& settings, const RunLength& length);

}  // namespace millrace
