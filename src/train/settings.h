// The settings of a run that are not the model's own: data, training, runtime. Declared once;
// parsing, ranges, help and docs/CONFIG.md come from the declarations.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "core/duration.h"
#include "graph/passes.h"
#include "io/schema.h"
#include "model/tuning.h"

namespace millrace {

struct OptimizerSettings {
  std::string kind = "adamw";
  double learning_rate = 1e-3;
  double beta1 = 0.9, beta2 = 0.95, eps = 1e-8;
  double initial_accumulator = 0;
  double momentum = 0.9;
  bool nesterov = false;
  double weight_decay = 0.1;
  double gradient_clip = 1.0;  // 0: off
};

struct ScheduleSettings {
  std::string kind = "cosine";
  Duration warmup;
  double min_ratio = 0.1;
  double decay_fraction = 0.2;  // wsd: the share of steps at the end that decays
};

struct CheckpointSettings {
  std::vector<Duration> every{{600, Duration::Unit::seconds}};
  int64_t keep_last = 2, keep_best = 1;
  std::string metric = "eval/loss", goal = "auto";
  bool larger_is_better() const;
};

// What happens when numbers go wrong.
struct HealthSettings {
  int64_t max_skipped = 3;    // updates in a row that are not finite, before a roll-back
  int64_t max_rollbacks = 3;  // before the run stops
  double spike_sigma = 6;     // 0: no warning
};

struct DataSettings {
  std::string folder;  // that relative paths start from; empty: the current one
  std::vector<std::string> train{"builtin:grammar"}, validation, test;
  std::vector<std::string> train_target, validation_target, test_target;
  std::string format = "auto", class_column;
  std::vector<std::string> fields;
  std::string separator = "end";
  double validation_fraction = 0.1, test_fraction = 0;
  std::string tokenizer = "char";
  int64_t vocab_size = -1, min_frequency = 2;  // -1: auto
  bool lower_case = false;
  int64_t max_chars = 0, max_records = 0, grammar_chars = 4'000'000;
  std::string on_bad_record = "error", on_long_record = "cut";
  bool allow_change = false;
  bool rotate = false;

  std::string sampling = "random", batching = "auto", chunking = "hard";
  int64_t chunk_overlap = 0, batch_tokens = 0, window_stride = 1;
  int64_t num_workers = -1, prefetch_factor = 2;  // -1: auto
};

struct Settings {
  std::string run_name = "run", runs_folder = "runs", device = "auto", precision = "auto";
  int64_t seed = 1;

  std::string model_type = "gpt";
  TuningSettings tuning;

  DataSettings data;

  int64_t batch_size = 32, grad_accum = 1, max_length = 128, max_steps = 0, max_tokens = 0,
          num_epochs = 1;
  int64_t max_source_length = -1;  // -1: auto
  IntegerRows length_curriculum;   // of an update, a source's length and a target's
  int64_t effective_batch = 0;     // 0: not said
  int64_t steps_per_replay = 1;
  double label_smoothing = 0;
  OptimizerSettings optimizer;
  ScheduleSettings schedule;
  double ema_decay = 0;
  std::vector<Duration> eval_every;
  int64_t max_eval_batches = 0, eval_context = 0, log_interval = 10;
  int64_t eval_texts = 0, eval_beam = 1, eval_min_tokens = 0, eval_no_repeat_ngram = 0;
  double eval_length_penalty = 1;
  int64_t early_stop_patience = 0;
  double early_stop_delta = 0;
  CheckpointSettings checkpoint;
  HealthSettings health;

  int64_t memory_limit = 0, threads = 0;
  bool pin_threads = false;
  Duration stop_after;
  std::string log_format = "auto";
  bool recompute = true, tensorboard = true, use_compile = true;
  std::vector<std::string> passes_off;

  std::string sample_prompt;
  int64_t sample_length = 300;
  double sample_temperature = 0.8;
  std::vector<Duration> sample_every;

  void declare(Schema& schema);
  Precision pass_precision() const;  // `auto`, when no device has settled it, is fp32
  PassOptions pass_options() const;
};

// Words that other trainers have a key for, each with why there is none here.
void declare_absent_keys(Schema& schema);

// What durations mean for a run: steps of a length.
struct RunLength {
  int64_t total = 0;           // updates
  double steps_per_epoch = 1;  // updates
  double tokens_per_step = 1;
  // In updates; 0 for seconds, which steps cannot say.
  double steps(const Duration& duration) const;
  // Does a boundary of `every` lie in the update that ends with `step` (1-based)?
  bool due(const std::vector<Duration>& every, int64_t step) const;
};
// `updates_per_epoch` may be below one; `tokens_per_update` without padding.
RunLength run_length(const Settings& settings, double updates_per_epoch, double tokens_per_update);
// How often validation comes: as said, or five times in a run.
std::vector<Duration> validation_pace(const Settings& settings, const RunLength& length);

// The learning rate of `step` (0-based).
double learning_rate_at(const ScheduleSettings& schedule, double peak, int64_t step,
                        const RunLength& length);
// The share of new weights in their average: it follows quickly while there is little to average
// (as in TensorFlow's ExponentialMovingAverage).
double average_rate_at(double decay, int64_t step);

}  // namespace millrace
