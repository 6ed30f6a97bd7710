#include "train/trainer.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <deque>
#include <functional>
#include <set>
#include <utility>

#include "core/process.h"
#include "core/text.h"
#include "data/loader.h"
#include "model/tuning.h"
#include "train/device_watch.h"
#include "train/evaluation.h"
#include "train/generate.h"
#include "train/health.h"
#include "train/signals.h"
#include "train/text_evaluation.h"
#include "train/update.h"
#include "train/weights.h"

namespace millrace {
namespace {

class Loop {
 public:
  Loop(const Model& model, const Settings& settings, const TrainingData& data, Backend& backend,
       const Programs& programs, RunFolder* run, TrainObserver& observer)
      : model_(model),
        s_(settings),
        data_(data),
        backend_(backend),
        programs_(programs),
        run_(run),
        observer_(observer),
        session_(backend, programs.plans()),
        length_(data.run_length(settings)),
        eval_every_(validation_pace(settings, length_)) {
    if (run)
      saver_.emplace(
          [this](const CheckpointContent& content, const std::function<void()>& state_read) {
            save_in_background(content, state_read);
          },
          [this](int64_t step, const Error* error) { save_finished(step, error); });
  }

  TrainResult run(const FoundCheckpoint* resume) {
    start_ns_ = window_ns_ = epoch_ns_ = saved_ns_ = now_ns();
    result_.ledger = Ledger();
    if (resume)
      load(*resume);
    else
      begin_anew();
    if (run_)
      run_->begin_metrics(resume ? state_.metrics_bytes : 0, state_.step, state_.seconds,
                          s_.tensorboard);
    earlier_seconds_ = state_.seconds;
    start_loader();
    if (backend_.runs_at_once() > s_.log_interval)
      note_once(
          fmt::format("updates are started one by one: training.steps_per_replay is {}, and there "
                      "is a report every {} (training.log_interval)",
                      backend_.runs_at_once(), s_.log_interval));
    epoch_ledger_ = window_ledger_ = owner_times();
    while (duties() && !finished() && !interrupted()) update();
    settle_updates(0);
    result_.stopped = !finished();
    result_.early_stopped = finished() && state_.step < length_.total;
    if (saver_) {
      const OwnerScope owner(result_.ledger, Owner::checkpoint);
      if (saved_step_ != state_.step) save();
      saver_->wait();
    }
    result_.ledger.change(Owner::residual);
    finish_result();
    return std::move(result_);
  }

  int64_t updates() const { return state_.step; }

  bool samples() const { return s_.sample_length > 0 && model_.logits_are_all(); }
  std::string sample() {
    const Tokenizer& tokenizer = data_.set.tokenizer();
    const std::vector<int32_t> prompt = data_.sample_prompt(s_, model_.takes());
    const WithAverage weights(*this);
    return tokenizer.decode(
        generate(session_,
                 {programs_.prefill_plan(), programs_.decode_plan(), s_.max_length,
                  model_.takes().pairs ? s_.max_source_length : 0, data_.set.target_start()},
                 tokenizer.vocab_size(), prompt,
                 {.max_tokens = s_.sample_length,
                  .temperature = s_.sample_temperature,
                  .seed = static_cast<uint64_t>(s_.seed)},
                 [&](int32_t token) { return !data_.set.records || !tokenizer.is_end(token); })
            .tokens);
  }

 private:
  // An update that a device has been given and that nobody has read the loss of.
  struct Started {
    std::unique_ptr<Late> results;
    UpdateReport report;
    size_t plan;
  };

  // While it lives the parameters are the averaged ones.
  struct WithAverage {
    explicit WithAverage(Loop& loop) : loop_(loop) { swap(); }
    ~WithAverage() { swap(); }
    WithAverage(const WithAverage&) = delete;
    WithAverage& operator=(const WithAverage&) = delete;

    void swap() {
      if (loop_.s_.ema_decay <= 0) return;
      for (const Parameter& p : loop_.model_.parameters()) {
        if (!p.trained) continue;
        const auto raw = loop_.session_.read<float>(p.name),
                   average = loop_.session_.read<float>("ema." + p.name);
        loop_.session_.write<float>(p.name, average);
        loop_.session_.write<float>("ema." + p.name, raw);
      }
      loop_.refresh();
    }
    Loop& loop_;
  };

