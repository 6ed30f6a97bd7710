#include "doctor/profile.h"

#include <algorithm>
#include <numeric>

namespace millrace {
namespace {

// Updates behind the measured ones, in which what comes seldom comes once.
constexpr int64_t kTail = 4;
// Comes so often that the measured updates see enough of it.
bool is_frequent(double every, int64_t updates) {
  return every > 0 && 4 * every <= static_cast<double>(updates);
}

class ProfileObserver : public TrainObserver {
 public:
  ProfileObserver(const ProfileOptions& options, const Backend& backend, Timeline& timeline)
      : options_(options), backend_(backend), timeline_(timeline) {}

  void updated(const UpdateReport& update, Ledger& ledger) override {
    const int64_t step = update.step, end = options_.warm_up + options_.updates;
    ledger.change(ledger.current());
    if (step > options_.warm_up && step <= end) {
      times.push_back(static_cast<double>(now_ns() - last_) * 1e-9);
      places += update.places;
      useful += update.useful;
    }
    if (step == options_.warm_up) {
      start_energy_ = energy();
      start = ledger;
    }
    if (step == end - std::min(options_.pictured, options_.updates)) ledger.timeline = &timeline_;
    if (step == end) {
      ledger.timeline = nullptr;
      stop = ledger;
      stop_energy_ = energy();
    }
    if (step == end + kTail) tail = ledger.since(stop);
    last_ = now_ns();
  }
  void evaluated(int64_t, const Metrics&, bool) override { ++validations; }
  std::optional<double> watts() const {
    if (!start_energy_.joules || !stop_energy_.joules) return std::nullopt;
    const double drawn = (*stop_energy_.joules - *start_energy_.joules) /
                         (static_cast<double>(stop_energy_.ns - start_energy_.ns) * 1e-9);
    return drawn > 0 ? std::optional(drawn) : std::nullopt;
  }

  std::vector<double> times;
  Ledger start, stop, tail;
  int64_t validations = 0, places = 0, useful = 0;

