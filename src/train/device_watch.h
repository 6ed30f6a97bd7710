// How a device is doing while a run trains on it: power, clock and energy, as metrics; and how much
// memory this process has.
#pragma once
#include <cstdint>
#include <optional>
#include <string>

#include "exec/backend.h"
#include "train/report.h"

namespace millrace {

class DeviceWatch {
 public:
  explicit DeviceWatch(const Backend& backend) : backend_(backend) {}
  // Adds device/… to the metrics, where the device tells, and memory/host_rss_bytes, at most once a
  // second: asking takes a millisecond. `tokens` counts those of this sitting. What a user should
  // know, or "".
  std::string add_to(Metrics& metrics, int64_t tokens);

 private:
  const Backend& backend_;
  int64_t asked_ns_ = 0, tokens_ = 0;
  std::optional<double> joules_;
};

}  // namespace millrace