  // Parameters were written: their 16-bit copies are to follow.
  void refresh() {
    if (!programs_.refresh.graph.nodes.empty()) session_.run(programs_.refresh_plan());
  }

  bool finished() const { return is_finished(state_, s_, length_); }
  bool interrupted() const {
    if (stop_asked()) return true;
    if (s_.stop_after.count <= 0) return false;
    return s_.stop_after.unit == Duration::Unit::seconds
               ? seconds_since(start_ns_) >= s_.stop_after.count
               : static_cast<double>(updates_) >= length_.steps(s_.stop_after);
  }
  double rate(int64_t step) const {
    return learning_rate_at(s_.schedule, s_.optimizer.learning_rate, step, length_);
  }
  double useful_share() const {
    return state_.places > 0
               ? static_cast<double>(state_.tokens) / static_cast<double>(state_.places)
               : 1;
  }
  double epochs_done() const { return static_cast<double>(state_.step) / length_.steps_per_epoch; }

  void begin_anew() {
    initialize(session_, model_, static_cast<uint64_t>(s_.seed), s_.tuning.init_from);
    for (const Node& n : programs_.step().graph.nodes)
      if (n.leaf == Leaf::optimizer_state) {
        const bool sum = n.name.starts_with("sum.");  // adagrad's
        const auto value = static_cast<float>(sum ? s_.optimizer.initial_accumulator : 0);
        fill_leaf(session_, n.name,
                  [&](int64_t, std::span<float> out) { std::fill(out.begin(), out.end(), value); });
      }
    if (session_.has(kLossScaling)) write_scalar(kLossScaling, kFirstLossScaling);
    if (s_.ema_decay > 0)
      for (const Parameter& p : model_.parameters())
        if (p.trained) session_.write<float>("ema." + p.name, session_.read<float>(p.name));
    refresh();
    state_ = TrainerState();
    state_.data_digest = data_.digest();
  }

  void load(const FoundCheckpoint& from) {
    const OwnerScope owner(result_.ledger, Owner::checkpoint);
    state_ = TrainerState::of_checkpoint(from.folder);
    if (const std::string was = state_.metric_name; state_.judge_by(s_.checkpoint.metric))
      note_once(fmt::format("the best by {} so far does not compare with {}: it begins anew", was,
                            s_.checkpoint.metric));
    load_checkpoint_tensors(from.folder, programs_.step(), session_, model_);
    refresh();
    saved_step_ = state_.step;
  }

  // What is due after an update, as far as it is not done yet: a run that was stopped in the middle
  // of it goes on here. False: stopped again.
  bool duties() {
    if (saver_) saver_->poll();
    const int64_t step = state_.step;
    const bool last = step >= length_.total, report = step % s_.log_interval == 0 || last,
               epoch = length_.due({{1, Duration::Unit::epochs}}, step),
               evaluation = length_.due(eval_every_, step) || last,
               sampling = samples() && length_.due(s_.sample_every, step);
    // Nobody asks for the loss of the last update: a device goes on with the next.
    if (step > 0 && !report && !epoch && !evaluation && !sampling && !(run_ && save_due()))
      return true;
    settle_updates(0);
    if (state_.step != step) return true;  // rolled back: what was due is not
    if (step > 0) {
      if (state_.window.steps > 0 && report) report_step();
      if (state_.epoch.steps > 0 && epoch) report_epoch();
      if (state_.evaluated_step < step && evaluation)
        if (!evaluate()) return false;
      if (state_.sampled_step < step && sampling) {
        const BetweenSteps pause(*this);
        const OwnerScope writing(result_.ledger, Owner::sample);
        state_.sampled_step = step;
        const std::string text = sample();
        observer_.sampled(step, text);
        if (run_) run_->sample(step, text);
      }
    }
    if (run_ && save_due()) save();
    if (run_)
      if (const std::string fault = run_->take_fault(); !fault.empty()) note(fault);
    result_.ledger.settle_host();
    return true;
  }

