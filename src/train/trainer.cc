#include "train/trainer.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <csignal>

#include "data/sampler.h"
#include "train/generate.h"
#include "train/weights.h"

namespace millrace {
namespace {

std::atomic<int> stop_signals{0};
extern "C" void ask_to_stop(int) { stop_signals.fetch_add(1); }

// Takes SIGINT and SIGTERM while the loop runs: the first finishes the step, the second ends the
// process.
class StopSignals {
 public:
  StopSignals() {
    stop_signals = 0;
    struct sigaction action {};
    action.sa_handler = ask_to_stop;
    action.sa_flags = static_cast<int>(SA_RESETHAND);
    sigaction(SIGINT, &action, &interrupt_);
    sigaction(SIGTERM, &action, &terminate_);
  }
  ~StopSignals() {
    sigaction(SIGINT, &interrupt_, nullptr);
    sigaction(SIGTERM, &terminate_, nullptr);
  }
  bool asked() const { return stop_signals > 0; }

 private:
  struct sigaction interrupt_ {
  }, terminate_{};
};

class Loop {
 public:
  Loop(const Model& model, const Settings& settings, const TextData& data, Backend& backend,
       const Programs& programs, RunFolder* run, TrainObserver& observer)
      : model_(model),
        s_(settings),
        data_(data),
        run_(run),
        observer_(observer),
        session_(backend, programs.plans()),
        sampler_(static_cast<int64_t>(data.train.size()), settings.max_length,
                 static_cast<uint64_t>(settings.seed), settings.sampling == "random"),
        eval_begins_(sequential_begins(static_cast<int64_t>(data.validation.size()),
                                       settings.max_length,
                                       settings.max_length - settings.eval_context,
                                       settings.max_eval_batches * settings.batch_size)),
        total_(planned_steps(settings, data)),
        tokens_(static_cast<size_t>(settings.batch_size * settings.max_length)),
        targets_(tokens_.size()),
        begins_(static_cast<size_t>(settings.batch_size)) {
    initialize(session_, model, static_cast<uint64_t>(settings.seed));
  }

