#include "train/settings.h"

#include <algorithm>
#include <cmath>

#include "graph/passes.h"
#include "model/model.h"

namespace millrace {

void Settings::declare(Schema& s) {
  s.text("run_name", &run_name)
      .help("Name of the run; its folder is <runs_folder>/<run_name>/<time>-<id>.");
  s.text("runs_folder", &runs_folder).help("Where run folders are made.");
  s.choice("device", &device, {"auto", "cpu"}).help("What trains.");
  s.integer("seed", &seed).range(0, 9.0e15).help("Everything random follows from it.");

  s.choice("model.type", &model_type, model_families()).help("Model family.");

  s.text_list("data.train", &train_data).help("Text files, folders, globs, or builtin:grammar.");
  s.text_list("data.validation", &validation_data)
      .help("The same for validation; empty: cut from the end of the training text.");
  s.number("data.validation_fraction", &validation_fraction)
      .above(0)
      .below(1)
      .help("Share of the training text kept for validation when data.validation is empty.");
  s.choice("data.tokenizer", &tokenizer, {"char", "byte"}).help("What a token is.");
  s.integer("data.max_chars", &max_chars)
      .min(0)
      .help("Use so many characters of the training text at most; 0: all.");
  s.integer("data.grammar_chars", &grammar_chars)
      .range(1000, 1e10)
      .help("How much text builtin:grammar writes.");
  s.choice("data.sampling", &sampling, {"random", "sequential"})
      .help("random: windows anywhere; sequential: every window once per epoch, shuffled.");

  s.integer("training.batch_size", &batch_size)
      .range(1, 1 << 20)
      .help("Sequences per micro-batch; times grad_accum it is the optimisation batch.");
  s.integer("training.grad_accum", &grad_accum).range(1, 1 << 16).help("Micro-batches per update.");
  s.integer("training.max_length", &max_length).range(1, 1 << 20).help("Tokens per sequence.");
  s.integer("training.max_steps", &max_steps)
      .range(0, 1e12)
      .help("Updates; 0: num_epochs decides.");
  s.integer("training.num_epochs", &num_epochs)
      .range(1, 1e9)
      .help("Passes over the training tokens, when max_steps is 0.");
  s.choice("training.optimizer", &optimizer.kind, {"adamw", "adam", "adagrad", "sgd"})
      .help("Optimizer; formulas as in PyTorch.");
  s.number("training.learning_rate", &optimizer.learning_rate)
      .above(0)
      .max(1e3)
      .help("Peak learning rate.");
  s.number("training.beta1", &optimizer.beta1).min(0).below(1).help("Adam's first moment decay.");
  s.number("training.beta2", &optimizer.beta2).min(0).below(1).help("Adam's second moment decay.");
  s.number("training.eps", &optimizer.eps)
      .above(0)
      .max(1)
      .help("Denominator epsilon of Adam and Adagrad.");
  s.number("training.momentum", &optimizer.momentum).min(0).below(1).help("SGD's momentum.");
  s.boolean("training.nesterov", &optimizer.nesterov).help("SGD with Nesterov momentum.");
  s.number("training.weight_decay", &optimizer.weight_decay)
      .min(0)
      .max(100)
      .help("Decay of matrices; decoupled for adamw, added to the gradient otherwise.");
  s.number("training.gradient_clip", &optimizer.gradient_clip)
      .min(0)
      .max(1e9)
      .help("Largest global gradient norm; 0: no clipping.");
  s.choice("training.schedule", &schedule.kind,
           {"cosine", "constant", "linear", "inverse_sqrt", "wsd"})
      .help("Learning-rate schedule after warm-up; wsd is warm-up, stable, decay.");
  s.integer("training.warmup_steps", &schedule.warmup_steps)
      .range(0, 1e12)
      .help("Updates of linear warm-up.");
  s.number("training.min_learning_rate_ratio", &schedule.min_ratio)
      .range(0, 1)
      .help("Where cosine, linear and wsd end, as a share of the peak.");
  s.number("training.decay_fraction", &schedule.decay_fraction)
      .range(0, 1)
      .help("wsd: share of the updates that decays at the end.");
  s.integer("training.eval_every", &eval_every)
      .range(0, 1e12)
      .help("Validate every so many updates; 0: five times in a run.");
  s.integer("training.max_eval_batches", &max_eval_batches)
      .range(0, 1e12)
      .help("Validation batches at most; 0: all.");
  s.integer("training.eval_context", &eval_context)
      .range(0, 1 << 20)
      .help(
          "Validation windows overlap by so many tokens, which are read but not scored: every "
          "scored token has at least this much before it.");
  s.integer("training.log_interval", &log_interval)
      .range(1, 1e9)
      .help("Updates between metric lines.");

  s.bytes("runtime.memory_limit", &memory_limit)
      .min(0)
      .help("Memory the plan must fit in; 0: no limit.");
  s.boolean("runtime.recompute", &recompute)
      .help(
          "May run parts of the forward pass twice to fit memory_limit; recomputed values have the "
          "same bits.");
  s.integer("runtime.threads", &threads)
      .range(0, 256)
      .help("CPU threads; 0: all. The results do not depend on it.");
  s.text_list("runtime.passes_off", &passes_off)
      .help("Graph passes to leave out, by name; for finding faults.");

  s.text("sample.prompt", &sample_prompt)
      .help(
          "Start of the text shown after training; empty: the first characters of the validation "
          "text.");
  s.integer("sample.length", &sample_length).range(0, 1e6).help("Tokens of sample text; 0: none.");
  s.number("sample.temperature", &sample_temperature)
      .min(0)
      .max(100)
      .help("Sampling temperature; 0: the likeliest token.");
}

double learning_rate_at(const ScheduleSettings& schedule, double peak, int64_t step,
                        int64_t total) {
  const auto s = static_cast<double>(step), warmup = static_cast<double>(schedule.warmup_steps),
             end = static_cast<double>(total);
  if (step < schedule.warmup_steps) return peak * (s + 1) / warmup;
  const double span = std::max(1.0, end - warmup),
               progress = std::clamp((s - warmup) / span, 0.0, 1.0), low = schedule.min_ratio;
  if (schedule.kind == "cosine")
    return peak * (low + (1 - low) * 0.5 * (1 + std::cos(3.14159265358979323846 * progress)));
  if (schedule.kind == "linear") return peak * (1 - (1 - low) * progress);
  if (schedule.kind == "inverse_sqrt")
    return peak * std::sqrt(std::max(1.0, warmup) / std::max(std::max(1.0, warmup), s + 1));
  if (schedule.kind == "wsd") {
    const double begin = 1 - schedule.decay_fraction;
    return progress < begin ? peak
                            : peak * (1 - (1 - low) * (progress - begin) /
                                              std::max(1e-12, schedule.decay_fraction));
  }
  return peak;
}

}  // namespace millrace
