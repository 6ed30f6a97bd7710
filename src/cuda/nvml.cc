#include "cuda/nvml.h"

#include <dlfcn.h>
#include <unistd.h>

#include <array>
#include <utility>

namespace millrace::cuda {
namespace {

// Of nvml.h, which not every toolkit has: its C interface does not change.
constexpr int kSuccess = 0, kClockOfMultiprocessors = 1;
struct Memory {
  unsigned long long total, free, used;
};
struct Process {
  unsigned number;
  unsigned long long bytes;
  unsigned gpu_instance, compute_instance;
};
constexpr unsigned long long kNotTold = ~0ull;
// Reasons for a lower clock, by bit. Idleness and a user's own setting are no complaint.
constexpr std::pair<unsigned long long, const char*> kReasons[] = {
    {0x04, "power cap"},       {0x08, "hardware slowdown"}, {0x20, "heat"},
    {0x40, "heat (hardware)"}, {0x80, "power brake"},
};

// A function of the library, or one that fails.
template <typename... Arguments>
class Function {
 public:
  Function(void* library, const char* name, const char* older = nullptr) {
    if (!library) return;
    call_ = reinterpret_cast<int (*)(Arguments...)>(dlsym(library, name));
    if (!call_ && older) call_ = reinterpret_cast<int (*)(Arguments...)>(dlsym(library, older));
  }
  bool operator()(Arguments... arguments) const { return call_ && call_(arguments...) == kSuccess; }

 private:
  int (*call_)(Arguments...) = nullptr;
};

struct Library {
  void* handle = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
  Function<> init{handle, "nvmlInit_v2"};
  Function<const char*, void**> by_uuid{handle, "nvmlDeviceGetHandleByUUID"};
  Function<void*, unsigned*> milliwatts{handle, "nvmlDeviceGetPowerUsage"};
  Function<void*, int, unsigned*> clock{handle, "nvmlDeviceGetClockInfo"};
  Function<void*, unsigned long long*> millijoules{handle, "nvmlDeviceGetTotalEnergyConsumption"};
  Function<void*, unsigned long long*> reasons{handle, "nvmlDeviceGetCurrentClocksEventReasons",
                                               "nvmlDeviceGetCurrentClocksThrottleReasons"};
  Function<void*, Memory*> memory{handle, "nvmlDeviceGetMemoryInfo"};
  // Not an older one: its struct is shorter.
  Function<void*, unsigned*, Process*> processes{handle, "nvmlDeviceGetComputeRunningProcesses_v3"};
  bool works = init();
};
const Library& library() {
  static const Library& opened = *new Library;  // until the process ends, as the driver
  return opened;
}

}  // namespace

NvmlDevice::NvmlDevice(const std::string& uuid) {
  if (library().works && !library().by_uuid(uuid.c_str(), &device_)) device_ = nullptr;
  used_before_ = used_bytes();
}

std::optional<int64_t> NvmlDevice::used_bytes() const {
  Memory memory{};
  if (!device_ || !library().memory(device_, &memory)) return {};
  return static_cast<int64_t>(memory.used);
}

std::optional<int64_t> NvmlDevice::own_bytes() const {
  std::array<Process, 64> list{};
  auto count = static_cast<unsigned>(list.size());
  if (!device_ || !library().processes(device_, &count, list.data())) count = 0;
  for (unsigned i = 0; i < count; ++i)
    if (list[i].number == static_cast<unsigned>(getpid()) && list[i].bytes != kNotTold)
      return static_cast<int64_t>(list[i].bytes);
  // In a container the list has other numbers, or nobody. What several have taken since is not
  // what this one has.
  if (count > 1) return {};
  const auto used = used_bytes();
  if (!used || !used_before_) return {};
  return *used - *used_before_;
}

std::optional<DeviceVitals> NvmlDevice::vitals() const {
  if (!device_) return {};
  DeviceVitals vitals;
  unsigned number = 0;
  if (library().milliwatts(device_, &number)) vitals.watts = 1e-3 * number;
  if (library().clock(device_, kClockOfMultiprocessors, &number)) vitals.megahertz = number;
  unsigned long long wide = 0;
  if (library().millijoules(device_, &wide)) vitals.joules = 1e-3 * static_cast<double>(wide);
  if (library().reasons(device_, &wide)) {
    std::string& slowed = vitals.slowed.emplace();
    for (const auto& [bit, text] : kReasons)
      if (wide & bit) slowed += (slowed.empty() ? "" : ", ") + std::string(text);
  }
  vitals.bytes = own_bytes();
  const auto used = used_bytes();
  vitals.others_bytes = vitals.bytes && used ? *used - *vitals.bytes : used_before_;
  return vitals;
}

}  // namespace millrace::cuda
