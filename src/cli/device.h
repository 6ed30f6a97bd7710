// What a run computes on: the `device` and `training.precision` of its config, resolved; the same
// for commands that have no config.
#pragma once
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "cli/load.h"
#include "doctor/machine_profile.h"
#include "exec/backend.h"
#include "train/program.h"

namespace millrace {

// Error when `device` is not auto, cpu, cuda or cuda:N; `where` is where it was said.
void check_device(const std::string& device, const std::string& where);
// With auto, a GPU that cannot be used is told to `note`, and the CPU is taken.
std::unique_ptr<Backend> open_device(const std::string& device, const BackendOptions& options,
                                     const std::function<void(const std::string&)>& note);
// A device that is not here, by its name (configs/devices) or the file of its profile; nothing
// where the word is one that open_device knows. Error (code config) when it is neither.
std::optional<MachineProfile> find_absent_device(const std::string& word);
// What one of this kind was measured to do (configs/devices); 0: nobody has measured one.
double known_flops(const DeviceKind& kind, Precision precision);
// Makes `auto` what the device is fast in. Error when it cannot compute so.
void settle_precision(Settings& settings, const Backend& backend, const std::string& where);
// The device of a run, or a stand-in for one that is not here. Settles what was `auto`.
std::unique_ptr<Backend> open_device(LoadedRun& run,
                                     const std::function<void(const std::string&)>& note,
                                     const MachineProfile* absent = nullptr);
// What plans of a run may take: runtime.memory_limit, or what the machine or its device has for it.
int64_t memory_room(const Settings& settings, const Backend& backend);
// Its plans, and its ceiling (doctor/machine_profile.h): the terminal says what takes seconds the
// first time.
Programs plan_run(const LoadedRun& run, Backend& backend);
MachineProfile machine_here(Backend& backend, Precision precision, const Ledger* seen = nullptr);
// `training.batch_size: auto`, by the memory that runtime.memory_limit allows or the device has.
// Says what came out of it and why.
void settle_batch(LoadedRun& run, Backend& backend, DataObserver& observer,
                  const std::function<void(const std::string&)>& note);

}  // namespace millrace
