// millrace plan: everything known before the first step.

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>

#include "cli/commands.h"
#include "cli/data_progress.h"
#include "cli/device.h"
#include "cli/memory_report.h"
#include "cli/standard_output.h"
#include "core/process.h"
#include "core/text.h"
#include "cpu/machine.h"
#include "cpu/parallel.h"
#include "doctor/fit.h"

namespace millrace {
namespace {

int64_t parse_limit(const std::string& text) {
  if (text.empty()) return 0;
  const int64_t bytes = parse_bytes(text);
  if (bytes <= 0)
    throw Error({.code = ErrorCode::config,
                 .what = "--memory is not a size",
                 .where = "command line: --memory " + text,
                 .expected = "8GiB, 512MB, 1e9",
                 .got = text,
                 .remedy = "write a number with a unit"});
  return bytes;
}

nlohmann::ordered_json or_null(std::optional<int64_t> number) {
  return number ? nlohmann::ordered_json(*number) : nlohmann::ordered_json();
}

// "matmul  gemm [packed]" and how often, with the reasons others gave.
std::string why_text(const Plan& plan) {
  struct Row {
    int64_t count = 0;
    std::string declined;
  };
  std::map<std::string, Row> rows;
  for (NodeId id = 0; id < plan.graph.size(); ++id) {
    const KernelChoice& k = plan.kernels[static_cast<size_t>(id)];
    if (k.name.empty()) continue;
    Row& row = rows[fmt::format("{:<22} {}", plan.graph[id].op->name, k.name)];
    ++row.count;
    for (const std::string& d : k.declined)
      if (row.declined.find(d) == std::string::npos)
        row.declined += (row.declined.empty() ? "" : "; ") + d;
  }
  std::string s = "\nkernels of the step\n";
  for (const auto& [name, row] : rows)
    s += fmt::format("  {:>4} x {}{}\n", row.count, name,
                     row.declined.empty() ? "" : "   declined: " + row.declined);
  return s;
}

struct RunTime {
  PredictedTime update = {};
  int64_t updates = 0;
  const PrecisionProfile* machine = nullptr;  // null: nothing is known
  bool is_here = true;

