#include "train/settings.h"

#include <algorithm>
#include <cmath>

#include "data/source_files.h"
#include "model/model.h"

namespace millrace {

void Settings::declare(Schema& s) {
  declare_absent_keys(s);
  s.text("run_name", &run_name)
      .help("Name of the run; its folder is <runs_folder>/<run_name>/<time>-<id>.");
  s.text("runs_folder", &runs_folder).help("Where run folders are made.");
  s.text("device", &device)
      .help("What trains: cpu; cuda, cuda:N, an NVIDIA GPU; auto: a GPU if there is one.");
  s.integer("seed", &seed).range(0, 9.0e15).help("Everything random follows from it.");

  s.choice("model.type", &model_type, model_families()).help("Model family.");
  tuning.declare(s);

  s.text("data.folder", &data.folder)
      .help("Where relative paths of data begin; empty: the current folder.");
  s.text_list("data.train", &data.train)
      .help("Files (plain, .gz, .zst), folders, globs, or builtin:grammar.");
  s.text_list("data.validation", &data.validation)
      .help("The same for validation; empty: a part of the training data.");
  s.text_list("data.test", &data.test)
      .help("The same for a test after training, `millrace eval --split test`.");
  s.text_list("data.train_target", &data.train_target)
      .help("Second files, beside those of data.train line by line: pairs of source and target.");
  s.text_list("data.validation_target", &data.validation_target)
      .help("The same beside data.validation.");
  s.text_list("data.test_target", &data.test_target).help("The same beside data.test.");
  s.choice("data.format", &data.format, format_names())
      .help(
          "What the files are. text: one long text, in which CR LF is read as LF and a mark at the "
          "start (BOM) is passed over, but not by the byte tokenizer; lines: a record a line; "
          "jsonl, csv, tsv: records with named fields; tokens: ids as uint16 or uint32; auto: by "
          "their ending.");
  s.text_list("data.fields", &data.fields)
      .help("Fields of jsonl, csv and tsv to read: one, or two as source and target; empty: text.");
  s.choice("data.separator", &data.separator, {"end", "none"})
      .help(
          "What stands between source and target in one row: the end token; or nothing, for "
          "prompts that say themselves where the answer begins.");
  s.number("data.validation_fraction", &data.validation_fraction)
      .above(0)
      .below(1)
      .help(
          "Share of the training data kept for validation when data.validation is empty: the end "
          "of a long text, or records drawn by the seed.");
  s.number("data.test_fraction", &data.test_fraction)
      .min(0)
      .below(1)
      .help("The same for a test, of records, when data.test is empty.");
  s.text("data.tokenizer", &data.tokenizer)
      .help(
          "What a token is: `char`; `byte`; `word`; `bpe` or `unigram`, pieces that SentencePiece "
          "learns from the training data; `ids`, for files of tokens; or the path of a "
          "tokenizer.json of Hugging Face (BPE: byte-level as of GPT-2, Llama 3 and SmolLM, or with "
          "byte_fallback as of Llama 2) or of a .model of SentencePiece. Which tokens start and "
          "end texts is read beside it: tokenizer_config.json, special_tokens_map.json, "
          "generation_config.json, config.json.");
  s.integer("data.vocab_size", &data.vocab_size)
      .range(2, 1 << 24)
      .allow_auto()
      .help(
          "Vocabulary that word, bpe and unigram learn and ids have; auto: model.vocab_size, or "
          "8000.");
  s.integer("data.min_frequency", &data.min_frequency)
      .range(1, 1e12)
      .help("word: a rarer word is not in the vocabulary.");
  s.boolean("data.lower_case", &data.lower_case).help("word: in lower case.");
  s.integer("data.max_chars", &data.max_chars)
      .min(0)
      .help("Use so many characters of the training data at most; 0: all.");
  s.integer("data.max_records", &data.max_records)
      .min(0)
      .help("Use so many records of the training files at most; 0: all.");
  s.integer("data.grammar_chars", &data.grammar_chars)
      .range(1000, 1e10)
      .help("How much text builtin:grammar writes.");
  s.choice("data.on_bad_record", &data.on_bad_record, {"error", "skip"})
      .help(
          "What a record that cannot be read or is not UTF-8, or a pair with text on one side "
          "only, does: end the run, or be passed over and counted.");
  s.choice("data.on_long_record", &data.on_long_record, {"cut", "error"})
      .help(
          "What a record longer than training.max_length, or a source longer than "
          "max_source_length, does: be cut, and counted where that loses tokens (of a source or "
          "target that stands apart the end, of a pair in one row the front of its source), or end "
          "the run.");
  s.boolean("data.allow_change", &data.allow_change)
      .help("A resumed run may go on with other training data.");
  s.choice("data.sampling", &data.sampling, {"random", "sequential"})
      .help(
          "Windows of a long text. random: anywhere; sequential: every one once per epoch, "
          "shuffled.");
  s.choice("data.batching", &data.batching, {"auto", "windows", "buckets", "packing"})
      .help(
          "windows: all data as one long text; buckets: records with others of similar length; "
          "packing: several records in a row, which do not see each other; auto: windows for "
          "text, packing for records.");
  s.integer("data.batch_tokens", &data.batch_tokens)
      .range(0, 1e9)
      .help(
          "buckets: token places of a batch; 0: training.batch_size records, whatever their "
          "length.");
  s.choice("data.chunking", &data.chunking, {"hard", "sentence", "paragraph"})
      .help(
          "Where a record longer than training.max_length is cut: there, or at the last sentence "
          "or paragraph end before it.");
  s.integer("data.chunk_overlap", &data.chunk_overlap)
      .range(0, 1 << 20)
      .help("Tokens that a chunk repeats from the one before it, to be read but not scored.");
  s.integer("data.window_stride", &data.window_stride)
      .range(1, 1 << 20)
      .help(
          "trajectories: states from one window of a path to the next, counted from the path's "
          "end.");
  s.boolean("data.rotate", &data.rotate)
      .help(
          "trajectories: in training every sequence is turned by any angle in the plane of its "
          "first two numbers: a direction means nothing in another scene.");
  s.text("data.class_column", &data.class_column)
      .help(
          "trajectories: where the class of a state stands, one of model.classes. Of a table the "
          "number of the column, from 1, or its name, which the first line then has (`# frame "
          "agent x y kind`); of safetensors the tensor, integers [N]. Nothing between two commas, "
          "or a negative number: the state has none.");
  s.integer("data.num_workers", &data.num_workers)
      .range(0, 256)
      .allow_auto()
      .help(
          "Threads that make batches ahead; auto: one, and more while training waits for them; "
          "0: none. The order of the data does not depend on it.");
  s.integer("data.prefetch_factor", &data.prefetch_factor)
      .range(1, 1024)
      .help("Updates that each of them makes ahead.");
  s.alternatives("datasets", "data",
                 "Data sets by name. Under each name stand keys of `data`, and `--dataset NAME` "
                 "on the command line puts them in the place of those in the section `data`:\n\n"
                 "```yaml\ndatasets:\n  shakespeare: {train: input.txt}\n"
                 "  stories: {train: stories/*.txt.gz, max_chars: 1e6}\n```");

  s.integer("training.batch_size", &batch_size)
      .range(1, 1 << 20)
      .allow_auto()
      .alias("training.train_batch_size")
      .help(
          "Sequences per micro-batch; times grad_accum it is the optimisation batch. auto: the "
          "largest of 1, 2, 4, 8, 16, 24, 32, 48, 64, 96, ... that fits memory_limit, or nine "
          "tenths of the device's memory, with nothing computed twice, and leaves at least 50 "
          "updates to an epoch and 1,000 to a run; with effective_batch the largest that divides "
          "it and fits, grad_accum making up the rest. Chosen once: a resumed run keeps it.");
  s.integer("training.grad_accum", &grad_accum).range(1, 1 << 16).help("Micro-batches per update.");
  s.integer("training.effective_batch", &effective_batch)
      .range(0, 1e12)
      .help(
          "batch_size x grad_accum, for whoever likes to write it down; refused when it is not. "
          "With batch_size: auto it decides grad_accum.");
  s.choice("training.precision", &precision, {"auto", "fp32", "tf32", "bf16", "fp16"})
      .help(
          "What the model computes in. On a GPU: bf16, fp16: 16-bit values with 32-bit master "
          "weights, fp16 with dynamic loss scaling; tf32: 32-bit values, products of 19 bits. On a "
          "CPU with AVX-512 BF16: bf16: products round their operands to it, all else stays "
          "32-bit. auto: bf16 on a GPU, fp32 on the CPU.");
  s.boolean("training.use_compile", &use_compile)
      .help(
          "CUDA: a step is captured once as a graph and replayed. false: it is launched node by "
          "node, each waited for, so that a fault has a name.");
  s.integer("training.steps_per_replay", &steps_per_replay)
      .range(1, 64)
      .help(
          "CUDA: so many updates with batches of one shape are one graph, and reach the device in "
          "one go; for models whose update takes less than about a millisecond. The same bits, "
          "unless a run rolls back, which passes over all batches under way. Reports, validation "
          "and checkpoints come between graphs: a quarter of log_interval or less suits. Needs "
          "grad_accum 1.");
  s.integer("training.max_length", &max_length)
      .range(1, 1 << 20)
      .alias("training.max_tgt_len")
      .alias("model.max_target_len")
      .help("Tokens per sequence; of pairs whose sides a model reads apart, of a target.");
  s.integer("training.max_source_length", &max_source_length)
      .range(1, 1 << 20)
      .allow_auto()
      .alias("training.max_src_len")
      .help(
          "Tokens of a source, where a model reads source and target apart; auto: what the model's "
          "keys say, else max_length.");
  s.integer_rows("training.length_curriculum", &length_curriculum)
      .range(1, 1e12)
      .help(
          "Short pairs first, for a model that reads source and target apart: rows of a last "
          "update, a source's length and a target's, as [[2000, 192, 48], [4000, 384, 96]]. Up to "
          "that update no more is read of each; behind the last row it is max_source_length and "
          "max_length. Which pairs a batch holds does not change. Durations in tokens count full "
          "lengths.");
  s.integer("training.max_steps", &max_steps)
      .range(0, 1e12)
      .help("Updates; 0: max_tokens or num_epochs decides.");
  s.integer("training.max_tokens", &max_tokens)
      .range(0, 1e15)
      .help("Tokens to train on, when max_steps is 0; 0: num_epochs decides.");
  s.integer("training.num_epochs", &num_epochs)
      .range(1, 1e9)
      .help("Passes over the training tokens, when max_steps and max_tokens are 0.");
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
  s.number("training.initial_accumulator", &optimizer.initial_accumulator)
      .min(0)
      .max(1e6)
      .help(
          "Adagrad: what its sums of squares begin with; above 0 the first updates are no leaps.");
  s.number("training.momentum", &optimizer.momentum).min(0).below(1).help("SGD's momentum.");
  s.boolean("training.nesterov", &optimizer.nesterov).help("SGD with Nesterov momentum.");
  s.number("training.weight_decay", &optimizer.weight_decay)
      .min(0)
      .max(100)
      .help("Decay of matrices; decoupled for adamw, added to the gradient otherwise.");
  s.number("training.label_smoothing", &label_smoothing)
      .min(0)
      .below(1)
      .help(
          "Share of every target's probability that training spreads over the whole vocabulary; "
          "validation is without.");
  s.number("training.gradient_clip", &optimizer.gradient_clip)
      .min(0)
      .max(1e9)
      .help("Largest global gradient norm; 0: no clipping.");
  s.choice("training.schedule", &schedule.kind,
           {"cosine", "constant", "linear", "inverse_sqrt", "wsd"})
      .help("Learning-rate schedule after warm-up; wsd is warm-up, stable, decay.");
  s.duration("training.warmup", &schedule.warmup)
      .alias("training.warmup_steps")
      .untimed()
      .help("Linear warm-up, in steps, tokens or epochs.");
  s.number("training.min_learning_rate_ratio", &schedule.min_ratio)
      .range(0, 1)
      .help("Where cosine, linear and wsd end, as a share of the peak.");
  s.number("training.decay_fraction", &schedule.decay_fraction)
      .range(0, 1)
      .help("wsd: share of the updates that decays at the end.");
  s.number("training.ema_decay", &ema_decay)
      .min(0)
      .below(1)
      .help(
          "Keeps an average of the weights with this decay (0.999), which is validated and saved "
          "as the model; 0: none.");
  // No times: results must not depend on the clock.
  s.duration_list("training.eval_every", &eval_every)
      .untimed()
      .help("Validate so often, in steps, tokens or epochs; empty: five times in a run.");
  s.integer("training.max_eval_batches", &max_eval_batches)
      .range(0, 1e12)
      .help("Validation batches at most; 0: all.");
  s.integer("training.eval_context", &eval_context)
      .range(0, 1 << 20)
      .help(
          "Validation windows overlap by so many tokens, which are read but not scored: every "
          "scored token has at least this much before it.");
  s.integer("training.eval_texts", &eval_texts)
      .range(0, 1e9)
      .help(
          "Data of pairs: validation also writes the targets of so many, the first ones, and "
          "measures eval/bleu, eval/chrf, eval/rouge1, eval/rouge2 and eval/rougeL; 0: none.");
  s.integer("training.eval_beam", &eval_beam)
      .range(1, 64)
      .help(
          "Hypotheses that each of these texts is the best of; 1: the likeliest token each time.");
  s.integer("training.eval_min_tokens", &eval_min_tokens)
      .range(0, 1e6)
      .help("Tokens before one of these texts may end; also what `eval` does unless told.");
  s.integer("training.eval_no_repeat_ngram", &eval_no_repeat_ngram)
      .range(0, 1000)
      .help(
          "So many tokens in a row do not come twice in one of these texts; 0: they may. Also what "
          "`eval` does unless told.");
  s.number("training.eval_length_penalty", &eval_length_penalty)
      .min(0)
      .max(10)
      .help(
          "The log-probability of a hypothesis is divided by its length to this power. Also what "
          "`eval` does unless told.");
  s.integer("training.log_interval", &log_interval)
      .range(1, 1e9)
      .help("Updates between metric lines.");
  s.integer("training.early_stop_patience", &early_stop_patience)
      .range(0, 1e9)
      .help("Stop after so many validations without a better checkpoint.metric; 0: never.");
  s.number("training.early_stop_delta", &early_stop_delta)
      .min(0)
      .help("What counts as better: by more than this.");

  s.duration_list("checkpoint.every", &checkpoint.every)
      .help(
          "Save so often: steps, tokens, epochs or minutes, one or several. The end of a run, a "
          "signal and a better metric save too.");
  s.integer("checkpoint.keep_last", &checkpoint.keep_last)
      .range(2, 1e9)
      .help("How many of the newest stay on disk.");
  s.integer("checkpoint.keep_best", &checkpoint.keep_best)
      .range(0, 1e9)
      .help("How many of the best by checkpoint.metric stay; 0: none is saved for being best.");
  s.text("checkpoint.metric", &checkpoint.metric)
      .help(
          "What best means: eval/loss, eval/perplexity or, with training.eval_texts, eval/bleu, "
          "eval/chrf, eval/rouge1, eval/rouge2 or eval/rougeL; of trajectories eval/loss, "
          "eval/ade, "
          "eval/fde or, with classes, eval/class_accuracy.");
  s.choice("checkpoint.goal", &checkpoint.goal, {"auto", "min", "max"})
      .help("auto: losses, perplexities and errors are to be small, others large.");

  s.integer("health.max_skipped", &health.max_skipped)
      .range(1, 1e9)
      .help(
          "An update whose loss or gradient norm is not finite changes nothing. After so many in a "
          "row the run goes back to the last checkpoint and passes over that data.");
  s.integer("health.max_rollbacks", &health.max_rollbacks)
      .range(0, 1e9)
      .help("After so many the run stops with exit code 10 and names the first bad node.");
  s.number("health.spike_sigma", &health.spike_sigma)
      .min(0)
      .max(1e6)
      .help("Warn when a loss is so many standard deviations above the last 64; 0: never.");

  s.bytes("runtime.memory_limit", &memory_limit)
      .min(0)
      .help(
          "Memory the plan must fit in, on a device together with context and libraries once a run "
          "has measured them; 0: no limit.");
  s.boolean("runtime.recompute", &recompute)
      .help(
          "May run parts of the forward pass twice to fit memory_limit; recomputed values have the "
          "same bits.");
  s.integer("runtime.threads", &threads)
      .range(0, 256)
      .help(
          "CPU threads; 0: one for each core that this process may use, in a container as many as "
          "its control group grants time for. The results do not depend on it.");
  s.boolean("runtime.pin_threads", &pin_threads)
      .help(
          "Each thread keeps to a core of its own. Worth a trial (`millrace tune`) on machines "
          "with many cores that nothing else uses; elsewhere a thread waits for whoever has its "
          "core.");
  s.duration("runtime.stop_after", &stop_after)
      .help(
          "Save and stop (exit code 75) after so many steps or so much time in this sitting; 0: "
          "never.");
  s.choice("runtime.log_format", &log_format, {"auto", "bar", "plain", "json", "none"})
      .help("What standard error shows; auto: a bar on a terminal, plain lines elsewhere.");
  s.boolean("runtime.tensorboard", &tensorboard)
      .help("Metrics also as TensorBoard event files, in the run folder's tb/.");
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
  s.duration_list("sample.every", &sample_every)
      .untimed()
      .help("Show a sample during training so often; empty: at the end only.");
}

bool CheckpointSettings::larger_is_better() const {
  if (goal != "auto") return goal == "max";
  for (const char* word : {"loss", "perplexity", "error", "ade", "fde"})
    if (metric.find(word) != metric.npos) return false;
  return true;
}

double RunLength::steps(const Duration& duration) const {
  switch (duration.unit) {
    case Duration::Unit::steps:
      return duration.count;
    case Duration::Unit::tokens:
      return duration.count / tokens_per_step;
    case Duration::Unit::epochs:
      return duration.count * steps_per_epoch;
    case Duration::Unit::seconds:
      break;
  }
  return 0;
}

bool RunLength::due(const std::vector<Duration>& every, int64_t step) const {
  for (const Duration& d : every) {
    const double interval = steps(d);
    // The number of whole intervals grows in this update. Intervals under a step: every update.
    if (interval > 0 && std::floor(static_cast<double>(step) / interval) >
                            std::floor(static_cast<double>(step - 1) / interval))
      return true;
  }
  return false;
}

Precision Settings::pass_precision() const {
  for (const Precision p : {Precision::tf32, Precision::bf16, Precision::fp16})
    if (precision == precision_name(p)) return p;
  return Precision::fp32;
}

PassOptions Settings::pass_options() const {
  PassOptions options;
  options.off.insert(passes_off.begin(), passes_off.end());
  options.precision = pass_precision();
  return options;
}

RunLength run_length(const Settings& s, double updates_per_epoch, double tokens_per_update) {
  RunLength length;
  length.tokens_per_step = tokens_per_update;
  length.steps_per_epoch = std::max(1.0, std::floor(updates_per_epoch));
  if (s.max_steps > 0)
    length.total = s.max_steps;
  else if (s.max_tokens > 0)
    length.total =
        static_cast<int64_t>(std::ceil(static_cast<double>(s.max_tokens) / length.tokens_per_step));
  else
    length.total = static_cast<int64_t>(length.steps_per_epoch) * s.num_epochs;
  return length;
}

std::vector<Duration> validation_pace(const Settings& settings, const RunLength& length) {
  if (!settings.eval_every.empty()) return settings.eval_every;
  return {{std::max(1.0, std::ceil(static_cast<double>(length.total) / 5))}};
}

double learning_rate_at(const ScheduleSettings& schedule, double peak, int64_t step,
                        const RunLength& length) {
  const auto s = static_cast<double>(step), warmup = std::floor(length.steps(schedule.warmup)),
             end = static_cast<double>(length.total);
  if (s < warmup) return peak * (s + 1) / warmup;
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

double average_rate_at(double decay, int64_t step) {
  const auto t = static_cast<double>(step);
  return 1 - std::min(decay, (1 + t) / (10 + t));
}

}  // namespace millrace