 private:
  struct Energy {
    int64_t ns = 0;
    std::optional<double> joules;
  };
  Energy energy() const {
    const auto vitals = backend_.vitals();
    return {now_ns(), vitals ? vitals->joules : std::nullopt};
  }
  ProfileOptions options_;
  const Backend& backend_;
  Energy start_energy_, stop_energy_;
  Timeline& timeline_;
  int64_t last_ = 0;
};

// The pace of what comes whenever the first of several durations is over, in updates; without the
// time of an update, of those that are not in seconds.
double pace(const std::vector<Duration>& every, const RunLength& length, double update_seconds) {
  double least = 0;
  for (const Duration& d : every) {
    if (d.count <= 0) continue;
    const bool timed = d.unit == Duration::Unit::seconds;
    if (timed && update_seconds <= 0) continue;
    const double updates = timed ? d.count / update_seconds : length.steps(d);
    if (updates > 0 && (least == 0 || updates < least)) least = updates;
  }
  return least;
}

// FLOP/s of the products that ran.
double product_rate(const Ledger& ledger) {
  for (const LedgerRow& row : rows_by_op(ledger))
    if (row.name == "matmul" && row.ns > 0) return 1e9 * row.flops / static_cast<double>(row.ns);
  return 0;
}

double mean(std::span<const double> values) {
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

// Thirds of the run should agree: half of what they do not, of the mean.
double noise_of(std::span<const double> times) {
  if (times.size() < 3) return 0;
  const size_t third = times.size() / 3;
  double low = 0, high = 0;
  for (size_t i = 0; i < 3; ++i) {
    const double m = mean(times.subspan(i * third, i == 2 ? times.size() - 2 * third : third));
    low = i == 0 ? m : std::min(low, m);
    high = std::max(high, m);
  }
  return 0.5 * (high - low) / mean(times);
}

}  // namespace

int64_t warm_up_of(const Backend& backend, const Programs& programs) {
  return backend.on_host() ? 3 : 10 + 3 * static_cast<int64_t>(programs.steps.size());
}

double Profile::owner_seconds(Owner owner) const {
  const auto is = [&](std::initializer_list<Owner> owners) {
    return std::ranges::find(owners, owner) != owners.end();
  };
  const Occasion* occasion = is({Owner::eval, Owner::eval_texts}) ? &validation
                             : is({Owner::checkpoint})            ? &checkpoint
                                                                  : nullptr;
  if (!occasion || is_frequent(occasion->every_updates, options.updates))
    return static_cast<double>(ledger.ns(owner)) * 1e-9 / static_cast<double>(options.updates);
  if (owner == Owner::checkpoint) return checkpoint.per_update();
  // Loss and texts share validation as they did in the whole run.
  const auto texts = static_cast<double>(result.ledger.ns(Owner::eval_texts)),
             all = static_cast<double>(result.ledger.ns(Owner::eval)) + texts;
  const double share = all > 0 ? texts / all : 0;
  return validation.per_update() * (owner == Owner::eval_texts ? share : 1 - share);
}

double Profile::seconds_with_occasions() const {
  double sum = 0;
  for (size_t i = 0; i < kOwners; ++i) sum += owner_seconds(static_cast<Owner>(i));
  return sum;
}

Profile profile(const Model& model, Settings settings, const TrainingData& data, Backend& backend,
                const Programs& programs, RunFolder& run, const ProfileOptions& options,
                Timeline& timeline) {
  const RunLength length = data.run_length(settings);
  Profile p;
  p.options = options;
  p.updates_of_run = length.total;
  // What the config leaves open follows from the length of its run, not of this one.
  const auto validated = validation_pace(settings, length), saved = settings.checkpoint.every;
  p.validation.every_updates = pace(validated, length, 0);
  p.checkpoint.every_updates = pace(saved, length, 0);
  const Duration once{static_cast<double>(options.warm_up + options.updates)};
  settings.eval_every = validated;
  if (!is_frequent(p.validation.every_updates, options.updates)) settings.eval_every = {once};
  if (!is_frequent(p.checkpoint.every_updates, options.updates)) settings.checkpoint.every = {once};
  settings.max_steps = options.warm_up + options.updates + kTail;
  settings.max_tokens = 0;
  settings.sample_length = 0;
  settings.early_stop_patience = 0;
  ProfileObserver observer(options, backend, timeline);
  p.result = train(model, settings, data, backend, programs, &run, observer);
  if (p.result.stopped)
    throw Error({.code = ErrorCode::stopped, .what = "stopped before all updates were measured"});
  p.update_seconds = observer.times;
  p.mean_loss = mean(
      std::span(p.result.losses)
          .subspan(static_cast<size_t>(options.warm_up), static_cast<size_t>(options.updates)));
  p.seconds = mean(p.update_seconds);
  p.noise = noise_of(p.update_seconds);
  p.ledger = observer.stop.since(observer.start);
  p.places_per_update = static_cast<double>(observer.places) / static_cast<double>(options.updates);
  p.useful_share = static_cast<double>(observer.useful) / static_cast<double>(observer.places);
  for (const NodeTimes& t : p.ledger.node_times())
    p.flops_per_update +=
        t.plan->cost.flops * static_cast<double>(t.runs) / static_cast<double>(options.updates);
  auto seconds_of = [](const Ledger& ledger, std::initializer_list<Owner> owners) {
    int64_t ns = 0;
    for (const Owner owner : owners) ns += ledger.ns(owner);
    return static_cast<double>(ns) * 1e-9;
  };
  p.validation.seconds = seconds_of(p.result.ledger, {Owner::eval, Owner::eval_texts}) /
                         static_cast<double>(std::max<int64_t>(1, observer.validations));
  p.checkpoint.seconds = seconds_of(observer.tail, {Owner::checkpoint});
  // A pace in seconds is known now.
  p.validation.every_updates = pace(validated, length, p.seconds);
  p.checkpoint.every_updates = pace(saved, length, p.seconds);
  p.watts = observer.watts();
  p.ceiling = options.ceiling;
  // Products that are faster say that it was measured while something else ran; it is the best that
  // was seen, also where something else runs now.
  const double seen = product_rate(p.ledger);
  if (p.ceiling.flops <= 0 || p.ceiling.bytes <= 0 || seen > p.ceiling.flops) {
    const Ceiling now = backend.measure_ceiling(programs.passes.precision);
    p.ceiling = {std::max({now.flops, p.ceiling.flops, now.flops > 0 ? seen : 0}),
                 std::max(now.bytes, p.ceiling.bytes)};
    p.ceiling_is_new = now.flops > 0 && now.bytes > 0;
  }
  return p;
}

}  // namespace millrace
