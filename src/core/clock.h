// The monotonic clock. Every duration in Millrace is a difference of two of these.
#pragma once
#include <time.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

namespace millrace {

inline int64_t now_ns() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return int64_t{t.tv_sec} * 1'000'000'000 + t.tv_nsec;
}
inline double seconds_since(int64_t start_ns) {
  return static_cast<double>(now_ns() - start_ns) * 1e-9;
}

// The wall clock, for people: as strftime.
inline std::string local_time(const char* format) {
  const time_t now = time(nullptr);
  tm local{};
  localtime_r(&now, &local);
  char text[64];
  return {text, strftime(text, sizeof text, format, &local)};
}

// The middle one of several durations; 0 for none.
inline double median(std::vector<double> values) {
  if (values.empty()) return 0;
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

}  // namespace millrace