  TrainResult run() {
    TrainResult result;
    StopSignals signals;
    Ledger& ledger = result.ledger;
    ledger = Ledger();
    const int64_t start = now_ns();
    const int64_t eval_every =
        s_.eval_every > 0 ? s_.eval_every : std::max<int64_t>(1, (total_ + 4) / 5);
    const double tokens_per_update =
        static_cast<double>(s_.batch_size * s_.max_length * s_.grad_accum);
    result.best_validation_loss = INFINITY;
    result.validation_loss = NAN;
    double window_loss = 0, update_seconds = 0;
    int64_t window_steps = 0, window_start = start, window_wait = 0, in_a_row = 0;
    std::vector<double> step_seconds;
    for (int64_t step = 0; step < total_ && !signals.asked(); ++step) {
      const int64_t step_start = now_ns();
      const auto [loss, norm] = update(step, ledger);
      step_seconds.push_back(seconds_since(step_start));
      update_seconds += step_seconds.back();
      result.losses.push_back(loss);
      if (step == 0) result.first_loss = loss;
      result.last_loss = loss;
      result.steps = step + 1;
      window_loss += loss;
      ++window_steps;
      if (std::isfinite(norm)) {
        in_a_row = 0;
      } else {
        ++result.skipped_updates;
        forget_accumulated();
        observer_.note(
            fmt::format("update {}: gradient norm is {}; nothing was written", step + 1, norm));
        if (++in_a_row == 3)
          throw Error({.code = ErrorCode::diverged,
                       .what = "training diverged: three updates in a row had a gradient norm that "
                               "is not finite",
                       .where = fmt::format("update {}", step + 1),
                       .got = fmt::format("loss {}, gradient norm {}", loss, norm),
                       .remedy = "a lower training.learning_rate, more training.warmup_steps, or "
                                 "training.gradient_clip=1"});
      }
      const bool last = step + 1 == total_;
      if ((step + 1) % s_.log_interval == 0 || last) {
        OwnerScope logging(ledger, Owner::logging);
        const double seconds = seconds_since(window_start), elapsed = seconds_since(start);
        StepReport report{
            step + 1,
            total_,
            window_loss / static_cast<double>(window_steps),
            norm,
            rate(step),
            tokens_per_update * static_cast<double>(window_steps) / seconds,
            elapsed,
            elapsed / static_cast<double>(step + 1) * static_cast<double>(total_ - step - 1),
            static_cast<double>(ledger.ns(Owner::input_wait) - window_wait) * 1e-9 / seconds};
        observer_.step(report);
        if (run_)
          run_->metrics(
              "train", step + 1,
              {{"train/loss", report.loss},
               {"train/grad_norm", norm},
               {"train/learning_rate", report.learning_rate},
               {"train/tokens_seen", tokens_per_update * static_cast<double>(step + 1)},
               {"throughput/tokens_per_sec", report.tokens_per_second},
               {"time/step", seconds / static_cast<double>(window_steps)},
               {"time/input_wait", report.input_wait_share},
               {"memory/predicted_peak_bytes", static_cast<double>(session_.allocated_bytes())}});
        window_loss = 0;
        window_steps = 0;
        window_start = now_ns();
        window_wait = ledger.ns(Owner::input_wait);
      }
      if ((step + 1) % eval_every == 0 || last) {
        result.validation_loss = evaluate(ledger);
        result.best_validation_loss = std::min(result.best_validation_loss, result.validation_loss);
        OwnerScope logging(ledger, Owner::logging);
        observer_.evaluated(step + 1, result.validation_loss);
        if (run_)
          run_->metrics("eval", step + 1,
                        {{"eval/loss", result.validation_loss},
                         {"eval/perplexity", std::exp(result.validation_loss)}});
        window_start = now_ns();
      }
    }
    result.stopped = result.steps < total_;
    if (run_) {
      OwnerScope checkpoint(ledger, Owner::checkpoint);
      result.checkpoint = run_->path() / "checkpoints" / fmt::format("checkpoint-{}", result.steps);
      save_model(result.checkpoint, session_, model_, data_.tokenizer->to_json());
    }
    ledger.change(Owner::residual);
    result.seconds = seconds_since(start);
    result.tokens_per_second =
        update_seconds > 0 ? tokens_per_update * static_cast<double>(result.steps) / update_seconds
                           : 0;
    if (!step_seconds.empty()) {
      std::nth_element(step_seconds.begin(),
                       step_seconds.begin() + static_cast<std::ptrdiff_t>(step_seconds.size() / 2),
                       step_seconds.end());
      result.median_step_seconds = step_seconds[step_seconds.size() / 2];
    }
    return result;
  }

  Session& session() { return session_; }

 private:
  double rate(int64_t step) const {
    return learning_rate_at(s_.schedule, s_.optimizer.learning_rate, step, total_);
  }

  // One update: grad_accum micro-batches. The loss scale is one over all tokens of the update, so
  // that the result does not depend on how the batch is cut.
  std::pair<double, double> update(int64_t step, Ledger& ledger) {
    const float scale = 1.0f / static_cast<float>(s_.batch_size * s_.max_length * s_.grad_accum);
    const auto learning_rate = static_cast<float>(rate(step)),
               number = static_cast<float>(step + 1);
    double loss = 0;
    for (int64_t micro = 0; micro < s_.grad_accum; ++micro) {
      const bool last = micro + 1 == s_.grad_accum;
      {
        OwnerScope input(ledger, Owner::input_wait);
        for (int64_t i = 0; i < s_.batch_size; ++i)
          begins_[static_cast<size_t>(i)] =
              sampler_.begin_of((step * s_.grad_accum + micro) * s_.batch_size + i);
        fill_batch(data_.train, begins_, s_.max_length, tokens_.data(), targets_.data());
        write_batch(scale);
        if (session_.has("random_key")) {
          const auto seed = static_cast<uint64_t>(s_.seed);
          const int32_t key[4] = {static_cast<int32_t>(seed), static_cast<int32_t>(seed >> 32),
                                  static_cast<int32_t>(step), static_cast<int32_t>(micro)};
          session_.write<int32_t>("random_key", key);
        }
        const float beta = micro == 0 ? 0.0f : 1.0f;
        if (!last) session_.write<float>("accumulate_beta", std::span(&beta, 1));
        session_.write<float>("learning_rate", std::span(&learning_rate, 1));
        session_.write<float>("step", std::span(&number, 1));
      }
      const size_t plan = last ? kStepPlan : kAccumulatePlan;
      session_.run(plan, &ledger);
      loss += session_.scalar_output(plan, "loss");
    }
    return {loss, session_.scalar_output(kStepPlan, "grad_norm")};
  }

