// millrace train: from a config to a trained model, with the account of the time.
#include <unistd.h>

#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "cli/commands.h"
#include "cli/console.h"
#include "cli/memory_report.h"
#include "core/process.h"
#include "core/text.h"
#include "cpu/cpu_backend.h"
#include "cpu/gemm.h"
#include "cpu/machine.h"
#include "cpu/parallel.h"
#include "train/program.h"

namespace millrace {
namespace {

void say(const std::string& text) { std::fprintf(stderr, "%s\n", text.c_str()); }

std::string run_json(const LoadedRun& run, const RunFolder& folder, const TrainResult* result,
                     const std::string& status) {
  nlohmann::ordered_json j = {{"id", folder.id()},
                              {"name", run.settings.run_name},
                              {"status", status},
                              {"machine", cpu::machine_name()},
                              {"version", MILLRACE_VERSION}};
  if (result) {
    j["steps"] = result->steps;
    j["seconds"] = result->seconds;
    j["tokens_per_second"] = result->tokens_per_second;
    j["validation_loss"] = std::isfinite(result->validation_loss)
                               ? nlohmann::json(result->validation_loss)
                               : nlohmann::json(nullptr);
    j["peak_resident_bytes"] = peak_resident_bytes();
  }
  return j.dump(2) + "\n";
}

}  // namespace

int train_command(TrainArguments arguments) {
  if (!arguments.run_name.empty())
    arguments.request.overrides.push_back("run_name=" + arguments.run_name);
  if (arguments.max_steps >= 0)
    arguments.request.overrides.push_back(
        fmt::format("training.max_steps={}", arguments.max_steps));
  const auto run = load_run(arguments.request);
  Settings& s = run->settings;
  cpu::set_threads(static_cast<int>(s.threads));
  const auto backend = cpu::make_backend(cpu::best_isa());

  int64_t parameters = 0;
  for (const Parameter& p : run->model->parameters()) parameters += p.shape.numel();
  say(fmt::format("model    {} parameters; {} tokens x {} sequences x {} micro-batches per update",
                  human_count(static_cast<double>(parameters)), s.max_length, s.batch_size,
                  s.grad_accum));
  say("data     " + run->data.description);
  say("machine  " + cpu::machine_name());
  const int64_t planning = now_ns();
  const Programs programs = make_programs(*run->model, s, {s.batch_size, s.max_length}, *backend);
  if (s.memory_limit > 0 && programs.total_bytes() > s.memory_limit)
    throw does_not_fit(arguments.request, *run, programs, s.memory_limit, *backend);
  say(fmt::format("plan     {} arena, {:.2f} GFLOP per update, planned in {}",
                  human_bytes(programs.total_bytes()), update_flops(programs, s) * 1e-9,
                  human_seconds(seconds_since(planning))));

  RunFolder folder(s.runs_folder, s.run_name);
  folder.write("config.yaml", run->config_text);
  folder.write("config.resolved.yaml", run->schema.resolved_yaml());
  std::string overrides;
  for (const std::string& o : arguments.request.overrides) overrides += o + "\n";
  folder.write("overrides.txt", overrides);
  folder.write("plan.txt", programs.step.text());
  folder.write("run.json", run_json(*run, folder, nullptr, "running"));
  say("run      " + folder.path().string() + "\n");

  const int64_t predicted = predicted_process_bytes(programs, *run->model);
  TrainResult result;
  try {
    Console console(run->data.entropy_per_token);
    result = train(*run->model, s, run->data, *backend, programs, &folder, console);
  } catch (const Error&) {
    folder.write("run.json", run_json(*run, folder, nullptr, "failed"));
    throw;
  }
  const int64_t peak = peak_resident_bytes();
  const double ceiling = cpu::measure_sgemm_ceiling();
  const double flops = update_flops(programs, s) / result.median_step_seconds;
  folder.write("run.json", run_json(*run, folder, &result, result.stopped ? "stopped" : "done"));
  folder.close();

  std::string out;
  if (!result.sample.empty()) out += "\nthe model writes:\n\n" + result.sample + "\n\n";
  out += ledger_report(result, ceiling);
  out += fmt::format(
      "\n  speed        {} tok/s, {} per update (median), {:.1f} GFLOP/s = {:.0f} % of the sgemm "
      "ceiling {:.1f}\n",
      human_count(result.tokens_per_second), human_seconds(result.median_step_seconds),
      flops * 1e-9, 100 * flops / ceiling, ceiling * 1e-9);
  out +=
      fmt::format("  memory       arena {} as planned; process peak {} (predicted {}, {:+.1f} %)\n",
                  human_bytes(programs.total_bytes()), human_bytes(peak), human_bytes(predicted),
                  100.0 * (static_cast<double>(predicted) / static_cast<double>(peak) - 1));
  out += fmt::format("  loss         training {:.4f} -> {:.4f}, validation {:.4f}",
                     result.first_loss, result.last_loss, result.validation_loss);
  if (run->data.entropy_per_token)
    out += fmt::format(" nats per character; the grammar's entropy is {:.4f} ({:+.1f} %)",
                       *run->data.entropy_per_token,
                       100 * (result.validation_loss / *run->data.entropy_per_token - 1));
  out += fmt::format("\n  run          {}\n", folder.path().string());
  std::fputs(out.c_str(), stdout);
  return result.stopped ? static_cast<int>(ErrorCode::stopped) : 0;
}

}  // namespace millrace
