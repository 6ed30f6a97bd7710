#include "cli/device.h"

#include <fmt/ranges.h>

#include <charconv>

#include "cli/known_devices.h"
#include "cli/status_line.h"
#include "core/process.h"
#include "cpu/cpu_backend.h"
#include "cpu/machine.h"
#include "cpu/parallel.h"
#include "doctor/absent_device.h"
#include "exec/cuda_library.h"
#include "io/quote.h"
#include "train/auto_batch.h"

namespace millrace {
namespace {

// 1 of "cuda:1", 0 of "cuda"; nothing when it is neither.
std::optional<int> cuda_index(std::string_view device) {
  if (device == "cuda") return 0;
  if (!device.starts_with("cuda:")) return std::nullopt;
  device.remove_prefix(5);
  int index = 0;
  const auto [end, fault] = std::from_chars(device.data(), device.data() + device.size(), index);
  if (fault != std::errc() || end != device.data() + device.size() || index < 0)
    return std::nullopt;
  return index;
}

}  // namespace

void check_device(const std::string& device, const std::string& where) {
  if (device == "auto" || device == "cpu" || cuda_index(device)) return;
  throw Error({.code = ErrorCode::config,
               .what = "no device of this name",
               .where = where,
               .expected = "auto, cpu, cuda, or cuda:N",
               .got = device,
               .remedy = "auto takes a GPU where there is one"});
}

std::unique_ptr<Backend> open_device(const std::string& device, const BackendOptions& options,
                                     const std::function<void(const std::string&)>& note) {
  const auto cpu = [] { return cpu::make_backend(cpu::best_isa()); };
  if (device == "cpu" || (device == "auto" && !has_cuda_library() && !has_nvidia_driver()))
    return cpu();
  if (device != "auto") return open_cuda(*cuda_index(device), options);
  try {
    return open_cuda(0, options);
  } catch (const Error& error) {
    note(fmt::format("the CPU computes: {}", error.fields().what));
    return cpu();
  }
}

std::optional<MachineProfile> find_absent_device(const std::string& word) {
  if (word.empty() || word == "auto" || word == "cpu" || cuda_index(word)) return std::nullopt;
  std::vector<std::string> names;
  for (const KnownDevice& known : kKnownDevices) {
    names.emplace_back(known.name);
    if (word == known.name || known.name.ends_with("-" + word))
      return parse_machine_profile(known.text, names.back());
  }
  constexpr int64_t kMostBytes = 1 << 20;
  if (fs::is_regular_file(word)) return parse_machine_profile(read_file(word, kMostBytes), word);
  throw Error({.code = ErrorCode::config,
               .what = "no device of this name, and no file",
               .where = "command line: --device " + printable(word, 200),
               .expected = fmt::format("auto, cpu, cuda, cuda:N; {}; or the file of a profile",
                                       fmt::join(names, ", ")),
               .got = printable(word, 200),
               .remedy = "`millrace profile CONFIG` on that device writes its profile: "
                         "machines/*.json in its cache folder"});
}

double known_flops(const DeviceKind& kind, Precision precision) {
  for (const KnownDevice& known : kKnownDevices) {
    const MachineProfile machine = parse_machine_profile(known.text, std::string(known.name));
    if (machine.device != kind.device) continue;
    if (const PrecisionProfile* p = machine.find(precision)) return p->ceiling.flops;
  }
  return 0;
}

void settle_precision(Settings& settings, const Backend& backend, const std::string& where) {
  if (settings.precision == "auto") settings.precision = precision_name(backend.usual_precision());
  if (backend.computes(settings.pass_precision())) return;
  std::string has = "auto";
  for (const Precision p : {Precision::fp32, Precision::tf32, Precision::bf16, Precision::fp16})
    if (backend.computes(p)) has += fmt::format(", {}", precision_name(p));
  throw Error({.code = ErrorCode::config,
               .what = fmt::format("{} does not compute in {}", backend.name(), settings.precision),
               .where = where,
               .expected = has,
               .got = settings.precision,
               .remedy = settings.precision == "bf16" && backend.on_host()
                             ? "auto; bf16 on a CPU is for those with AVX-512 BF16, and on any GPU"
                             : "auto takes what is usual for the device"});
}

std::unique_ptr<Backend> open_device(LoadedRun& run,
                                     const std::function<void(const std::string&)>& note,
                                     const MachineProfile* absent) {
  Settings& s = run.settings;
  cpu::set_threads(static_cast<int>(s.threads), s.pin_threads);
  const BackendOptions options{.capture = s.use_compile, .runs_at_once = s.steps_per_replay};
  auto backend = absent ? absent_device(*absent, options) : open_device(s.device, options, note);
  if (s.device == "auto") run.schema.note("device", "auto: " + backend->name());
  if (s.precision == "auto")
    run.schema.note("training.precision", "auto: what " + backend->name() + " is fast in");
  settle_precision(s, *backend, run.schema.where("training.precision"));
  return backend;
}

int64_t memory_room(const Settings& settings, const Backend& backend) {
  if (settings.memory_limit > 0) return settings.memory_limit;
  return backend.on_host() ? machine_memory_bytes() : backend.room_bytes();
}

Programs plan_run(const LoadedRun& run, Backend& backend) {
  const Waiting waiting("plan     new matrix products are timed, once for this machine");
  return make_programs(*run.model, run.settings, run.data.shapes(), backend);
}

MachineProfile machine_here(Backend& backend, Precision precision, const Ledger* seen) {
  const Waiting waiting("machine  its ceiling is measured, once");
  return measured_machine(backend, precision, seen);
}

void settle_batch(LoadedRun& run, Backend& backend, DataObserver& observer,
                  const std::function<void(const std::string&)>& note) {
  if (!run.batch_is_open) return;
  const Settings& s = run.settings;
  const Takes takes = run.model->takes();
  if (s.data.batch_tokens > 0 && batch_options(run.data.set, s, takes).batching == "buckets")
    return take_batch(run, s.batch_size, "data.batch_tokens decides");
  // The rest is for others, and for what a device has beside the arena until a run has measured it.
  const int64_t room = memory_room(s, backend), limit = s.memory_limit > 0 ? room : room / 10 * 9;
  const AutoBatch found = [&] {
    const SizesOnly sizes(backend);
    return choose_batch(*run.model, s, run.data, limit, backend);
  }();
  take_batch(run, found.batch, found.reason);
  run.data = make_training_data(std::move(run.data.set), s, takes, observer);
  note(fmt::format("{} (auto: {})", found.batch, found.reason));
}

}  // namespace millrace
