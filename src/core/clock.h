// The monotonic clock. Every duration in Millrace is a difference of two of these.
#pragma once
#include <time.h>

#include <cstdint>

namespace millrace {

inline int64_t now_ns() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return int64_t{t.tv_sec} * 1'000'000'000 + t.tv_nsec;
}
inline double seconds_since(int64_t start_ns) {
  return static_cast<double>(now_ns() - start_ns) * 1e-9;
}

}  // namespace millrace