  void write_batch(float scale) {
    session_.write<int32_t>("tokens", tokens_);
    session_.write<int32_t>("targets", targets_);
    session_.write<float>("loss_scale", std::span(&scale, 1));
  }

  // A non-finite micro-batch must not live on in the gradient buffers.
  void forget_accumulated() {
    for (const Parameter& p : model_.parameters())
      if (session_.has("gradient." + p.name))
        session_.write<float>("gradient." + p.name,
                              std::vector<float>(static_cast<size_t>(p.shape.numel())));
  }

  // Mean negative log-likelihood over the validation windows; the last batch is filled up with
  // ignored targets.
  double evaluate(Ledger& ledger) {
    Ledger inside;  // evaluation's own node times do not mix with training's
    OwnerScope eval(ledger, Owner::eval);
    const auto windows = static_cast<int64_t>(eval_begins_.size());
    double sum = 0;
    int64_t scored = 0;
    for (int64_t first = 0; first < windows; first += s_.batch_size) {
      const int64_t count = std::min(s_.batch_size, windows - first);
      std::fill(tokens_.begin(), tokens_.end(), 0);
      std::fill(targets_.begin(), targets_.end(), -1);
      fill_batch(
          data_.validation,
          std::span(eval_begins_).subspan(static_cast<size_t>(first), static_cast<size_t>(count)),
          s_.max_length, tokens_.data(), targets_.data());
      for (int64_t i = 0; i < count; ++i)
        if (first + i > 0)
          std::fill_n(targets_.begin() + static_cast<std::ptrdiff_t>(i * s_.max_length),
                      s_.eval_context, -1);
      scored += count * (s_.max_length - s_.eval_context) + (first == 0 ? s_.eval_context : 0);
      write_batch(1.0f / static_cast<float>(s_.max_length));
      session_.run(kEvaluatePlan, &inside);
      sum += session_.scalar_output(kEvaluatePlan, "loss") * static_cast<double>(s_.max_length);
    }
    return scored > 0 ? sum / static_cast<double>(scored) : NAN;
  }

  const Model& model_;
  const Settings& s_;
  const TextData& data_;
  RunFolder* run_;
  TrainObserver& observer_;
  Session session_;
  WindowSampler sampler_;
  std::vector<int64_t> eval_begins_;
  int64_t total_;
  std::vector<int32_t> tokens_, targets_;
  std::vector<int64_t> begins_;
};

std::string sample_text(const Settings& s, const TextData& data, Session& session) {
  std::vector<int32_t> prompt;
  const auto shown = std::min<std::ptrdiff_t>(std::min<std::ptrdiff_t>(16, s.max_length),
                                              static_cast<std::ptrdiff_t>(data.validation.size()));
  if (s.sample_prompt.empty())
    prompt.assign(data.validation.begin(), data.validation.begin() + shown);
  else
    data.tokenizer->encode(s.sample_prompt, "sample.prompt", prompt);
  return data.tokenizer->decode(generate(session, {kPrefillPlan, kDecodePlan, s.max_length},
                                         data.tokenizer->vocab_size(), prompt,
                                         {.max_tokens = s.sample_length,
                                          .temperature = s.sample_temperature,
                                          .seed = static_cast<uint64_t>(s.seed)})
                                    .tokens);
}

}  // namespace

int64_t planned_steps(const Settings& s, const TextData& data) {
  if (s.max_steps > 0) return s.max_steps;
  const auto windows =
      static_cast<int64_t>((data.train.size() - 1) / static_cast<size_t>(s.max_length));
  return std::max<int64_t>(1, windows / (s.batch_size * s.grad_accum)) * s.num_epochs;
}

TrainResult train(const Model& model, const Settings& settings, const TextData& data,
                  Backend& backend, const Programs& programs, RunFolder* run,
                  TrainObserver& observer) {
  Loop loop(model, settings, data, backend, programs, run, observer);
  TrainResult result = loop.run();
  if (run && settings.sample_length > 0 && !result.stopped)
    result.sample = sample_text(settings, data, loop.session());
  return result;
}

}  // namespace millrace