  bool save_due() {
    save_asked_ = take_save_request() || save_asked_;
    if (saved_step_ == state_.step) return save_asked_ = false;
    if (save_asked_ || best_is_new_) return true;
    for (const Duration& d : s_.checkpoint.every)
      if (d.unit == Duration::Unit::seconds && d.count > 0 && seconds_since(saved_ns_) >= d.count)
        return true;
    return state_.step > 0 && length_.due(s_.checkpoint.every, state_.step);
  }

  // Batches are made ahead from where the run stands in the data.
  void start_loader() {
    LoaderOptions options;
    options.workers = static_cast<int>(s_.data.num_workers);
    options.most_workers = usable_cores();
    options.prefetch_factor = static_cast<int>(s_.data.prefetch_factor);
    loader_.emplace(*data_.batches, state_.samples, s_.grad_accum, options);
  }

  // Starts one update; on a device what it gave is read while the next one runs.
  void update() {
    if (started_.empty()) settled_ns_ = now_ns();
    const UpdateBatches* batches = nullptr;
    {
      const OwnerScope waiting(result_.ledger, Owner::input_wait);
      batches = &loader_->next();
    }
    // A step in one piece is faster, and its optimizer waits for nobody as a rule.
    std::function<void()> before_optimizer;
    if (saver_ && saver_->is_reading())
      before_optimizer = [this] { wait_until_saved_state_is_read(); };
    const size_t plan =
        start_update(session_, programs_, s_, *batches,
                     {state_.step, state_.samples, data_.batches->stride(), rate(state_.step)},
                     result_.ledger, before_optimizer);
    static const std::string kResults[] = {"loss", "grad_norm"};
    state_.step += 1;
    ++updates_;
    started_.push_back(
        {session_.fetch(plan, kResults), {state_.step, batches->places, batches->useful}, plan});
    state_.samples += data_.batches->stride() * s_.grad_accum;
    state_.tokens += batches->useful;
    state_.places += batches->places;
    window_places_ += batches->places;
    places_ += batches->places;
    // A device works on some while others are put together.
    settle_updates(backend_.on_host() ? 0 : static_cast<size_t>(2 * backend_.runs_at_once() - 1));
  }

  // Reads what updates gave until only `keep` are under way, and what else is there.
  void settle_updates(size_t keep) {
    while (started_.size() > keep) {
      {
        const OwnerScope waiting(result_.ledger, Owner::idle_launch);
        (void)started_.front().results->wait();
      }
      size_t there = 1;
      while (there < started_.size() && started_[there].results->is_there()) ++there;
      // Behind it: an update that is taken from the list has its time in the ledger.
      session_.settle(result_.ledger);
      const double seconds =
          seconds_since(std::exchange(settled_ns_, now_ns())) / static_cast<double>(there);
      // A roll-back throws away the rest.
      for (; there > 0 && !started_.empty(); --there) {
        Started update = std::move(started_.front());
        started_.pop_front();
        update.report.last = there == 1;
        settle_update(update, seconds);
      }
    }
  }

  void settle_update(const Started& update, double seconds) {
    const std::vector<float> values = update.results->wait();
    note_once(session_.note(update.plan));
    const double loss = values[0];
    norm_ = values[1];
    step_plan_ = update.plan;
    step_seconds_.push_back(seconds);
    if (update.report.step == 1) state_.first_loss = loss;
    state_.last_loss = loss;
    result_.losses.push_back(loss);
    if (std::isfinite(loss) && std::isfinite(norm_))
      healthy(update.report.step, loss);
    else
      not_finite(update.report.step, loss);
    observer_.updated(update.report, result_.ledger);
    loader_->watch(result_.ledger.timeline);
  }

  void write_scalar(const char* leaf, float value) {
    session_.write<float>(leaf, std::span(&value, 1));
  }

  void healthy(int64_t step, double loss) {
    state_.skipped_in_a_row = 0;
    state_.window.add(loss);
    state_.epoch.add(loss);
    if (s_.health.spike_sigma <= 0) return;
    const double sigma = spike_sigma(state_.losses, loss, s_.health.spike_sigma);
    if (sigma > s_.health.spike_sigma)
      note(fmt::format("update {}: loss {:.4f} is {:.1f} standard deviations above the last ones",
                       step, loss, sigma));
  }

