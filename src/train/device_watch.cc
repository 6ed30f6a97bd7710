#include "train/device_watch.h"

#include "core/clock.h"
#include "core/process.h"

namespace millrace {

std::string DeviceWatch::add_to(Metrics& metrics, int64_t tokens) {
  if (asked_ns_ > 0 && seconds_since(asked_ns_) < 1) return "";
  asked_ns_ = now_ns();
  metrics["memory/host_rss_bytes"] = static_cast<double>(resident_bytes());
  const std::optional<DeviceVitals> vitals = backend_.vitals();
  if (!vitals) return "";
  if (vitals->watts) metrics["device/power_w"] = *vitals->watts;
  if (vitals->megahertz) metrics["device/clock_mhz"] = *vitals->megahertz;
  if (vitals->slowed) metrics["device/slowed"] = vitals->slowed->empty() ? 0 : 1;
  if (vitals->bytes) metrics["device/memory_bytes"] = static_cast<double>(*vitals->bytes);
  // The first reading is of everything before this run.
  if (vitals->joules && joules_ && tokens > tokens_)
    metrics["device/joules_per_token"] =
        (*vitals->joules - *joules_) / static_cast<double>(tokens - tokens_);
  joules_ = vitals->joules;
  tokens_ = tokens;
  if (!vitals->slowed || vitals->slowed->empty()) return "";
  return "the device holds its clock down: " + *vitals->slowed;
}

}  // namespace millrace
