#include "doctor/findings.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "core/text.h"

namespace millrace {
namespace {

// A profile's shares of the time.
class Shares {
 public:
  explicit Shares(const nlohmann::ordered_json& profile)
      : profile_(profile), total_(profile.at("seconds_with_occasions").get<double>()) {}

  double of(std::initializer_list<const char*> owners) const {
    double seconds = 0;
    for (const char* owner : owners) seconds += profile_.at("budget_seconds").value(owner, 0.0);
    return total_ > 0 ? seconds / total_ : 0;
  }
  double work() const { return of({"forward", "backward"}); }
  double of_op(std::string_view name) const {
    double seconds = 0;
    for (const auto& row : profile_.at("ops"))
      if (row.at("name") == name) seconds += row.at("seconds").get<double>();
    return total_ > 0 ? seconds / total_ : 0;
  }
  double products() const {
    return of_op("matmul") + of_op("linear_cross_entropy") + of_op("attention") +
           of_op("attention_grad");
  }
  // Of the arithmetic that could be done in the time of an update.
  double utilisation() const {
    const double ceiling = profile_.at("ceiling").at("flops_per_second").get<double>(),
                 seconds = profile_.at("update_seconds").at("mean").get<double>();
    if (ceiling <= 0 || seconds <= 0) return 0;
    return std::min(1.0, profile_.at("flops_per_update").get<double>() / seconds / ceiling);
  }

