// softmax on the CPU, row by row: largest element, exponentials, their sum, division.
#include <algorithm>

#include "cpu/kernel.h"
#include "cpu/parallel.h"
#include "cpu/vector_math.h"
#include "ops/row_math_cpu.h"

namespace millrace::cpu::MR_ISA {
namespace {

// About 64 KiB of a matrix: a task of some microseconds.
int64_t rows_per_task(int64_t S) { return std::max<int64_t>(1, 16384 / S); }

void softmax_row(const float* x, float* y, int64_t n) {
  const float largest = max_of(x, n);
#pragma omp simd
  for (int64_t j = 0; j < n; ++j) y[j] = vexp(x[j] - largest);
  const float factor = 1.0f / sum_over(n, [=](int64_t j) { return y[j]; });
#pragma omp simd
  for (int64_t j = 0; j < n; ++j) y[j] *= factor;
}

void run(const Call& c) {
  const Shape& shape = c.in_shape(0);
  const int64_t S = shape.last(), rows = S == 0 ? 0 : shape.numel() / S;
  if (rows == 0) return;
  const bool causal = c.attrs().integer("causal", 0) != 0;
  const int64_t T = causal ? shape.last(1) : 0;
  parallel_ranges(rows, rows_per_task(S), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      float* y = c.out(0) + i * S;
      const int64_t seen = causal ? std::clamp<int64_t>(i % T + (S - T) + 1, 0, S) : S;
      softmax_row(c.in(0) + i * S, y, seen);
      std::fill(y + seen, y + S, 0.0f);
    }
  });
}

void grad_row(const float* y, const float* dy, float* dx, int64_t n) {
  const float dot = sum_over(n, [=](int64_t j) { return y[j] * dy[j]; });
#pragma omp simd
  for (int64_t j = 0; j < n; ++j) dx[j] = y[j] * (dy[j] - dot);
}

void run_grad(const Call& c) {
  const int64_t S = c.in_shape(0).last(), rows = S == 0 ? 0 : c.in_shape(0).numel() / S;
  if (rows == 0) return;
  parallel_ranges(rows, rows_per_task(S), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i)
      grad_row(c.in(0) + i * S, c.in(1) + i * S, c.out(0) + i * S, S);
  });
}

}  // namespace
}  // namespace millrace::cpu::MR_ISA

MR_CPU_KERNELS(softmax, {.name = "rows", .run = run})
MR_CPU_KERNELS(softmax_grad, {.name = "rows", .run = run_grad})
