#include "doctor/profile.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "core/clock.h"
#include "core/process.h"

namespace millrace {
namespace {

// Checkpoints that come so often run into each other: they belong to the measured updates.
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
    if (counting()) {
      places += update.places;
      sizes.push_back(update.places);
      useful += update.useful;
    }
    if (step == end - std::min(options_.pictured, options_.updates)) ledger.timeline = &timeline_;
    // The ledger has the time of all that came together: only behind the last of them it holds.
    if (!update.last) return;
    const int64_t now = now_ns();
    times.resize(sizes.size(),
                 static_cast<double>(now - last_) * 1e-9 /
                     static_cast<double>(std::max<size_t>(1, sizes.size() - times.size())));
    if (step >= options_.warm_up && first == 0) {
      start_energy_ = energy();
      start = ledger;
      first = step + 1;
    } else if (step >= end && counting()) {
      ledger.timeline = nullptr;
      stop = ledger;
      stop_energy_ = energy();
      stopped_ = step;
    } else if (step >= end + options_.tail) {
      tail = ledger.since(stop);
    }
    last_ = now_ns();
  }
  void evaluated(int64_t, const Metrics&, bool) override { ++validations; }
  void sampled(int64_t, const std::string&) override { ++samples; }
  std::optional<double> watts() const {
    if (!start_energy_.joules || !stop_energy_.joules) return std::nullopt;
    const double drawn = (*stop_energy_.joules - *start_energy_.joules) /
                         (static_cast<double>(stop_energy_.ns - start_energy_.ns) * 1e-9);
    return drawn > 0 ? std::optional(drawn) : std::nullopt;
  }

  std::vector<double> times;
  std::vector<int64_t> sizes;  // places of each
  Ledger start, stop, tail;
  int64_t validations = 0, samples = 0, places = 0, useful = 0;
  int64_t first = 0;   // update that was measured
  std::string slowed;  // why the device held its clock down

