#include "cli/memory_report.h"

#include <fmt/ranges.h>
#include <malloc.h>

#include <algorithm>
#include <charconv>

#include "cli/device.h"
#include "core/process.h"
#include "core/text.h"
#include "cpu/gemm.h"
#include "doctor/fit.h"
#include "train/checkpoint.h"
#include "train/weights.h"

namespace millrace {

namespace {
// Pages of kernels, libraries and stacks that the first step touches (2 to 5 MiB on the example
// configs), and what a session keeps of every node of its plans.
constexpr int64_t kFirstStepBytes = 7 << 19, kBoundNodeBytes = 480;
}  // namespace

Cost update_cost(const Programs& p, const Settings& s) {
  Cost cost = p.step().cost;
  if (!p.accumulates.empty()) {
    cost.flops += p.accumulates[0].cost.flops * static_cast<double>(s.grad_accum - 1);
    cost.bytes += p.accumulates[0].cost.bytes * static_cast<double>(s.grad_accum - 1);
  }
  return cost;
}

std::string order_text(const Plan& step) {
  const auto seconds = step.order_seconds();
  if (!seconds) return "";
  return "sums are added in a fixed order, " +
         (*seconds > 0
              ? fmt::format("which costs {} an update beside the best that adds in any order",
                            human_seconds(*seconds))
              : "and nothing here that adds in any order is faster");
}

std::optional<int64_t> predicted_peak_bytes(const Programs& programs, const Model& model,
                                            const Backend& backend) {
  if (!backend.on_host())
    return programs.overhead ? std::optional(programs.needed_bytes()) : std::nullopt;
  // A tensor that a checkpoint lays out anew exists twice more for a moment.
  int64_t again = 0;
  for (const Parameter& p : model.parameters())
    if (!same_layout(p)) again = std::max(again, 2 * p.shape.numel() * 4);
  int64_t nodes = 0;
  for (const Plan* plan : programs.plans()) nodes += plan->graph.size();
  cpu::gemm_warm_up(programs.passes.precision == Precision::bf16);
  malloc_trim(0);  // planning's own garbage is not part of the run
  return resident_bytes() + programs.total_bytes() + again + nodes * kBoundNodeBytes +
         kFirstStepBytes;
}

std::string predicted_text(std::optional<int64_t> predicted, const Backend& backend) {
  if (!predicted) return "; context and libraries not measured yet on this machine";
  return fmt::format("; {} about {}",
                     backend.on_host() ? "whole process" : "with context and libraries",
                     human_bytes(*predicted));
}

std::string measured_text(std::optional<int64_t> peak, std::optional<int64_t> predicted,
                          const Backend& backend) {
  if (!peak) return "";
  std::string text =
      fmt::format("; {} peak {}", backend.on_host() ? "process" : "device", human_bytes(*peak));
  if (predicted && *peak > 0)
    text += fmt::format(" (predicted {}, {:+.1f} %)", human_bytes(*predicted),
                        100.0 * (static_cast<double>(*predicted) / static_cast<double>(*peak) - 1));
  return text;
}

namespace {
// A change of the config, planned: what it needs at its leanest useful value.
struct PlannedChange {
  std::string change, cost;
  int64_t need;
};

// "a.b=c (what that costs; needs so much)", the ones that fit first.
std::vector<std::string> remedies(const RunRequest& request, const LoadedRun& run, int64_t limit,
                                  Backend& backend) {
  const Settings& s = run.settings;
  const SizesOnly sizes(backend);
  std::vector<PlannedChange> planned;
  // False: the change contradicts another key.
  auto try_change = [&](const std::vector<std::string>& changes, const char* cost) {
    RunRequest changed = request;
    changed.settled_batch = s.batch_size;
    changed.overrides.insert(changed.overrides.end(), changes.begin(), changes.end());
    try {
      DataObserver nobody;
      const auto loaded = load_run(changed, nobody);
      Settings with = loaded->settings;
      with.memory_limit = limit;
      const int64_t need =
          make_programs(*loaded->model, with, loaded->data.shapes(), backend).needed_bytes();
      planned.push_back({fmt::format("{}", fmt::join(changes, " ")), cost, need});
      return true;
    } catch (const Error&) {
      return false;
    }
  };
  // The first halving that fits, or the smallest there is.
  auto halve = [&](const char* key, int64_t value, const char* cost) {
    const size_t before = planned.size();
    for (value /= 2; value >= 1 && try_change({fmt::format("{}={}", key, value)}, cost);
         value /= 2) {
      if (planned.size() > before + 1) planned.erase(planned.end() - 2);
      if (planned.back().need <= limit) return;
    }
  };
  if (s.batch_size > 1) {
    Settings accumulating = s;  // sums of gradients take memory of their own
    accumulating.grad_accum = std::max<int64_t>(2, s.grad_accum);
    const int64_t batch = std::clamp<int64_t>(
        largest_batch(*run.model, accumulating, run.data.batches->shapes()[0], limit, backend), 1,
        s.batch_size - 1);
    try_change(
        {fmt::format("training.batch_size={}", batch),
         fmt::format("training.grad_accum={}", (s.batch_size * s.grad_accum + batch - 1) / batch)},
        "the same optimisation batch or a little more");
  }
  if (!s.recompute) try_change({"runtime.recompute=true"}, "the same losses, more time");
  halve("training.max_length", s.max_length, "shorter sequences");
  int64_t layers = 0;
  for (const Parameter& p : run.model->parameters())
    if (int64_t number = 0;
        p.name.starts_with("layers.") &&
        std::from_chars(p.name.data() + 7, p.name.data() + p.name.size(), number).ec == std::errc())
      layers = std::max(layers, number + 1);
  halve("model.num_layers", layers, "a smaller model");
  halve("model.d_model", run.model->parameters().front().shape.last(), "a narrower model");
  if (s.optimizer.kind != "sgd")
    try_change({"training.optimizer=sgd", "training.momentum=0"},
               "no optimizer state, another optimisation");
  Settings lean = s;
  lean.memory_limit = 1;  // the leanest plan there is
  const int64_t least = make_programs(*run.model, lean, run.data.shapes(), backend).needed_bytes();
  if (s.memory_limit == 0 && least <= limit)
    try_change({fmt::format("runtime.memory_limit={}MiB", limit >> 20)},
               "parts computed twice, more time");
  // Those that fit as they come, then those that come nearest.
  const auto enough = std::stable_partition(
      planned.begin(), planned.end(), [&](const PlannedChange& r) { return r.need <= limit; });
  planned.erase(std::remove_if(enough, planned.end(),
                               [&](const PlannedChange& r) { return r.need >= least; }),
                planned.end());
  std::stable_sort(enough, planned.end(),
                   [](const PlannedChange& a, const PlannedChange& b) { return a.need < b.need; });
  std::vector<std::string> list;
  for (const PlannedChange& r : planned) {
    if (list.size() >= 3 && r.need > limit) break;
    list.push_back(fmt::format("{} ({}; needs {}{})", r.change, r.cost, human_bytes(r.need),
                               r.need <= limit ? "" : ", not enough alone"));
  }
  list.push_back(fmt::format("a memory limit of at least {}", human_bytes(least)));
  return list;
}

}  // namespace

Error does_not_fit(const RunRequest& request, const LoadedRun& run, const Programs& programs,
                   int64_t limit, Backend& backend) {
  std::string largest, remedy;
  const auto parts = contributors(programs);
  for (size_t i = 0; i < std::min<size_t>(3, parts.size()); ++i)
    largest += fmt::format("{}{} {}", i ? ", " : "", parts[i].what, human_bytes(parts[i].bytes));
  for (const std::string& r : remedies(request, run, limit, backend))
    remedy += fmt::format("{}{}", remedy.empty() ? "" : "\n            ", r);
  return Error({.code = ErrorCode::does_not_fit,
                .what = "the plan does not fit in " + human_bytes(limit),
                .where = run.schema.where("training.batch_size"),
                .expected = "at most " + human_bytes(limit),
                .got = fmt::format("{}{}; largest: {}", human_bytes(programs.needed_bytes()),
                                   run.settings.memory_limit > 0 && run.settings.recompute
                                       ? " with everything recomputed that can be"
                                       : "",
                                   largest),
                .remedy = remedy});
}

void check_fit(const RunRequest& request, const LoadedRun& run, const Programs& programs,
               Backend& backend) {
  const int64_t room = memory_room(run.settings, backend);
  if (programs.needed_bytes() > room) throw does_not_fit(request, run, programs, room, backend);
}

}  // namespace millrace
