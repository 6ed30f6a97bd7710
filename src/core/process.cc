#include "core/process.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <fstream>
#include <sstream>
#include <string>
#include <thread>

#include "core/control_group.h"

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
  const std::vector<int> cores = allowed_cores();
  Ticks ticks;
  std::ifstream stat("/proc/stat");
  for (std::string line; std::getline(stat, line);) {
    std::istringstream words(line);
    std::string name;
    int core = -1;
    if (!(words >> name) || !name.starts_with("cpu") || name == "cpu") continue;
    std::istringstream(name.substr(3)) >> core;
    if (core < 0 || (!cores.empty() && !std::ranges::binary_search(cores, core))) continue;
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

std::vector<int> allowed_cores() {
  std::vector<int> cores;
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof set, &set) != 0) return cores;
  for (int core = 0; core < CPU_SETSIZE; ++core)
    if (CPU_ISSET(core, &set)) cores.push_back(core);
  return cores;
}

int usable_cores() {
  static const int cores = [] {
    const size_t known = allowed_cores().size();
    const double all = known > 0 ? static_cast<double>(known)
                                 : static_cast<double>(std::thread::hardware_concurrency()),
                 granted = control_group_limits().cores.value_or(all);
    return static_cast<int>(std::max(1L, std::lround(std::min(all, granted))));
  }();
  return cores;
}

double busy_share(double seconds) {
  const Ticks before = core_ticks();
  std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
  const Ticks after = core_ticks();
  return after.all > before.all ? (after.busy - before.busy) / (after.all - before.all) : 0;
}

int64_t resident_bytes() { return status_kib("VmRSS") * 1024; }
int64_t peak_resident_bytes() { return status_kib("VmHWM") * 1024; }

int64_t machine_memory_bytes() {
  const int64_t bytes = static_cast<int64_t>(sysconf(_SC_PHYS_PAGES)) * sysconf(_SC_PAGE_SIZE);
  return std::min(bytes, control_group_limits().memory_bytes.value_or(bytes));
}

}  // namespace millrace