  double seconds() const { return update.best_known() * static_cast<double>(updates); }
  std::optional<double> joules() const {
    return machine && machine->watts ? std::optional(*machine->watts * seconds()) : std::nullopt;
  }
};

std::string time_text(const RunTime& t) {
  if (!t.machine)
    return "time         not known: nothing was measured of this device in this precision\n";
  const char* where = t.is_here ? "here" : "there";
  std::string s =
      fmt::format("time         at least {} an update, every op at the ceiling measured {}",
                  human_seconds(t.update.least), where);
  if (t.update.expected) {
    s += fmt::format("; {} expected, ops as profiled {} on {}", human_seconds(*t.update.expected),
                     where, t.machine->ops_date);
    const double unknown = t.update.unknown / *t.update.expected;
    if (unknown >= 0.01) s += fmt::format(" ({:.0f} % of it in ops that were not)", 100 * unknown);
  } else {
    s += "; `millrace profile` lets it say what to expect";
  }
  s += fmt::format("\n             {}{} for {} updates, with no waiting for data; ",
                   t.update.expected ? "" : "at least ", human_seconds(t.seconds()),
                   with_commas(t.updates));
  constexpr double kJoulesOfKilowattHour = 3.6e6;
  if (const auto joules = t.joules())
    return s + fmt::format("{:.3g} kWh at {:.0f} W\n", *joules / kJoulesOfKilowattHour,
                           *t.machine->watts);
  return s + "energy not known: no power was measured\n";
}

nlohmann::ordered_json run_time_json(const RunTime& t) {
  nlohmann::ordered_json j = time_json(t.update);
  j["updates"] = t.updates;
  if (!t.machine) return j;
  j["run_seconds"] = t.seconds();
  j["ceiling"] = {{"flops_per_second", t.machine->ceiling.flops},
                  {"bytes_per_second", t.machine->ceiling.bytes},
                  {"measured", t.machine->ceiling_date}};
  if (t.update.expected) j["profiled"] = t.machine->ops_date;
  j["watts"] = t.machine->watts ? nlohmann::ordered_json(*t.machine->watts) : nullptr;
  j["run_joules"] = t.joules() ? nlohmann::ordered_json(*t.joules()) : nullptr;
  return j;
}

// What a length becomes when the longest that is allowed does; data that is shorter stays so.
int64_t scaled(int64_t length, int64_t longest, int64_t new_longest) {
  return length >= longest ? std::max<int64_t>(1, length * new_longest / longest)
                           : std::min(length, new_longest);
}

// Lengths around the config's that model and data allow.
struct GridColumns {
  std::vector<std::unique_ptr<LoadedRun>> models;
  std::vector<GridColumn> list;
};
GridColumns grid_columns(const RunRequest& asked, const LoadedRun& run) {
  const Settings& s = run.settings;
  const BatchShape shape = run.data.batches->shapes()[0];
  const bool windows = !run.data.set.records && !run.data.set.has_trajectories();
  GridColumns columns;
  for (const int64_t length :
       {s.max_length / 2, s.max_length, 2 * s.max_length, 4 * s.max_length}) {
    GridColumn column{length, run.model.get(), s, shape};
    const bool longer = length > s.max_length;
    if (length == 0 || (longer && shape.length < s.max_length)) continue;
    if (longer && windows && run.data.set.train.size() <= length) continue;
    if (length != s.max_length) {
      RunRequest request = asked;
      request.settled_batch = s.batch_size;
      request.overrides.push_back(fmt::format("training.max_length={}", length));
      try {
        columns.models.push_back(load_model(request, run.data.set));
      } catch (const Error&) {
        continue;  // the model has no such length
      }
      const LoadedRun& other = *columns.models.back();
      column.model = other.model.get();
      column.settings.max_length = length;
      column.settings.max_source_length = other.settings.max_source_length;
      column.shape.length = scaled(shape.length, s.max_length, length);
      if (shape.source > 0)
        column.shape.source =
            scaled(shape.source, s.max_source_length, other.settings.max_source_length);
    }
    columns.list.push_back(std::move(column));
  }
  return columns;
}

}  // namespace

int plan_command(const PlanArguments& arguments) {
  const int64_t limit_flag = parse_limit(arguments.memory);
  const auto absent = find_absent_device(arguments.device);
  RunRequest request = arguments.request;
  if (!absent && !arguments.device.empty())
    request.overrides.push_back("device=" + arguments.device);
  DataProgress progress;
  const auto run = load_run(request, progress);
  std::string note;
  const auto backend = open_device(
      *run, [&](const std::string& text) { note = "; " + text; }, absent ? &*absent : nullptr);
  if (limit_flag > 0) run->settings.memory_limit = limit_flag;
  std::string batch_text = fmt::format("{} now", run->settings.batch_size);
  settle_batch(*run, *backend, progress, [&](const std::string& text) { batch_text = text; });
  const Settings& s = run->settings;
  const Programs programs = plan_run(*run, *backend);
  const bool on_host = backend->on_host();
  const int64_t arena = programs.total_bytes(), need = programs.needed_bytes(),
                limit = memory_room(s, *backend);
  const bool fits = need <= limit;
  const auto predicted = predicted_peak_bytes(programs, *run->model, *backend);
  if (!fits && !arguments.json && !arguments.grid)
    throw does_not_fit(request, *run, programs, limit, *backend);

  const MachineProfile machine = absent ? *absent : machine_here(*backend, s.pass_precision());
  RunTime time{.updates = run->data.run_length(s).total,
               .machine = machine.find(s.pass_precision()),
               .is_here = !absent};
  if (time.machine)
    time.update =
        predict_update(programs, s.grad_accum, shape_shares(*run->data.batches), *time.machine);
  const SizesOnly sizes(*backend);
  Grid grid;
  FitChanges changes;
  if (arguments.grid) {
    const GridColumns columns = grid_columns(request, *run);
    grid = make_grid(columns.list, grid_batches(s.batch_size), limit, *backend, time.machine);
    grid.batch = s.batch_size;
    grid.length = s.max_length;
    changes =
        find_changes(*run->model, s, run->data.batches->shapes()[0], limit, *backend, machine);
  }
  // On a device every other batch would have its library plans built, a second each: not searched.
  const int64_t largest =
      on_host || absent
          ? largest_batch(*run->model, s, run->data.batches->shapes()[0], limit, *backend)
          : 0;
  int64_t parameters = 0, matrices = 0, trained = 0;
  for (const Parameter& p : run->model->parameters()) {
    parameters += p.shape.numel();
    if (p.trained) trained += p.shape.numel();
    if (p.decay) matrices += p.shape.numel();
  }
  const double flops = update_cost(programs, s).flops,
               tokens = static_cast<double>(run->data.batches->most_places() * s.grad_accum);
  const Plan& step = programs.step();
  // The step does not use the caches of generation, but their memory is there all the time.
  auto at_peak = step.at_peak;
  constexpr auto kCache = static_cast<size_t>(MemoryClass::cache);
  at_peak[kCache] =
      programs.generation.decode.at_peak[kCache] + programs.texts.decode.at_peak[kCache];

  if (arguments.json) {
    nlohmann::ordered_json j = {
        {"device", backend->name()},
        {"precision", run->settings.precision},
        {"fits", fits},
        {"limit_bytes", limit},
        {"parameters", parameters},
        {"trained_parameters", trained},
        {"flops_per_token", flops / tokens},
        {"flops_per_update", flops},
        {"bytes_per_update", update_cost(programs, s).bytes},
        {"arena_bytes", arena},
        {"batch_size", s.batch_size},
        {"largest_batch", or_null(largest > 0 ? std::optional(largest) : std::nullopt)},
        {"plan_hash", step.hash()},
        {"recompute",
         {{"cheap", programs.passes.recompute.cheap},
          {"whole_layers", programs.passes.recompute.whole_layers}}},
        {"memory_is_exact", !absent},
        {"time", run_time_json(time)}};
    if (arguments.grid) {
      j["grid"] = grid_json(grid);
      j["changes"] = changes_json(changes);
    }
    if (!on_host) j["overhead_bytes"] = or_null(programs.overhead);
    j[on_host ? "process_peak_bytes" : "predicted_device_bytes"] = or_null(predicted);
    for (size_t c = 0; c < kMemoryClasses; ++c)
      j["at_peak"][std::string(memory_class_name(static_cast<MemoryClass>(c)))] = at_peak[c];
    if (arguments.why)
      for (NodeId id = 0; id < step.graph.size(); ++id)
        if (const KernelChoice& k = step.kernels[static_cast<size_t>(id)]; !k.name.empty())
          j["nodes"].push_back({{"op", step.graph[id].op->name},
                                {"scope", step.graph.path(id)},
                                {"kernel", k.name},
                                {"declined", k.declined}});
    put(j.dump(2) + "\n");
    return fits ? 0 : static_cast<int>(ErrorCode::does_not_fit);
  }

  if (!fits) {
    put(grid_text(grid) + changes_text(changes, limit));
    throw does_not_fit(request, *run, programs, limit, *backend);
  }
  std::string out =
      fmt::format("device       {} in {}{}\n", backend->name(), run->settings.precision, note);
  out += fmt::format("parameters   {} ({} in matrices){}\n", with_commas(parameters),
                     with_commas(matrices),
                     trained < parameters ? fmt::format("; {} train", with_commas(trained)) : "");
  out += fmt::format("compute      {} FLOP per token, {} per update of {} tokens\n",
                     human_count(flops / tokens), human_count(flops),
                     with_commas(static_cast<int64_t>(tokens)));
  out += fmt::format("memory       {} arena ({} B), {}{}\n", human_bytes(arena), with_commas(arena),
                     !absent           ? "exact"
                     : absent->on_host ? "estimated: as this CPU's kernels want it"
                                       : "estimated: without the workspaces of libraries",
                     predicted_text(predicted, *backend));
  int64_t alive = 0;
  for (int64_t b : at_peak) alive += b;
  for (size_t c = 0; c < kMemoryClasses; ++c)
    if (at_peak[c] > 0)
      out += fmt::format("  {:<18} {:>12}  {:>5.1f} %\n",
                         memory_class_name(static_cast<MemoryClass>(c)), human_bytes(at_peak[c]),
                         100.0 * static_cast<double>(at_peak[c]) / static_cast<double>(arena));
  if (arena > alive)
    out += fmt::format("  {:<18} {:>12}  {:>5.1f} %\n", "gaps, other plans",
                       human_bytes(arena - alive),
                       100.0 * static_cast<double>(arena - alive) / static_cast<double>(arena));
  out += fmt::format("  most is alive at {} ({})\n", step.graph[step.peak_at].op->name,
                     step.graph.path(step.peak_at));
  out += fmt::format("fits         yes, in {} {}; {} to spare\n", human_bytes(limit),
                     s.memory_limit > 0 ? "as asked"
                     : on_host          ? "of this machine"
                                        : "of the device",
                     human_bytes(limit - need));
  out += time_text(time);
  out += fmt::format("batch        {}{}\n", batch_text,
                     largest > 0 ? fmt::format("; the largest that fits is {}", largest) : "");
  if (const std::string text = order_text(step); !text.empty())
    out += fmt::format("order        {}\n", text);
  out += fmt::format("recomputed   {}\n", recompute_text(programs) + head_text(programs));
  std::string passes;
  for (std::string_view p : pass_names())
    passes += fmt::format("{}{}{}", passes.empty() ? "" : ", ", p,
                          programs.passes.off.contains(std::string(p)) ? " (off)" : "");
  out += fmt::format("passes       {}: {} nodes\nplan         {}\n", passes,
                     step.graph.nodes.size(), step.hash());
  if (arguments.grid) out += grid_text(grid) + changes_text(changes, limit);
  if (arguments.why) out += why_text(step);
  put(out);
  return 0;
}

}  // namespace millrace
