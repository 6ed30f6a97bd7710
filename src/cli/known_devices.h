// configs/devices/*.json, compiled in: profiles of devices that need not be here.
#pragma once
#include <span>
#include <string_view>

namespace millrace {
struct KnownDevice {
  std::string_view name, text;  // "nvidia-h200" and the file
};
extern const std::span<const KnownDevice> kKnownDevices;
}  // namespace millrace