  // Nothing was written to weights and moments: the update's own guard saw to that.
  void not_finite(int64_t step, double loss) {
    ++state_.skipped;
    // In fp16 the scale of the loss, which the update has halved, is the first to blame.
    const double scaling = session_.has(kLossScaling) ? session_.read<float>(kLossScaling)[0] : 0;
    if (scaling >= 1) {
      note(
          fmt::format("update {}: gradients beyond fp16; nothing was written, the loss is now "
                      "scaled by {:.0f}",
                      step, scaling));
      return clear_gradients();
    }
    ++state_.skipped_in_a_row;
    const bool enough = state_.skipped_in_a_row >= s_.health.max_skipped;
    const Session::Nonfinite culprit =
        enough ? session_.first_nonfinite(step_plan_) : Session::Nonfinite();
    note(fmt::format("update {}: loss {}, gradient norm {}; nothing was written", step, loss,
                     norm_));
    if (run_) run_->metrics("skipped", step, {{"train/loss", loss}, {"train/grad_norm", norm_}});
    clear_gradients();
    if (!enough) return;
    if (state_.rollbacks >= s_.health.max_rollbacks) {
      if (saver_) saver_->wait();
      const bool weights = culprit.leaf == Leaf::parameter || culprit.leaf == Leaf::shadow;
      throw Error(
          {.code = ErrorCode::diverged,
           .what = fmt::format("training diverged: {} updates in a row were not finite, after {} "
                               "roll-backs",
                               state_.skipped_in_a_row, state_.rollbacks),
           .where = fmt::format("update {}; the first node that is not finite: {}", step,
                                culprit.text.empty() ? "none when run again" : culprit.text),
           .expected = "a finite loss and gradient norm",
           .got = fmt::format("loss {}, gradient norm {}", loss, norm_),
           .remedy = weights ? fmt::format("other weights: these are not finite in "
                                           "training.precision={}, whatever the learning rate",
                                           s_.precision)
                             : "a lower training.learning_rate, more training.warmup, or "
                               "training.gradient_clip=1"});
    }
    roll_back(culprit.text);
  }

  // What is not finite must not live on in the gradient buffers.
  void clear_gradients() {
    for (const Parameter& p : model_.parameters())
      if (session_.has("gradient." + p.name))
        session_.write<float>("gradient." + p.name,
                              std::vector<float>(static_cast<size_t>(p.shape.numel())));
    if (session_.has("gradient.loss")) write_scalar("gradient.loss", 0);
  }

  // Back to the last state on disk, past the data that did it.
  void roll_back(const std::string& culprit) {
    const OwnerScope owner(result_.ledger, Owner::checkpoint);
    while (!started_.empty()) {  // was built on what is thrown away
      started_.front().results->wait();
      started_.pop_front();
    }
    const TrainerState before = state_;
    std::optional<FoundCheckpoint> from;
    if (saver_) saver_->wait();
    if (run_) from = run_->checkpoints().newest([this](const std::string& text) { note(text); });
    if (from)
      load(*from);
    else
      begin_anew();
    state_.samples = before.samples;
    state_.skipped = before.skipped;
    state_.skipped_in_a_row = 0;
    state_.rollbacks = before.rollbacks + 1;
    saved_step_ = -1;  // the state is not the one on disk: it has moved on in the data
    note(fmt::format("rolled back from update {} to {}{}; the data in between is passed over",
                     before.step, state_.step,
                     culprit.empty() ? "" : ", first bad node " + culprit));
    if (run_)
      run_->metrics("rollback", before.step,
                    {{"train/rollback_to", static_cast<double>(state_.step)}});
  }