 private:
  const nlohmann::ordered_json& profile_;
  double total_;
};

std::string percent_text(double share) { return fmt::format("{:.1f} %", 100 * share); }

constexpr std::string_view kBatchSize = "training.batch_size",
                           kEvalBatches = "training.max_eval_batches";

bool sets(std::string_view key, const std::string& assignment) {
  return assignment.starts_with(key) && assignment.substr(key.size()).starts_with('=');
}
// What the last of some overrides sets a key to.
int64_t value_of(std::string_view key, const std::vector<std::string>& overrides, int64_t usual) {
  int64_t value = usual;
  for (const std::string& o : overrides)
    if (sets(key, o)) value = std::stoll(o.substr(key.size() + 1));
  return value;
}

std::vector<std::string> micro_batch(int64_t batch, int64_t accumulated) {
  return {fmt::format("{}={}", kBatchSize, batch),
          fmt::format("training.grad_accum={}", accumulated)};
}

Remedy accumulate_less(int64_t batch, int64_t accumulated, double ceiling) {
  return {"micro_batch",
          fmt::format("{} at a time{}", batch,
                      accumulated > 1 ? fmt::format(", accumulated {} times", accumulated) : ""),
          micro_batch(batch, accumulated), Maths::other_rounding, ceiling};
}

// Fewer, larger micro-batches for the same update: all that is accumulated at once, and some on the
// way there, for memory may not allow it.
std::vector<Remedy> larger_batches(const Settings& s, double ceiling) {
  std::vector<Remedy> list;
  for (int64_t times = s.grad_accum; times >= 2 && list.size() < 4; times = times / 2) {
    if (s.grad_accum % times != 0) continue;
    list.push_back(accumulate_less(s.batch_size * times, s.grad_accum / times,
                                   ceiling * (1 - 1 / static_cast<double>(times))));
  }
  return list;
}

void small_batch(const Situation& at, const Shares& share, std::vector<Finding>& findings) {
  const Settings& s = at.settings;
  const double room = share.work() * (1 - share.utilisation());
  if (s.grad_accum > 1) {
    auto remedies = larger_batches(s, room);
    if (remedies.empty()) return;
    const double most = remedies.front().ceiling;
    findings.push_back(
        {"batch.small", "an update is made of many small batches",
         fmt::format(
             "{} at a time, accumulated {} times; {} of the arithmetic that this device can do",
             s.batch_size, s.grad_accum, percent_text(share.utilisation())),
         most, std::move(remedies)});
  } else if (s.batch_size <= 2 && s.data.batch_tokens == 0) {
    const int64_t larger = s.batch_size * 8;
    std::vector<std::string> overrides = micro_batch(larger, 1);
    if (s.effective_batch > 0) overrides.push_back("training.effective_batch=0");
    findings.push_back(
        {"batch.one",
         "an update has very few sequences",
         fmt::format("{} at a time; {} of the arithmetic that this device can do", s.batch_size,
                     percent_text(share.utilisation())),
         room * 7 / 8,
         {{"batch",
           fmt::format("{} sequences an update: another optimisation, tune the rate", larger),
           std::move(overrides), Maths::other_problem, room * 7 / 8}}});
  }
}

std::vector<Remedy> input_remedies(const Settings& s, double ceiling) {
  std::vector<Remedy> list;
  if (s.data.num_workers >= 0)
    list.push_back({"workers",
                    fmt::format("loaders as they suit the machine (were {})", s.data.num_workers),
                    {"data.num_workers=auto"},
                    Maths::same_bits,
                    ceiling});
  const int64_t ahead = std::max<int64_t>(4, 2 * s.data.prefetch_factor);
  list.push_back({"prefetch",
                  fmt::format("{} batches ahead (were {})", ahead, s.data.prefetch_factor),
                  {fmt::format("data.prefetch_factor={}", ahead)},
                  Maths::same_bits,
                  ceiling});
  return list;
}

std::vector<Remedy> batching_remedies(const Situation& at, double ceiling) {
  std::vector<Remedy> list;
  if (at.batching == "windows") return list;  // one long text has no padding
  for (const char* way : {"packing", "buckets"}) {
    if (at.batching == way || (std::string_view(way) == "packing" && !at.packable)) continue;
    list.push_back({"batching",
                    fmt::format("data.batching {} (was {})", way, at.batching),
                    {fmt::format("data.batching={}", way)},
                    Maths::other_order,
                    ceiling});
  }
  return list;
}

void evaluation(const Situation& at, const Shares& share, std::vector<Finding>& findings) {
  const Settings& s = at.settings;
  const double texts = share.of({"eval_texts"}), all = texts + share.of({"eval"});
  const auto& validation = at.profile.at("validation");
  const double every = validation.at("every_updates").get<double>(),
               usual = at.profile.at("updates_of_run").get<double>() / 5;
  if (all < 0.01 || every <= 0) return;
  // Where validation ends the run, another pace or another part of it ends it elsewhere.
  const Maths maths = s.early_stop_patience > 0 ? Maths::other_problem : Maths::reporting;
  std::vector<Remedy> remedies;
  if (usual > 1.2 * every)
    remedies.push_back({"eval_every",
                        "validation five times in the run",
                        {"training.eval_every=[]"},
                        maths,
                        all * (1 - every / usual)});
  if (texts > 0.01 && s.eval_beam > 1)
    remedies.push_back(
        {"eval_beam",
         fmt::format("texts of validation without a search (beam was {})", s.eval_beam),
         {"training.eval_beam=1"},
         maths,
         texts});
  // As many sequences as 20 updates have.
  if (const int64_t few = 20 * s.grad_accum; s.max_eval_batches == 0 || s.max_eval_batches > few)
    remedies.push_back({"eval_batches",
                        fmt::format("validation on {} batches", few),
                        {fmt::format("{}={}", kEvalBatches, few)},
                        maths,
                        all - texts});
  if (s.eval_context > 0)
    remedies.push_back({"eval_context",
                        fmt::format("validation windows that do not overlap (eval_context was {})",
                                    s.eval_context),
                        {"training.eval_context=0"},
                        maths,
                        all - texts});
  findings.push_back(
      {"eval.share", "validation takes a large share",
       fmt::format("{} of the time: {} each, every {:.0f} updates", percent_text(all),
                   human_seconds(validation.at("seconds").get<double>()), std::max(1.0, every)),
       all, std::move(remedies)});
}

void housekeeping(const Situation& at, const Shares& share, std::vector<Finding>& findings) {
  const Settings& s = at.settings;
  if (const double saved = share.of({"checkpoint"}); saved >= 0.01)
    findings.push_back(
        {"checkpoint.share",
         "checkpoints take a large share",
         fmt::format("{} of the time: every {:.0f} updates", percent_text(saved),
                     std::max(1.0, at.profile.at("checkpoint").at("every_updates").get<double>())),
         saved,
         {{"checkpoint",
           "a checkpoint every 10 minutes",
           {"checkpoint.every=10 minutes"},
           Maths::reporting,
           saved}}});
  if (const double written = share.of({"sample"}); written >= 0.01)
    findings.push_back(
        {"sample.share",
         "samples take a large share",
         fmt::format("{} of the time: {} each, every {:.0f} updates", percent_text(written),
                     human_seconds(at.profile.at("sample").at("seconds")),
                     at.profile.at("sample").at("every_updates").get<double>()),
         written,
         {{"sample", "a sample at the end only", {"sample.every=[]"}, Maths::reporting, written}}});
  if (const double said = share.of({"logging"}); said >= 0.01)
    findings.push_back(
        {"log.share",
         "reports take a large share",
         fmt::format("{} of the time: every {} updates", percent_text(said), s.log_interval),
         said,
         {{"log_interval",
           "a report every 100 updates",
           {"training.log_interval=100"},
           Maths::reporting,
           said}}});
}

// Several updates in one replay; none where they are no remedy.
std::vector<Remedy> longer_replays(const Situation& at, double ceiling) {
  const Settings& s = at.settings;
  std::vector<Remedy> list;
  if (at.on_host || !s.use_compile || s.grad_accum > 1) return list;
  for (const int64_t steps : {4, 16}) {
    if (steps <= s.steps_per_replay) continue;
    Remedy remedy{"replay",
                  fmt::format("{} updates in one replay", steps),
                  {fmt::format("training.steps_per_replay={}", steps)},
                  Maths::same_bits,
                  ceiling};
    // A report waits for the updates before it: there is room for a few replays between two.
    if (s.log_interval % steps != 0 || s.log_interval < 4 * steps) {
      const int64_t interval = std::max(4 * steps, (s.log_interval + steps - 1) / steps * steps);
      remedy.title += fmt::format(", a report every {}", interval);
      remedy.overrides.push_back(fmt::format("training.log_interval={}", interval));
      remedy.maths = Maths::reporting;
    }
    list.push_back(std::move(remedy));
  }
  return list;
}

// Products in the precision that the device is fast in; nothing where they are.
std::vector<Remedy> faster_precision(const Situation& at, const Shares& share) {
  const Settings& s = at.settings;
  if (s.precision == at.fast_precision || (s.precision != "fp32" && s.precision != "tf32"))
    return {};
  // By how fast products are in both, where that was measured; else as if in half the time.
  const double here = at.profile.at("ceiling").at("flops_per_second").get<double>(),
               saved =
                   here > 0 && at.fast_flops > 0 ? std::max(0.0, 1 - here / at.fast_flops) : 0.5;
  return {{"precision",
           fmt::format("{} (was {})", at.fast_precision, s.precision),
           {"training.precision=" + at.fast_precision},
           Maths::other_rounding,
           share.products() * saved}};
}

void device_settings(const Situation& at, const Shares& share, std::vector<Finding>& findings) {
  const Settings& s = at.settings;
  // 32 bits are what is usual on a CPU.
  if (auto remedies = faster_precision(at, share); !remedies.empty() && !at.on_host)
    findings.push_back({"precision", "products in a precision that this device is slow in",
                        fmt::format("{}; {} of the time are products", s.precision,
                                    percent_text(share.products())),
                        remedies.front().ceiling, std::move(remedies)});
  if (!s.use_compile && !at.on_host) {
    const double idle = std::max(0.05, share.of({"idle_launch", "residual"}));
    findings.push_back({"capture.off",
                        "every kernel is started by the host",
                        fmt::format("training.use_compile is false; {} of the time nothing runs",
                                    percent_text(share.of({"idle_launch"}))),
                        idle,
                        {{"capture",
                          "steps captured once and replayed",
                          {"training.use_compile=true"},
                          Maths::same_bits,
                          idle}}});
  }
  if (const double between = share.of({"idle_launch", "h2d"}); between >= 0.01)
    if (auto remedies = longer_replays(at, between); !remedies.empty())
      findings.push_back({"replay.short", "the device stands still between updates",
                          fmt::format("{} of the time; an update takes {}", percent_text(between),
                                      human_seconds(at.profile.at("update_seconds").at("mean"))),
                          between, std::move(remedies)});
  if (at.on_host && s.threads > 0 && s.threads != at.cores) {
    // With too many, cores are shared out among threads that wait for each other.
    const bool few = s.threads < at.cores;
    const double work = share.of({"forward", "backward", "optimizer", "eval", "eval_texts"}),
                 threads = static_cast<double>(s.threads), cores = static_cast<double>(at.cores),
                 lost = work * (1 - (few ? threads / cores : cores / threads));
    findings.push_back({"host.threads",
                        few ? "cores are left idle" : "there are more threads than cores",
                        fmt::format("{} threads on {} cores", s.threads, at.cores),
                        lost,
                        {{"threads",
                          fmt::format("a thread for each of {} cores", at.cores),
                          {"runtime.threads=0"},
                          Maths::same_bits,
                          lost}}});
  }
}

void graph_settings(const Situation& at, const Shares& share, std::vector<Finding>& findings) {
  const Settings& s = at.settings;
  if (!s.passes_off.empty()) {
    std::string names;
    for (const std::string& name : s.passes_off) names += (names.empty() ? "" : ", ") + name;
    // What they join to others are nodes of few operations.
    double small = 0;
    for (const char* op : {"elementwise", "reduce_sum", "permute", "constant"})
      small += share.of_op(op);
    findings.push_back(
        {"passes.off",
         "passes that make the step faster are switched off",
         names,
         small,
         {{"passes", "all passes", {"runtime.passes_off=[]"}, Maths::other_rounding, small}}});
  }
  if (!at.saving.empty() && s.memory_limit > 0 && !at.limit_is_given) {
    // At most all of it runs twice.
    const double again = std::min(share.of({"forward"}), share.of({"backward"}));
    findings.push_back(
        {"recompute",
         "time is paid for memory",
         fmt::format("{}, to fit runtime.memory_limit {}", at.saving, human_bytes(s.memory_limit)),
         again,
         {{"recompute",
           "the memory that the machine has",
           {"runtime.memory_limit=0"},
           Maths::same_bits,
           again}}});
  }
  if (at.words > 0 && at.vocabulary > at.words + at.words / 4 + 128) {
    const double unused = 1 - static_cast<double>(at.words) / static_cast<double>(at.vocabulary),
                 head = share.of_op("linear_cross_entropy") + share.of({"optimizer"}) +
                        share.of_op("embedding_grad");
    findings.push_back(
        {"vocabulary",
         "the model has words that the tokenizer has not",
         fmt::format("{} beside {}; head and update are {} of the time", with_commas(at.vocabulary),
                     with_commas(at.words), percent_text(head)),
         head * unused,
         {{"vocabulary",
           "as many words as the tokenizer has",
           {"model.vocab_size=auto"},
           Maths::other_problem,
           head * unused}}});
  }
}

}  // namespace

std::string_view maths_name(Maths maths) {
  switch (maths) {
    case Maths::same_bits:
      return "same bits";
    case Maths::reporting:
      return "same weights";
    case Maths::other_rounding:
      return "other rounding";
    case Maths::other_order:
      return "other order";
    case Maths::other_problem:
      break;
  }
  return "other problem";
}

Severity severity_of(double recoverable) {
  return recoverable >= 0.2    ? Severity::high
         : recoverable >= 0.05 ? Severity::medium
         : recoverable >= 0.01 ? Severity::low
                               : Severity::none;
}

std::string_view severity_name(Severity severity) {
  constexpr std::string_view kNames[] = {"none", "low", "medium", "high"};
  return kNames[static_cast<size_t>(severity)];
}

std::vector<Finding> examine(const Situation& at) {
  const Shares share(at.profile);
  std::vector<Finding> findings;
  if (const double waits = share.of({"input_wait"}); waits >= 0.01)
    findings.push_back({"input.wait", "the step waits for its batches",
                        fmt::format("{} of the time; {} loaders", percent_text(waits),
                                    at.settings.data.num_workers < 0
                                        ? std::string("auto")
                                        : std::to_string(at.settings.data.num_workers)),
                        waits, input_remedies(at.settings, waits)});
  const double padding = 1 - at.profile.at("useful_share").get<double>();
  if (padding >= 0.05) {
    auto remedies = batching_remedies(at, padding);
    if (!remedies.empty())
      findings.push_back(
          {"sequence.padding", "places of the batches are empty",
           fmt::format("{} hold nothing (data.batching {})", percent_text(padding), at.batching),
           padding, std::move(remedies)});
  }
  small_batch(at, share, findings);
  device_settings(at, share, findings);
  graph_settings(at, share, findings);
  evaluation(at, share, findings);
  housekeeping(at, share, findings);
  // No more can be had back than the best remedy gives; without one there is nothing to find.
  for (Finding& f : findings) {
    double most = 0;
    for (const Remedy& r : f.remedies) most = std::max(most, r.ceiling);
    f.recoverable = std::min(f.recoverable, most);
  }
  std::erase_if(findings,
                [](const Finding& f) { return severity_of(f.recoverable) == Severity::none; });
  std::stable_sort(findings.begin(), findings.end(), [](const Finding& a, const Finding& b) {
    return a.recoverable > b.recoverable;
  });
  return findings;
}

std::vector<Remedy> remedies_of(const std::vector<Finding>& findings, const Situation& at) {
  std::vector<Remedy> list;
  for (const Finding& f : findings) list.insert(list.end(), f.remedies.begin(), f.remedies.end());
  if (at.on_host)
    for (Remedy& r : faster_precision(at, Shares(at.profile))) {
      r.is_choice = true;
      list.push_back(std::move(r));
    }
  return list;
}

std::vector<std::string> with_same_validation(const Settings& s,
                                              std::vector<std::string> overrides) {
  const int64_t batch = value_of(kBatchSize, overrides, s.batch_size),
                limit = value_of(kEvalBatches, overrides, s.max_eval_batches);
  if (batch != s.batch_size && limit > 0) {
    const int64_t sequences = limit * s.batch_size;
    std::erase_if(overrides, [](const std::string& o) { return sets(kEvalBatches, o); });
    overrides.push_back(fmt::format("{}={}", kEvalBatches, (sequences + batch - 1) / batch));
  }
  return overrides;
}

std::vector<Remedy> knobs(const Situation& at) {
  const Settings& s = at.settings;
  const Shares share(at.profile);
  std::vector<Remedy> list;
  auto add = [&](std::vector<Remedy> more) {
    for (Remedy& r : more)
      if (std::none_of(list.begin(), list.end(),
                       [&](const Remedy& l) { return l.overrides == r.overrides; }))
        list.push_back(std::move(r));
  };
  add(remedies_of(examine(at), at));
  const size_t pointed_at = list.size();
  const double room = share.work() * (1 - share.utilisation());
  add(larger_batches(s, room));
  // Smaller ones may stay in a cache.
  for (const int64_t parts : {2, 4})
    if (s.batch_size % parts == 0 && s.data.batch_tokens == 0 && s.steps_per_replay == 1)
      add({accumulate_less(s.batch_size / parts, s.grad_accum * parts, room)});
  // What is between the updates hides, where a device is never asked: a little may be had anyway.
  add(longer_replays(at, std::max(0.02, share.of({"idle_launch", "h2d"}))));
  add(input_remedies(s, share.of({"input_wait"})));
  if (at.batching != "windows") add(batching_remedies(at, 1.0));
  if (at.on_host && at.cores > 1)
    add({{"affinity",
          s.pin_threads ? "threads on whichever core is free" : "each thread on a core of its own",
          {fmt::format("runtime.pin_threads={}", !s.pin_threads)},
          Maths::same_bits,
          room}});
  for (size_t i = pointed_at; i < list.size(); ++i) list[i].is_choice = true;
  return list;
}

}  // namespace millrace
