// millrace train: from a config to a trained model, with the account of the time.
#include <unistd.h>

#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "cli/commands.h"
#include "cli/console.h"
#include "cli/data_progress.h"
#include "cli/device.h"
#include "cli/memory_report.h"
#include "cli/model_folder.h"
#include "cli/resume.h"
#include "cli/standard_output.h"
#include "core/process.h"
#include "core/text.h"
#include "cpu/machine.h"
#include "cpu/parallel.h"
#include "train/program.h"
#include "train/signals.h"

namespace millrace {
namespace {

void say(const std::string& text) { std::fprintf(stderr, "%s\n", text.c_str()); }

// run.json: what the run is and how it stands.
class RunRecord {
 public:
  RunRecord(const RunFolder& folder, const LoadedRun& run, const Resume& resume,
            const Backend& backend, int64_t parameters, int64_t total, const std::string& command,
            std::optional<int64_t> predicted_device_bytes)
      : folder_(folder) {
    json_ = {{"id", folder.id()},         {"name", run.settings.run_name},
             {"status", "running"},       {"command", command},
             {"pid", getpid()},           {"machine", cpu::machine_name()},
             {"device", backend.name()},  {"precision", run.settings.precision},
             {"parameters", parameters},  {"version", MILLRACE_VERSION},
             {"step", resume.state.step}, {"total", total}};
    if (predicted_device_bytes) json_["predicted_device_bytes"] = *predicted_device_bytes;
    if (resume.from && !resume.folder) json_["parent"] = resume.from->folder.string();
  }
  void write(const std::string& status, int exit_code, const TrainResult* result = nullptr) {
    json_["status"] = status;
    if (status != "running") json_["exit_code"] = exit_code;
    if (result) {
      json_["step"] = result->steps;
      json_["seconds"] = result->all_seconds;
      json_["tokens_per_second"] = result->tokens_per_second;
      json_["validation_loss"] = std::isfinite(result->validation_loss)
                                     ? nlohmann::ordered_json(result->validation_loss)
                                     : nlohmann::ordered_json(nullptr);
      if (result->best_metric) {
        json_["best_metric"] = *result->best_metric;
        json_["best_step"] = result->best_step;
      }
      json_["peak_resident_bytes"] = peak_resident_bytes();
      if (result->device_bytes) json_["device_bytes"] = *result->device_bytes;
    }
    folder_.write("run.json",
                  json_.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n");
  }

 private:
  const RunFolder& folder_;
  nlohmann::ordered_json json_;
};

// The state that is continued must be of this data.
void check_data(const Resume& resume, const LoadedRun& run) {
  const std::string digest = run.data.digest();
  if (!resume.from || digest == resume.state.data_digest) return;
  const std::string was = resume.state.data_digest + ", as the run began";
  if (!run.settings.data.allow_change)
    throw Error({.code = ErrorCode::config,
                 .what = "the training data is not what the run began with",
                 .where = run.schema.where("data.train"),
                 .expected = was,
                 .got = digest,
                 .remedy = "put the old data back, start a new run without --resume, or go on "
                           "with the new with data.allow_change=true"});
  say(fmt::format("data     {} (it was {}): the run goes on with other data", digest, was));
}

// What is read in part only: because it is too long, or in the stages of a curriculum.
void say_lengths(const LoadedRun& run, int64_t updates) {
  const TrainingData& data = run.data;
  if (!data.batches->cut().empty()) say("cut      " + data.batches->cut());
  if (data.validation && !data.validation->cut().empty())
    say("cut      of validation " + data.validation->cut());
  const Settings& s = run.settings;
  if (s.length_curriculum.empty()) return;
  std::string text;
  for (const auto& row : s.length_curriculum)
    text += fmt::format("{} + {} tokens up to update {}, ", row[1], row[2], with_commas(row[0]));
  text += fmt::format("then {} + {}", s.max_source_length, s.max_length);
  if (s.length_curriculum.back()[0] >= updates)
    text += fmt::format("; the run ends before, after {}", with_commas(updates));
  say("lengths  " + text);
}

}  // namespace

int train_command(TrainArguments arguments) {
  // From the first moment on, and to the very end: a signal that comes when all is done is no
  // failure.
  [[maybe_unused]] static const auto* const signals = new TrainingSignals;
  if (!arguments.run_name.empty())
    arguments.request.overrides.push_back("run_name=" + arguments.run_name);
  if (arguments.max_steps >= 0)
    arguments.request.overrides.push_back(
        fmt::format("training.max_steps={}", arguments.max_steps));
  Resume resume;
  if (arguments.resume) {
    // Without a config only the overrides say where runs are; the rest comes with the run.
    RunPlace place = run_place(arguments.request.overrides);
    if (!arguments.request.config.empty()) {
      const auto given = load_settings(arguments.request);
      place = {given->settings.runs_folder, given->settings.run_name};
    } else if (arguments.resume_from.empty() && place.name.empty()) {
      arguments.resume_from = "latest";
    }
    auto found = find_resume(place.folder, place.name, arguments.resume_from, say);
    if (found)
      resume = std::move(*found);
    else
      say("resume   no run called " + place.name + " yet; this is the first");
    if (found && arguments.request.config.empty())
      arguments.request.config = resume.config.string();
    if (found)
      arguments.request.settled_batch =
          load_settings({resume.config.string(), {}})->settings.batch_size;
  }
  DataProgress progress;
  const auto run = load_run(arguments.request, progress);
  const Settings& s = run->settings;
  const auto backend = open_device(*run, say);  // which knows what `training.precision: auto` is
  if (!resume.config.empty())
    check_changes(run->schema, s.data.allow_change, resume.config, say,
                  [&] { check_data(resume, *run); });
  resume.state.judge_by(s.checkpoint.metric);
  if (resume.from) backend->pin_choices(resume.state.choices);
  settle_batch(*run, *backend, progress, [](const std::string& text) { say("batch    " + text); });

  int64_t parameters = 0;
  for (const Parameter& p : run->model->parameters()) parameters += p.shape.numel();
  const Batches& batches = *run->data.batches;
  const BatchShape& largest = batches.shapes()[0];
  say(fmt::format("model    {} parameters; {}{} tokens x {} {} x {} micro-batches per update",
                  human_count(static_cast<double>(parameters)),
                  largest.source > 0 ? fmt::format("{} + ", largest.source) : "", largest.length,
                  largest.batch,
                  largest.packed       ? "packed rows"
                  : largest.source > 0 ? "pairs"
                                       : "sequences",
                  s.grad_accum));
  say("data     " + run->data.set.description());
  if (run->data.set.records || run->data.set.has_trajectories())
    say(fmt::format("batches  {}; {:.1f} % of their places hold a token", batches.order(),
                    100 * batches.useful_share()));
  const RunLength length = run->data.run_length(s);
  say_lengths(*run, length.total);
  say(fmt::format(
      "machine  {}{}", cpu::machine_name(),
      backend->on_host() ? "" : fmt::format("; {} in {}", backend->name(), s.precision)));
  const int64_t planning = now_ns();
  const Programs programs = plan_run(*run, *backend);
  check_fit(arguments.request, *run, programs, *backend);
  say(fmt::format(
      "plan     {} arena, {}{:.2f} GFLOP per update, planned in {}",
      human_bytes(programs.total_bytes()),
      programs.steps.size() > 1 ? fmt::format("{} shapes, up to ", programs.steps.size()) : "",
      update_cost(programs, s).flops * 1e-9, human_seconds(seconds_since(planning))));
  if (const std::string text = order_text(programs.step()); !text.empty()) say("order    " + text);
  if (resume.from)
    say(fmt::format("resume   {} ({} updates done{})", resume.from->folder.string(),
                    resume.state.step,
                    resume.from->manifest.plan == programs.step().hash()
                        ? ", to the bit"
                        : "; the plan is another one, so bits may differ"));

  if (resume.from && resume.folder && is_finished(resume.state, s, length)) {
    say(resume.state.step >= length.total
            ? fmt::format("the run has done its {} updates; a larger training.max_steps goes on",
                          length.total)
            : fmt::format("the run stopped early after {} updates; a larger "
                          "training.early_stop_patience goes on",
                          resume.state.step));
    return 0;
  }

  if (!s.tuning.init_from.empty() && !resume.from) {
    if (!run->weights_note.empty()) say("note     " + run->weights_note);
    check_folder_values(s.tuning.init_from, *run->model);
  }
  std::unique_ptr<RunFolder> own;
  if (!resume.folder) own = RunFolder::create(s.runs_folder, s.run_name);
  RunFolder& folder = own ? *own : *resume.folder;
  folder.write("config.yaml", run->config_text);
  folder.set_config(run->schema.resolved_yaml());
  std::string overrides;
  for (const std::string& o : arguments.request.overrides) overrides += o + "\n";
  folder.write("overrides.txt", overrides);
  folder.write("plan.txt", programs.step().text());
  const auto predicted = predicted_peak_bytes(programs, *run->model, *backend);
  RunRecord record(folder, *run, resume, *backend, parameters, length.total, arguments.command,
                   backend->on_host() ? std::nullopt : predicted);
  record.write("running", 0);
  say("run      " + folder.path().string() + "\n");

  TrainResult result;
  try {
    Console console(s, run->data.set.entropy_per_token, resume.from ? resume.state.step : 0,
                    length.total);
    result = train(*run->model, s, run->data, *backend, programs, &folder, console,
                   resume.from ? &*resume.from : nullptr);
  } catch (const Error& error) {
    folder.log(error.what());
    record.write(error.code() == ErrorCode::diverged ? "diverged" : "failed",
                 static_cast<int>(error.code()));
    throw;
  }
  const auto peak = backend->on_host() ? std::optional(peak_resident_bytes()) : result.device_bytes;
  const int code = result.save_error ? static_cast<int>(ErrorCode::failure)
                   : result.stopped  ? static_cast<int>(ErrorCode::stopped)
                                     : 0;
  record.write(result.save_error ? "failed" : result.stopped ? "stopped" : "done", code, &result);
  if (result.stopped) {
    folder.close();
    say(fmt::format("stopped after {} updates; `millrace train --resume {}` goes on", result.steps,
                    folder.path().string()));
    if (result.save_error) throw Error(*result.save_error);
    return code;
  }

  // A run that went to its end has loaded all it uses.
  const int64_t arena = programs.total_bytes();
  if (result.device_bytes && *result.device_bytes > arena)
    backend->note_overhead(programs.passes.precision, *result.device_bytes - arena);
  // Where the ceiling is not known, measuring it takes seconds: a shorter run does without it.
  Ceiling ceiling;
  if (const Precision precision = programs.passes.precision; result.seconds > 5)
    if (const MachineProfile machine = machine_here(*backend, precision, &result.ledger);
        const PrecisionProfile* known = machine.find(precision))
      ceiling = known->ceiling;
  folder.write("profile.tsv", profile_text(result.ledger, ceiling));
  folder.close();
  const double flops = result.flops_per_second;
  std::string out;
  if (!result.sample.empty()) out += "\nthe model writes:\n\n" + result.sample + "\n\n";
  out += ledger_report(result, ceiling);
  out +=
      fmt::format("\n  speed        {} tok/s, {} per update (median), {:.1f} GFLOP/s{}\n",
                  human_count(result.tokens_per_second), human_seconds(result.median_step_seconds),
                  flops * 1e-9,
                  ceiling.flops > 0 ? fmt::format(" = {:.0f} % of the ceiling {:.1f}",
                                                  100 * flops / ceiling.flops, ceiling.flops * 1e-9)
                                    : "");
  out += fmt::format("  memory       arena {} as planned{}\n", human_bytes(arena),
                     measured_text(peak, predicted, *backend));
  if (result.skipped_updates > 0)
    out += fmt::format("  health       {} updates skipped (not finite), {} roll-backs\n",
                       result.skipped_updates, result.rollbacks);
  if (result.best_metric)
    out += fmt::format("  best         {} {:.4f} after {} updates{}\n", s.checkpoint.metric,
                       *result.best_metric, result.best_step,
                       result.early_stopped ? "; stopped early, no gain since" : "");
  out += fmt::format("  loss         training {:.4f} -> {:.4f}, validation {:.4f}",
                     result.first_loss, result.last_loss, result.validation_loss);
  if (run->data.set.entropy_per_token)
    out += fmt::format(" nats per character; the grammar's entropy is {:.4f} ({:+.1f} %)",
                       *run->data.set.entropy_per_token,
                       100 * (result.validation_loss / *run->data.set.entropy_per_token - 1));
  out += fmt::format("\n  run          {}\n", folder.path().string());
  put(out);
  if (result.save_error) throw Error(*result.save_error);
  return 0;
}

}  // namespace millrace