  void report_step() {
    const OwnerScope logging(result_.ledger, Owner::logging);
    const double seconds = seconds_since(window_ns_), elapsed = seconds_since(start_ns_);
    const auto steps = static_cast<double>(state_.window.steps),
               here = static_cast<double>(result_.losses.size());
    const StepReport report{
        state_.step,
        length_.total,
        state_.window.mean(),
        norm_,
        rate(state_.step - 1),
        static_cast<double>(window_places_) / seconds,
        seconds / steps,
        useful_share(),
        earlier_seconds_ + elapsed,
        here > 0 ? elapsed / here * static_cast<double>(length_.total - state_.step) : 0,
        owner_seconds(Owner::input_wait, window_ledger_) / seconds};
    observer_.step(report);
    if (run_) {
      run_->log(describe(report));
      Metrics metrics = metrics_of(report);
      metrics.merge(Metrics{
          {"train/epoch", epochs_done()},
          {"train/tokens_seen", static_cast<double>(state_.tokens)},
          {"throughput/loader_workers", static_cast<double>(loader_->workers())},
          {"memory/predicted_peak_bytes", static_cast<double>(session_.allocated_bytes())}});
      for (size_t i = 0; i < kOwners; ++i) {
        const auto owner = static_cast<Owner>(i);
        metrics[fmt::format("time/{}", owner_name(owner))] =
            owner_seconds(owner, window_ledger_) / seconds;
      }
      note_once(device_.add_to(metrics, places_));
      run_->metrics("train", report.step, metrics);
    }
    state_.window = {};
    window_places_ = 0;
    window_ns_ = now_ns();
    window_ledger_ = owner_times();
  }

  using OwnerTimes = std::array<int64_t, kOwners>;
  OwnerTimes owner_times() const {
    OwnerTimes times;
    for (size_t i = 0; i < kOwners; ++i) times[i] = result_.ledger.ns(static_cast<Owner>(i));
    return times;
  }
  double owner_seconds(Owner owner, const OwnerTimes& since) const {
    return static_cast<double>(result_.ledger.ns(owner) - since[static_cast<size_t>(owner)]) * 1e-9;
  }

  void report_epoch() {
    const OwnerScope logging(result_.ledger, Owner::logging);
    EpochReport report;
    report.epoch = std::llround(epochs_done());
    report.epochs = std::max<int64_t>(
        report.epoch, std::llround(static_cast<double>(length_.total) / length_.steps_per_epoch));
    report.loss = state_.epoch.mean();
    report.seconds = seconds_since(epoch_ns_);
    report.samples_per_second = static_cast<double>(state_.epoch.steps) *
                                static_cast<double>(s_.batch_size * s_.grad_accum) / report.seconds;
    for (size_t i = 0; i < kOwners; ++i) {
      const auto owner = static_cast<Owner>(i);
      const double share = owner_seconds(owner, epoch_ledger_) / report.seconds;
      if (share > 0) report.shares.emplace_back(owner_name(owner), share);
    }
    std::sort(report.shares.begin(), report.shares.end(),
              [](const auto& a, const auto& b) { return a.second > b.second; });
    observer_.epoch(report);
    if (run_) {
      run_->log(describe(report));
      run_->metrics("epoch", state_.step, metrics_of(report));
    }
    state_.epoch = {};
    epoch_ns_ = now_ns();
    epoch_ledger_ = owner_times();
  }

  // What happens while it lives is no part of the steps that the next log line tells about.
  class BetweenSteps {
   public:
    explicit BetweenSteps(Loop& loop) : loop_(loop), begin_(now_ns()), times_(loop.owner_times()) {}
    ~BetweenSteps() {
      const OwnerTimes now = loop_.owner_times();
      for (size_t i = 0; i < kOwners; ++i) loop_.window_ledger_[i] += now[i] - times_[i];
      loop_.window_ns_ += now_ns() - begin_;
    }
    BetweenSteps(const BetweenSteps&) = delete;
    BetweenSteps& operator=(const BetweenSteps&) = delete;

   private:
    Loop& loop_;
    int64_t begin_;
    OwnerTimes times_;
  };

