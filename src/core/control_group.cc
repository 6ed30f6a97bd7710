#include "core/control_group.h"

#include <algorithm>
#include <fstream>
#include <string>
#include <vector>

namespace millrace {
namespace {

// The first numbers of a small file; none where there is no such file, or it begins with a word
// such as `max`.
std::vector<int64_t> numbers_in(const fs::path& file) {
  std::ifstream in(file);
  std::vector<int64_t> numbers;
  for (int64_t number = 0; numbers.size() < 2 && in >> number;) numbers.push_back(number);
  return numbers;
}

template <typename T>
void lower(std::optional<T>& limit, T value) {
  if (value > 0) limit = std::min(limit.value_or(value), value);
}

// Control groups (7), /proc/[pid]/cgroup and the kernel's cgroup-v1 and cgroup-v2 pages.
void look_in(const fs::path& folder, GroupLimits& limits) {
  if (const auto quota = numbers_in(folder / "cpu.max"); quota.size() == 2 && quota[1] > 0)
    lower(limits.cores, static_cast<double>(quota[0]) / static_cast<double>(quota[1]));
  const auto quota = numbers_in(folder / "cpu.cfs_quota_us"),
             period = numbers_in(folder / "cpu.cfs_period_us");
  if (!quota.empty() && !period.empty() && period[0] > 0)  // a quota of -1 is none
    lower(limits.cores, static_cast<double>(quota[0]) / static_cast<double>(period[0]));
  for (const char* file : {"memory.max", "memory.limit_in_bytes"})
    if (const auto bytes = numbers_in(folder / file); !bytes.empty())
      lower(limits.memory_bytes, bytes[0]);
}

}  // namespace

GroupLimits control_group_limits(const fs::path& root) {
  GroupLimits limits;
  const fs::path groups = root / "sys/fs/cgroup";
  std::ifstream own(root / "proc/self/cgroup");
  for (std::string line; std::getline(own, line);) {
    // number:controllers:path
    const size_t first = line.find(':'), second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    fs::path path = fs::path(line.substr(second + 1)).relative_path().lexically_normal();
    if (!path.empty() && *path.begin() == "..") path.clear();  // outside of this namespace
    std::vector<fs::path> mounts{groups / controllers};
    if (controllers.empty()) mounts.push_back(groups / "unified");
    // Limits of a parent hold, too. Its own folder may not be seen from inside a container.
    for (const fs::path& mount : mounts)
      for (fs::path at = path;; at = at.parent_path()) {
        look_in(mount / at, limits);
        if (at.empty()) break;
      }
  }
  return limits;
}

}  // namespace millrace
