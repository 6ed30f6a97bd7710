// What the driver's management library (NVML) says of a device: power, clocks, memory. It comes
// with the driver and is opened at run time; where it is missing or keeps silent, nothing is known.
#pragma once
#include <cstdint>
#include <optional>
#include <string>

#include "exec/backend.h"

namespace millrace::cuda {

class NvmlDevice {
 public:
  // Remembers how much of the device's memory is in use: to be made before the CUDA context is.
  explicit NvmlDevice(const std::string& uuid);
  std::optional<DeviceVitals> vitals() const;

 private:
  std::optional<int64_t> used_bytes() const;  // by everybody
  std::optional<int64_t> own_bytes() const;

  void* device_ = nullptr;
  std::optional<int64_t> used_before_;
};

}  // namespace millrace::cuda
