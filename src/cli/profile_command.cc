// millrace profile: some updates of a training, measured; what they cost, and what they could.
#include <cstdio>
#include <nlohmann/json.hpp>

#include "cli/commands.h"
#include "cli/data_progress.h"
#include "cli/device.h"
#include "cli/memory_report.h"
#include "cli/standard_output.h"
#include "core/text.h"
#include "cpu/machine.h"
#include "doctor/machine_profile.h"
#include "doctor/profile_report.h"
#include "doctor/trace.h"
#include "train/signals.h"

namespace millrace {

int profile_command(const ProfileArguments& arguments) {
  [[maybe_unused]] static const auto* const signals = new TrainingSignals;
  auto say = [](const std::string& text) { std::fprintf(stderr, "%s\n", text.c_str()); };
  DataProgress progress;
  const auto run = load_run(arguments.request, progress);
  const auto backend = open_device(*run, say);
  settle_batch(*run, *backend, progress, [&](const std::string& text) { say("batch    " + text); });
  // Few updates are long ones, or a look at how long they are: little time is spent around them.
  const bool look = arguments.steps < 8;
  // A part of validation tells what all of it takes.
  const int64_t validated = look ? 4 : 24;
  if (run->data.validation)
    run->data.validation_stride =
        std::max<int64_t>(1, run->data.validation->batches_per_epoch() / validated);
  const Settings& s = run->settings;
  const Programs programs = plan_run(*run, *backend);
  check_fit(arguments.request, *run, programs, *backend);
  const auto folder = RunFolder::create(s.runs_folder, s.run_name + "-profile", false);
  folder->write("config.yaml", run->config_text);
  folder->set_config(run->schema.resolved_yaml());
  std::string note;
  MachineProfile machine = recall_machine(*backend, &note);
  if (!note.empty()) say("note     " + note);
  PrecisionProfile& known = machine.precisions[s.pass_precision()];
  const ProfileOptions options{
      .updates = arguments.steps,
      .warm_up = look && backend->on_host() ? 1 : warm_up_of(*backend, programs),
      .tail = look ? 1 : 4,
      .ceiling = known.ceiling};
  const std::string device = backend->on_host() ? cpu::machine_name() : backend->name();
  nlohmann::ordered_json record = {{"id", folder->id()},
                                   {"name", s.run_name + "-profile"},
                                   {"status", "profile"},
                                   {"machine", device},
                                   {"version", MILLRACE_VERSION}};
  auto write_record = [&] {
    folder->write("run.json",
                  record.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n");
  };
  write_record();
  say(fmt::format("machine  {} in {}\nprofile  {} updates after {} to warm up", device, s.precision,
                  options.updates, options.warm_up));
  constexpr size_t kSpans = 1 << 20;
  Timeline timeline(kSpans);
  const Profile result =
      profile(*run->model, s, run->data, *backend, programs, *folder, options, timeline);
  if (result.ceiling_is_new) known.take_ceiling(result.ceiling);
  if (known.ceiling.flops > 0 && known.ceiling.bytes > 0) {
    known.take_profile(result.ledger, result.watts);
    remember_machine(machine, *backend);
  }
  fs::remove_all(folder->path() / "checkpoints");
  record.update(profile_json(result));
  write_record();
  folder->write("profile.tsv", profile_text(result.ledger, result.ceiling));
  folder->write("trace.json.gz", gzip(trace_json(timeline, "millrace " + s.run_name, device)));
  folder->write("timeline.svg", timeline_picture(timeline));
  folder->close();
  if (arguments.json) {
    record["folder"] = folder->path().string();
    put(record.dump(2) + "\n");
    return 0;
  }
  std::string out = profile_report(result);
  if (timeline.left_out() > 0)
    out += fmt::format("the trace has room for {} spans; {} were left out\n", with_commas(kSpans),
                       with_commas(timeline.left_out()));
  put(out + fmt::format(
                "\n{}: trace.json.gz (for ui.perfetto.dev), timeline.svg, profile.tsv, run.json\n",
                folder->path().string()));
  return 0;
}

}  // namespace millrace
