// What a run computes on: the `device` and `training.precision` of its config, resolved.
#pragma once
#include <functional>
#include <memory>
#include <string>

#include "cli/load.h"
#include "exec/backend.h"

namespace millrace {

// Error when `device` is not auto, cpu, cuda or cuda:N.
void check_device(const LoadedRun& run);
// Opens the device and settles what was `auto`. With auto, a GPU that cannot be used is told to
// `note`, and the CPU is taken.
std::unique_ptr<Backend> open_device(LoadedRun& run,
                                     const std::function<void(const std::string&)>& note);

}  // namespace millrace
