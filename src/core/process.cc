#include "core/process.h"

#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <string>

namespace millrace {
namespace {

int64_t status_kib(const std::string& field) {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);)
    if (line.starts_with(field)) return std::stoll(line.substr(field.size() + 1));
  return 0;
}

}  // namespace

int64_t resident_bytes() { return status_kib("VmRSS") * 1024; }
int64_t peak_resident_bytes() { return status_kib("VmHWM") * 1024; }

int64_t machine_memory_bytes() {
  int64_t bytes = static_cast<int64_t>(sysconf(_SC_PHYS_PAGES)) * sysconf(_SC_PAGE_SIZE);
  std::ifstream limit("/sys/fs/cgroup/memory.max");
  int64_t group = 0;
  if (limit >> group && group > 0) bytes = std::min(bytes, group);
  return bytes;
}

}  // namespace millrace
