// copy_mass and its gradient on the CPU: a row of attention at a time against its row of the
// source.
#include <algorithm>
#include <cstring>

#include "cpu/kernel.h"
#include "cpu/parallel.h"
#include "cpu/softmax_lanes.h"

namespace millrace::cpu::MR_ISA {
namespace {

// About 128 KiB of attention: a task of some ten microseconds.
int64_t rows_per_task(int64_t S) { return std::max<int64_t>(1, 32768 / std::max<int64_t>(1, S)); }

// x where words is `word`, else 0.
Lanes matching(const float* x, const int32_t* words, int32_t word) {
  Integers here;
  std::memcpy(&here, words, sizeof here);
  return here == word ? load<Lanes>(x) : Lanes{};
}

// Their sum over a row; word >= 0. In vectors written out: a loop that the compiler vectorises is
// inlined into the serial and the parallel path, and was summed in two orders.
float matching_sum(const float* x, const int32_t* words, int64_t n, int32_t word) {
  constexpr int kSums = 4;  // hide the latency of an addition
  Lanes sums[kSums] = {};
  int64_t s = 0;
  for (; s + kSums * kLanes <= n; s += kSums * kLanes)
#pragma GCC unroll 4
    for (int k = 0; k < kSums; ++k)
      sums[k] += matching(x + s + k * kLanes, words + s + k * kLanes, word);
  for (; s + kLanes <= n; s += kLanes) sums[0] += matching(x + s, words + s, word);
  float last[kLanes] = {};
  int32_t last_words[kLanes];
  std::fill_n(last_words, kLanes, -1);
  std::copy(x + s, x + n, last);
  std::copy(words + s, words + n, last_words);
  sums[1] += matching(last, last_words, word);
  return across((sums[0] + sums[1]) + (sums[2] + sums[3]), [](Lanes a, Lanes b) { return a + b; });
}

void run(const Call& c) {
  const int64_t B = c.in_shape(1)[0], S = c.in_shape(1)[1];
  parallel_ranges(c.out_shape(0).numel(), rows_per_task(S), [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const int32_t target = c.ids(2)[row];
      c.out(0)[row] =
          target < 0 ? 0.0f : matching_sum(c.in(0) + row * S, c.ids(1) + row % B * S, S, target);
    }
  });
}

void run_grad(const Call& c) {
  const int64_t B = c.in_shape(1)[0], S = c.in_shape(1)[1];
  parallel_ranges(c.in_shape(0).numel(), rows_per_task(S), [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const int32_t *source = c.ids(1) + row % B * S, target = c.ids(2)[row];
      const float dmass = target < 0 ? 0.0f : c.in(0)[row];
      float* to = c.out(0) + row * S;
#pragma omp simd
      for (int64_t s = 0; s < S; ++s) to[s] = source[s] == target ? dmass : 0.0f;
    }
  });
}

}  // namespace
}  // namespace millrace::cpu::MR_ISA

MR_CPU_KERNELS(copy_mass, {.name = "rows", .run = run})
MR_CPU_KERNELS(copy_mass_grad, {.name = "rows", .run = run_grad})