  bool evaluate() {
    const BetweenSteps pause(*this);
    const int64_t begin = now_ns();
    std::optional<Metrics> validated, texts = Metrics();
    {
      const OwnerScope eval(result_.ledger, Owner::eval);
      const WithAverage weights(*this);
      validated = validate(data_, session_, programs_.evaluate_plan(), stop_asked, progress());
      if (validated && programs_.writes_texts()) texts = write_texts();
    }
    if (!validated || !texts) return false;
    Metrics& metrics = *validated;
    metrics.merge(*texts);
    const OwnerScope logging(result_.ledger, Owner::logging);
    saved_step_ = -1;  // a checkpoint of this step would now say more
    result_.validation_loss = metrics.at("eval/loss");
    const bool better = state_.add_evaluation(metrics.at(s_.checkpoint.metric), s_);
    if (better) best_is_new_ = s_.checkpoint.keep_best > 0;
    observer_.evaluated(state_.step, metrics, better);
    if (run_) {
      run_->log(describe_evaluation(state_.step, metrics, better));
      Metrics line = metrics;
      line["eval/runtime_s"] = seconds_since(begin);
      run_->metrics("eval", state_.step, line);
    }
    return true;
  }

  EvaluationProgress progress() {
    return [this](const char* what, int64_t done, int64_t all) {
      observer_.evaluating(what, done, all);
    };
  }

  // What the model writes for the first validation pairs; nothing when it is to stop.
  std::optional<Metrics> write_texts() {
    const OwnerScope writing(result_.ledger, Owner::eval_texts);
    refresh();  // an update keeps only those 16-bit copies that it reads itself
    BeamSearch beam(model_, session_, programs_.texts_plan(), validation_room(model_, s_),
                    validation_search(s_));
    return evaluate_texts(model_, data_, beam, s_.eval_texts, stop_asked, progress());
  }

  void save() {
    const OwnerScope owner(result_.ledger, Owner::checkpoint);
    CheckpointContent content;
    content.tensors = state_tensors(session_, programs_.step());
    try {
      state_.metrics_bytes = run_->sync_metrics();
    } catch (const Error& error) {
      note(error.what());
    }
    state_.seconds = earlier_seconds_ + seconds_since(start_ns_);
    state_.choices = backend_.choices();
    content.texts = {{kTrainerStateName, state_.to_json(length_.total, epochs_done())},
                     {model_file_names(model_).config, model_.external_config()},
                     {"config.resolved.yaml", run_->config()}};
    const TokenizerFile reading = data_.set.reading_file();
    content.texts[reading.name] = reading.bytes;
    if (!model_.takes().states) {
      const Tokenizer& tokenizer = data_.set.tokenizer();
      content.texts.merge(companions_of(tokenizer, !tokenizer.opening().empty(),
                                        data_.prompt_form(s_, model_.takes()), data_.companions));
    }
    content.manifest = {MILLRACE_VERSION, state_.step, programs_.step().hash(), {}, {}, {}};
    // Only the step that was validated carries the metric: these weights, that value.
    if (state_.evaluated_step == state_.step && std::isfinite(state_.last_metric)) {
      content.manifest.metric_name = s_.checkpoint.metric;
      content.manifest.metric = state_.last_metric;
    }
    saver_->start(std::move(content));  // waits when the last one is still being written
    saved_step_ = state_.step;
    saved_ns_ = now_ns();
    best_is_new_ = save_asked_ = false;
  }

  void wait_until_saved_state_is_read() {
    if (!saver_ || !saver_->is_reading()) return;
    const OwnerScope owner(result_.ledger, Owner::checkpoint);
    saver_->wait_until_read();
  }

  void save_in_background(const CheckpointContent& content,
                          const std::function<void()>& state_read) {
    const CheckpointSettings& c = s_.checkpoint;
    run_->checkpoints().commit(content, model_, state_read);
    try {
      run_->checkpoints().retain(c.keep_last, c.keep_best, c.metric, c.larger_is_better());
    } catch (const Error& error) {
      tidy_fault_ = error.what();  // the checkpoint itself is safe; the next one tidies up
    }
  }

  void save_finished(int64_t step, const Error* error) {
    if (!tidy_fault_.empty())
      note("old checkpoints stay for now: " + std::exchange(tidy_fault_, ""));
    if (error) {
      note(fmt::format("{}\n  training goes on; the next interval tries again", error->what()));
      result_.save_error = *error;
      if (saved_step_ == step) saved_step_ = -1;
      return;
    }
    result_.save_error.reset();
    observer_.saved(step);
    run_->log(fmt::format("checkpoint-{} is on disk", step));
  }

