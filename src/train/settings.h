// The settings of a run that are not the model's own: data, training, runtime. Declared once;
// parsing, ranges, help and docs/CONFIG.md come from the declarations.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "io/schema.h"

namespace millrace {

struct OptimizerSettings {
  std::string kind = "adamw";
  double learning_rate = 1e-3;
  double beta1 = 0.9, beta2 = 0.95, eps = 1e-8;
  double momentum = 0.9;
  bool nesterov = false;
  double weight_decay = 0.1;
  double gradient_clip = 1.0;  // 0: off
};

struct ScheduleSettings {
  std::string kind = "cosine";
  int64_t warmup_steps = 0;
  double min_ratio = 0.1;
  double decay_fraction = 0.2;  // wsd: the share of steps at the end that decays
};

struct Settings {
  std::string run_name = "run", runs_folder = "runs", device = "auto";
  int64_t seed = 1;

  std::string model_type = "gpt";

  std::vector<std::string> train_data{"builtin:grammar"}, validation_data;
  double validation_fraction = 0.1;
  std::string tokenizer = "char";
  int64_t max_chars = 0, grammar_chars = 4'000'000;
  std::string sampling = "random";

  int64_t batch_size = 32, grad_accum = 1, max_length = 128, max_steps = 0, num_epochs = 1;
  OptimizerSettings optimizer;
  ScheduleSettings schedule;
  int64_t eval_every = 0, max_eval_batches = 0, eval_context = 0, log_interval = 10;

  int64_t memory_limit = 0, threads = 0;
  bool recompute = true;
  std::vector<std::string> passes_off;

  std::string sample_prompt;
  int64_t sample_length = 300;
  double sample_temperature = 0.8;

  void declare(Schema& schema);
};

// The learning rate of `step` (0-based) out of `total`.
double learning_rate_at(const ScheduleSettings& schedule, double peak, int64_t step, int64_t total);

}  // namespace millrace
