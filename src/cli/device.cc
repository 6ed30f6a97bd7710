#include "cli/device.h"

#include <charconv>
#include <optional>

#include "core/process.h"
#include "cpu/cpu_backend.h"
#include "cpu/gemm.h"
#include "cpu/machine.h"
#include "cpu/parallel.h"
#include "exec/cuda_library.h"
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
  if (device == "cpu" || (device == "auto" && !has_cuda_library())) return cpu();
  if (device != "auto") return open_cuda(*cuda_index(device), options);
  try {
    return open_cuda(0, options);
  } catch (const Error& error) {
    note(fmt::format("the CPU computes: {}", error.fields().what));
    return cpu();
  }
}

void settle_precision(Settings& settings, const Backend& backend, const std::string& where) {
  if (settings.precision == "auto") settings.precision = precision_name(backend.usual_precision());
  if (backend.computes(settings.pass_precision())) return;
  throw Error({.code = ErrorCode::config,
               .what = fmt::format("{} does not compute in {}", backend.name(), settings.precision),
               .where = where,
               .expected = "fp32 or auto on the CPU",
               .got = settings.precision,
               .remedy = "auto takes what the device is fast in"});
}

std::unique_ptr<Backend> open_device(LoadedRun& run,
                                     const std::function<void(const std::string&)>& note) {
  Settings& s = run.settings;
  cpu::set_threads(static_cast<int>(s.threads));
  auto backend = open_device(s.device, {.capture = s.use_compile}, note);
  if (s.device == "auto") run.schema.note("device", "auto: " + backend->name());
  if (s.precision == "auto")
    run.schema.note("training.precision", "auto: what " + backend->name() + " is fast in");
  settle_precision(s, *backend, run.schema.where("training.precision"));
  return backend;
}

void settle_batch(LoadedRun& run, Backend& backend, DataObserver& observer,
                  const std::function<void(const std::string&)>& note) {
  if (!run.batch_is_open) return;
  const Settings& s = run.settings;
  const Takes takes = run.model->takes();
  if (s.data.batch_tokens > 0 && batch_options(run.data.set, s, takes).batching == "buckets")
    return take_batch(run, s.batch_size, "data.batch_tokens decides");
  // The rest is for others, and for what a device has beside the arena until a run has measured it.
  const int64_t limit =
      s.memory_limit > 0
          ? s.memory_limit
          : (backend.on_host() ? machine_memory_bytes() : backend.memory_bytes()) / 10 * 9;
  const bool measuring = cpu::gemm_measuring();
  cpu::gemm_set_measuring(false);  // sizes only
  const AutoBatch found = choose_batch(*run.model, s, run.data, limit, backend);
  cpu::gemm_set_measuring(measuring);
  take_batch(run, found.batch, found.reason);
  run.data = make_training_data(std::move(run.data.set), s, takes, observer);
  note(fmt::format("{} (auto: {})", found.batch, found.reason));
}

}  // namespace millrace
