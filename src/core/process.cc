#include "core/process.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <fstream>
#include <sstream>
#include <string>
#include <thread>

namespace millrace {
namespace {

int64_t status_kib(const std::string& field) {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);)
    if (line.starts_with(field)) return std::stoll(line.substr(field.size() + 1));
  return 0;
}

// Ticks of the cores this process may use since the machine started: at work, and in all.
struct Ticks {
  double busy = 0, all = 0;
};
Ticks core_ticks() {
  cpu_set_t set;
  CPU_ZERO(&set);
  const bool known = sched_getaffinity(0, sizeof set, &set) == 0;
  Ticks ticks;
  std::ifstream stat("/proc/stat");
  for (std::string line; std::getline(stat, line);) {
    std::istringstream words(line);
    std::string name;
    int core = -1;
    if (!(words >> name) || !name.starts_with("cpu") || name == "cpu") continue;
    std::istringstream(name.substr(3)) >> core;
    if (core < 0 || core >= CPU_SETSIZE || (known && !CPU_ISSET(core, &set))) continue;
    // user nice system idle iowait ...
    double count = 0;
    for (int i = 0; i < 8 && words >> count; ++i) {
      ticks.all += count;
      if (i != 3 && i != 4) ticks.busy += count;
    }
  }
  return ticks;
}

}  // namespace

double busy_share(double seconds) {
  const Ticks before = core_ticks();
  std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
  const Ticks after = core_ticks();
  return after.all > before.all ? (after.busy - before.busy) / (after.all - before.all) : 0;
}

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
