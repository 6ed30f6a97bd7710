// top_k on the CPU: a row at a time; what is not above the least that is kept is passed over in
// blocks.
#include <algorithm>
#include <cmath>

#include "cpu/kernel.h"
#include "cpu/parallel.h"

namespace millrace::cpu::MR_ISA {
namespace {

constexpr int64_t kBlock = 64;

bool any_above(const float* x, float least) {
  int any = 0;
#pragma omp simd reduction(| : any)
  for (int64_t i = 0; i < kBlock; ++i) any |= x[i] <= least ? 0 : 1;
  return any != 0;
}

void top_of_row(const float* x, int64_t V, int64_t k, float* values, int32_t* places) {
  int64_t kept = 0;
  auto offer = [&](int64_t i) {
    const auto goes_before = [&](float other) {
      return std::isnan(x[i]) ? !std::isnan(other) : x[i] > other;
    };
    if (kept == k && !goes_before(values[k - 1])) return;
    int64_t at = kept == k ? k - 1 : kept++;
    for (; at > 0 && goes_before(values[at - 1]); --at) {
      values[at] = values[at - 1];
      places[at] = places[at - 1];
    }
    values[at] = x[i];
    places[at] = static_cast<int32_t>(i);
  };
  for (int64_t begin = 0; begin < V; begin += kBlock) {
    const int64_t end = std::min(V, begin + kBlock);
    if (kept == k && end - begin == kBlock && !any_above(x + begin, values[k - 1])) continue;
    for (int64_t i = begin; i < end; ++i) offer(i);
  }
}

void run(const Call& c) {
  const int64_t V = c.in_shape(0).last(), k = c.out_shape(0).last();
  if (k == 0) return;
  auto* const places = static_cast<int32_t*>(c.out_data[1]);
  const int64_t rows_per_task = std::max<int64_t>(1, 32768 / V);
  parallel_ranges(c.in_shape(0).rows(), rows_per_task, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row)
      top_of_row(c.in(0) + row * V, V, k, c.out(0) + row * k, places + row * k);
  });
}

}  // namespace
}  // namespace millrace::cpu::MR_ISA

MR_CPU_KERNELS(top_k, {.name = "rows", .run = run})