 private:
  bool counting() const { return first > 0 && stopped_ == 0; }
  struct Energy {
    int64_t ns = 0;
    std::optional<double> joules;
  };
  Energy energy() {
    const auto vitals = backend_.vitals();
    if (vitals && vitals->slowed && !vitals->slowed->empty()) slowed = *vitals->slowed;
    return {now_ns(), vitals ? vitals->joules : std::nullopt};
  }
  ProfileOptions options_;
  const Backend& backend_;
  Energy start_energy_, stop_energy_;
  Timeline& timeline_;
  int64_t last_ = 0, stopped_ = 0;
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

double mean(std::span<const double> values) {
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

// What each update would take at the pace of the best of its size. Where a size came too seldom to
// have a best one, by place, among updates of nearly that size.
std::vector<double> at_best(std::span<const double> times, std::span<const int64_t> sizes) {
  constexpr size_t kFew = 3, kEnough = 8;
  constexpr double kNear = 1.25;
  const size_t all = times.size();
  std::vector<size_t> order(all);
  std::iota(order.begin(), order.end(), size_t{0});
  std::ranges::stable_sort(order, {}, [&](size_t i) { return sizes[i]; });
  auto places = [&](size_t k) {
    return static_cast<double>(std::max<int64_t>(1, sizes[order[k]]));
  };
  std::vector<double> best(all);
  for (size_t begin = 0, end = 0; begin < all; begin = end) {
    for (end = begin + 1; end < all; ++end) {
      const size_t count = end - begin;
      const bool near = count < kEnough && places(end) <= kNear * places(begin);
      if (places(end) != places(end - 1) && count >= kFew && !near) break;
    }
    if (all - end < kFew) end = all;
    double pace = times[order[begin]] / places(begin);
    for (size_t k = begin; k < end; ++k) pace = std::min(pace, times[order[k]] / places(k));
    for (size_t k = begin; k < end; ++k) best[order[k]] = pace * places(k);
  }
  return best;
}

}  // namespace

Pace undisturbed_pace(std::span<const double> times, std::span<const int64_t> sizes, double least) {
  constexpr size_t kParts = 25, kFewest = 3;  // of fewer the fastest are one
  const std::vector<double> best = at_best(times, sizes);
  const size_t most = std::max<size_t>(1, static_cast<size_t>(static_cast<double>(times.size()) /
                                                              std::max(1.0, least))),
               parts = std::min(kParts, most);
  std::vector<double> slower;
  double all = 0;
  for (size_t i = 0; i < parts; ++i) {
    double taken = 0, its_best = 0;
    for (size_t k = i * times.size() / parts; k < (i + 1) * times.size() / parts; ++k) {
      taken += times[k];
      its_best += best[k];
    }
    slower.push_back(taken / its_best);
    all += its_best;
  }
  std::ranges::sort(slower);
  const double fifth = slower[parts / 5];
  Pace pace{fifth * all / static_cast<double>(times.size()), std::nullopt};
  if (parts >= kFewest) pace.noise = 0.5 * (slower[2 * parts / 5] - slower[0]) / fifth;
  return pace;
}

double error_of_mean(std::span<const double> losses) {
  if (losses.size() < 2) return std::numeric_limits<double>::quiet_NaN();
  double squares = 0;
  for (size_t i = 1; i < losses.size(); ++i)
    squares += (losses[i] - losses[i - 1]) * (losses[i] - losses[i - 1]);
  const auto count = static_cast<double>(losses.size());
  return std::sqrt(squares / (2 * (count - 1) * count));
}

int64_t warm_up_of(const Backend& backend, const Programs& programs) {
  return backend.on_host()
             ? 3
             : 10 + 3 * static_cast<int64_t>(programs.steps.size()) * backend.runs_at_once();
}

double Profile::owner_seconds(Owner owner) const {
  const auto is = [&](std::initializer_list<Owner> owners) {
    return std::ranges::find(owners, owner) != owners.end();
  };
  const Occasion* occasion = is({Owner::eval, Owner::eval_texts}) ? &validation
                             : is({Owner::checkpoint})            ? &checkpoint
                             : is({Owner::sample})                ? &sample
                                                                  : nullptr;
  if (!occasion || (occasion == &checkpoint && saves_often))
    return static_cast<double>(ledger.ns(owner)) * 1e-9 / static_cast<double>(options.updates);
  if (owner == Owner::eval_texts) return validation.per_update() * texts_share;
  return occasion->per_update() * (owner == Owner::eval ? 1 - texts_share : 1);
}

std::vector<std::pair<const char*, const Occasion*>> Profile::occasions() const {
  std::vector<std::pair<const char*, const Occasion*>> list{{"validation", &validation},
                                                            {"checkpoint", &checkpoint}};
  if (sample.every_updates > 0) list.emplace_back("sample", &sample);
  return list;
}

double Profile::seconds_with_occasions() const {
  double sum = 0;
  for (size_t i = 0; i < kOwners; ++i) sum += owner_seconds(static_cast<Owner>(i));
  return sum;
}

Profile profile(const Model& model, Settings settings, const TrainingData& data, Backend& backend,
                const Programs& programs, RunFolder& run, ProfileOptions options,
                Timeline& timeline) {
  // Updates that a device is given together are read together, up to two replays of them: the last
  // of those to warm up must not bring those to be measured with it.
  if (const int64_t at_once = backend.runs_at_once(); at_once > 1)
    options.updates = std::max(options.updates, 2 * at_once);
  const RunLength length = data.run_length(settings);
  Profile p;
  p.options = options;
  p.updates_of_run = length.total;
  p.updates_per_epoch = length.steps_per_epoch;
  // What the config leaves open follows from the length of its run, not of this one.
  const auto validated = validation_pace(settings, length), saved = settings.checkpoint.every;
  p.validation.every_updates = pace(validated, length, 0);
  p.checkpoint.every_updates = pace(saved, length, 0);
  p.sample.every_updates = pace(settings.sample_every, length, 0);
  const Duration once{static_cast<double>(options.warm_up + options.updates)};
  settings.eval_every = settings.sample_every = {once};
  p.saves_often = is_frequent(p.checkpoint.every_updates, options.updates);
  if (!p.saves_often) settings.checkpoint.every = {once};
  // The one at the end of a run is no part of an update.
  if (p.sample.every_updates <= 0) settings.sample_length = 0;
  settings.max_steps = options.warm_up + options.updates + options.tail;
  settings.max_tokens = 0;
  settings.early_stop_patience = 0;
  ProfileObserver observer(options, backend, timeline);
  p.result = train(model, settings, data, backend, programs, &run, observer);
  if (p.result.stopped)
    throw Error({.code = ErrorCode::stopped, .what = "stopped before all updates were measured"});
  p.update_seconds = observer.times;
  p.options.updates = std::ssize(observer.times);
  const auto losses = std::span<const double>(p.result.losses)
                          .subspan(static_cast<size_t>(observer.first - 1), observer.times.size());
  p.mean_loss = mean(losses);
  p.loss_error = error_of_mean(losses);
  p.seconds = mean(p.update_seconds);
  // A report comes every log_interval, a checkpoint that is among the updates at its own pace;
  // updates that a device is given together have one time among them. Few
  // updates are long ones, to which a report is nothing.
  const double between = std::min(static_cast<double>(std::min<int64_t>(settings.log_interval, 10)),
                                  static_cast<double>(p.options.updates) / 8);
  const Pace undisturbed =
      undisturbed_pace(p.update_seconds, observer.sizes,
                       std::max({between, p.saves_often ? std::ceil(p.checkpoint.every_updates) : 1,
                                 static_cast<double>(backend.runs_at_once())}));
  p.undisturbed = undisturbed.seconds;
  p.noise = undisturbed.noise;
  p.ledger = observer.stop.since(observer.start);
  p.places_per_update =
      static_cast<double>(observer.places) / static_cast<double>(p.options.updates);
  p.useful_share = static_cast<double>(observer.useful) / static_cast<double>(observer.places);
  for (const NodeTimes& t : p.ledger.node_times())
    p.flops_per_update +=
        t.plan->cost.flops * static_cast<double>(t.runs) / static_cast<double>(p.options.updates);
  auto seconds_of = [](const Ledger& ledger, std::initializer_list<Owner> owners) {
    int64_t ns = 0;
    for (const Owner owner : owners) ns += ledger.ns(owner);
    return static_cast<double>(ns) * 1e-9;
  };
  const double validations = static_cast<double>(std::max<int64_t>(1, observer.validations)),
               part = data.validation_batches() > 0
                          ? static_cast<double>(data.validation_batches()) /
                                static_cast<double>(data.validation->batches_per_epoch())
                          : 1,
               evaluated = seconds_of(p.result.ledger, {Owner::eval}) / part,
               texts = seconds_of(p.result.ledger, {Owner::eval_texts});
  p.validation.seconds = (evaluated + texts) / validations;
  p.texts_share = texts > 0 ? texts / (evaluated + texts) : 0;
  p.checkpoint.seconds = seconds_of(observer.tail, {Owner::checkpoint});
  p.sample.seconds = seconds_of(p.result.ledger, {Owner::sample}) /
                     static_cast<double>(std::max<int64_t>(1, observer.samples));
  // A pace in seconds is known now. What validation finds better is saved, too: here always.
  p.validation.every_updates = pace(validated, length, p.seconds);
  p.checkpoint.every_updates = pace(saved, length, p.seconds);
  if (settings.checkpoint.keep_best > 0 && !p.saves_often && p.validation.every_updates > 0)
    p.checkpoint.every_updates =
        p.checkpoint.every_updates > 0
            ? 1 / (1 / p.checkpoint.every_updates + 1 / p.validation.every_updates)
            : p.validation.every_updates;
  p.peak_resident_bytes = peak_resident_bytes();
  p.watts = observer.watts();
  p.slowed = observer.slowed;
  p.ceiling = options.ceiling;
  if (p.ceiling.flops <= 0 || p.ceiling.bytes <= 0 || raised(p.ceiling, p.ledger) != p.ceiling) {
    const int64_t begin = now_ns();
    const Ceiling now = backend.measure_ceiling(programs.passes.precision);
    p.ceiling_seconds = seconds_since(begin);
    p.ceiling = raised(best_of(p.ceiling, now), p.ledger);
    p.ceiling_is_new = now.flops > 0 && now.bytes > 0;
  }
  return p;
}

}  // namespace millrace
