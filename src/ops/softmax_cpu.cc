// softmax on the CPU, row by row: largest element, exponentials, their sum, division.
#include <algorithm>

#include "cpu/kernel.h"
#include "cpu/parallel.h"
#include "ops/row_math_cpu.h"

namespace millrace::cpu::MR_ISA {
namespace {

// About 64 KiB of a matrix: a task of some microseconds.
int64_t rows_per_task(int64_t S) { return std::max<int64_t>(1, 16384 / S); }

void run(const Call& c) {
  const Shape& shape = c.in_shape(0);
  const int64_t S = shape.last(), rows = S == 0 ? 0 : shape.numel() / S;
  if (rows == 0) return;
  const bool causal = c.attrs().integer("causal", 0) != 0;
  const int64_t T = causal ? shape.last(1) : 0;
  parallel_ranges(rows, rows_per_task(S), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const float* x = c.in(0) + i * S;
      float* y = c.out(0) + i * S;
      const int64_t seen = causal ? std::clamp<int64_t>(i % T + (S - T) + 1, 0, S) : S;
      const float largest = max_of(x, seen);
#pragma omp simd
      for (int64_t j = 0; j < seen; ++j) y[j] = exp_of_difference(x[j] - largest);
      const float factor = 1.0f / sum_over(seen, [=](int64_t j) { return y[j]; });
#pragma omp simd
      for (int64_t j = 0; j < seen; ++j) y[j] *= factor;
      std::fill(y + seen, y + S, 0.0f);
    }
  });
}

void run_grad(const Call& c) {
  const int64_t S = c.in_shape(0).last(), rows = S == 0 ? 0 : c.in_shape(0).numel() / S;
  if (rows == 0) return;
  parallel_ranges(rows, rows_per_task(S), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const float *y = c.in(0) + i * S, *dy = c.in(1) + i * S;
      float* dx = c.out(0) + i * S;
      const float dot = sum_over(S, [=](int64_t j) { return y[j] * dy[j]; });
#pragma omp simd
      for (int64_t j = 0; j < S; ++j) dx[j] = y[j] * (dy[j] - dot);
    }
  });
}

}  // namespace
}  // namespace millrace::cpu::MR_ISA

MR_CPU_KERNELS(softmax, {.name = "rows", .run = run})
MR_CPU_KERNELS(softmax_grad, {.name = "rows", .run = run_grad})