  void note(const std::string& text) {
    observer_.note(text);
    if (run_) run_->log(text);
  }
  void note_once(const std::string& text) {
    if (!text.empty() && noted_.insert(text).second) note(text);
  }

  void finish_result() {
    result_.steps = state_.step;
    result_.first_loss = state_.first_loss;
    result_.last_loss = state_.last_loss;
    if (state_.has_best) {
      result_.best_metric = state_.best_metric;
      result_.best_step = state_.best_step;
    }
    result_.skipped_updates = state_.skipped;
    result_.rollbacks = state_.rollbacks;
    result_.seconds = seconds_since(start_ns_);
    result_.all_seconds = earlier_seconds_ + result_.seconds;
    double seconds = 0;
    for (const double s : step_seconds_) seconds += s;
    if (seconds > 0) result_.tokens_per_second = static_cast<double>(places_) / seconds;
    result_.useful_share = useful_share();
    for (const WorkTimes& t : loader_->times())
      result_.ledger.background.push_back(
          {fmt::format("loader {}", result_.ledger.background.size() + 1), t.busy_ns, t.wait_ns,
           t.items});
    result_.median_step_seconds = median(step_seconds_);
    double flops = 0;
    for (const NodeTimes& t : result_.ledger.node_times())
      flops += t.plan->cost.flops * static_cast<double>(t.runs);
    if (seconds > 0) result_.flops_per_second = flops / seconds;
  }

  const Model& model_;
  const Settings& s_;
  const TrainingData& data_;
  Backend& backend_;
  const Programs& programs_;
  RunFolder* run_;
  TrainObserver& observer_;
  Session session_;
  RunLength length_;
  std::vector<Duration> eval_every_;
  std::optional<Loader> loader_;
  std::deque<Started> started_;
  int64_t updates_ = 0;     // started in this sitting
  int64_t settled_ns_ = 0;  // when the last one was read
  bool save_asked_ = false;
  std::set<std::string> noted_;
  DeviceWatch device_{backend_};
  size_t step_plan_ = 0;       // of the last update
  int64_t window_places_ = 0;  // since the last metric line
  int64_t places_ = 0;         // of this sitting

  TrainerState state_;
  TrainResult result_;
  std::array<int64_t, kOwners> window_ledger_{}, epoch_ledger_{};  // as they stood at the start
  std::vector<double> step_seconds_;
  double norm_ = 0, earlier_seconds_ = 0;
  int64_t start_ns_ = 0, window_ns_ = 0, epoch_ns_ = 0;
  int64_t saved_step_ = -1, saved_ns_ = 0;
  bool best_is_new_ = false;
  std::string tidy_fault_;                // written by the saver's thread, read when it is done
  std::optional<BackgroundSaver> saver_;  // the last member: its thread uses the others
};

}  // namespace

TrainResult train(const Model& model, const Settings& settings, const TrainingData& data,
                  Backend& backend, const Programs& programs, RunFolder* run,
                  TrainObserver& observer, const FoundCheckpoint* resume) {
  Loop loop(model, settings, data, backend, programs, run, observer);
  TrainResult result;
  try {
    result = loop.run(resume);
  } catch (const Error& error) {
    if (!backend.failed()) throw;
    ErrorFields fields = error.fields();
    fields.where = fmt::format("near update {}, {}", loop.updates(), fields.where);
    fields.remedy =
        "the checkpoints are as they were: --resume goes on; training.use_compile=false names the "
        "op";
    if (const auto vitals = backend.vitals(); vitals && vitals->shared())
      fields.remedy += fmt::format(
          "; others have {} of this device: try one that nobody shares",
          human_bytes(*vitals->others_bytes));
    throw Error(fields);
  }
  if (run && loop.samples() && !result.stopped) result.sample = loop.sample();
  // Kernels stay on a device once they are loaded: at the end, with the arena still there, it is
  // the most.
  if (const auto vitals = backend.vitals()) result.device_bytes = vitals->bytes;
  return result;
}

}  // namespace millrace
