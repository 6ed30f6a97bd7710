// What the control groups of this process leave it of the machine: in a container a file says so,
// and neither the number of cores nor the memory that the system tells of does.
#pragma once
#include <cstdint>
#include <optional>

#include "core/file.h"

namespace millrace {

struct GroupLimits {
  std::optional<double> cores;  // of processor time in every second
  std::optional<int64_t> memory_bytes;
};

// The lowest of all groups that this process is in, of either version. `root` is another place to
// look in than `/`, for tests.
GroupLimits control_group_limits(const fs::path& root = "/");

}  // namespace millrace
