// Products of a few rows with a large matrix, C[m,n] = A[m,k] op(B) with m <= 4: bound by how fast
// B comes out of memory, which oneDNN's kernels for square-ish products do not reach. B is read
// once, in order, for all rows of A. Each element of C is one sum in an order that follows from k
// alone. Everything is in namespace MR_ISA: each instruction set gets its own copy.
#pragma once
#include <algorithm>
#include <cstdint>

#include "cpu/small_gemm.h"
#include "cpu/softmax_lanes.h"

namespace millrace::cpu::MR_ISA {

constexpr int64_t kGemvRows = 4;

// Columns [j0, j1) of C, B stored [k,n]: kDepth rows of B at a time are added to the sums, which
// stay in the first-level cache.
template <int M>
inline void gemv_columns(int64_t n, int64_t k, const float* a, const float* b, float* c, int64_t j0,
                         int64_t j1) {
  constexpr int64_t kDepth = 8;
  for (int m = 0; m < M; ++m) std::fill(c + m * n + j0, c + m * n + j1, 0.0f);
  const int64_t whole = j0 + (j1 - j0) / kLanes * kLanes;
  for (int64_t p = 0; p < k; p += kDepth) {
    const int64_t depth = std::min(kDepth, k - p);
    const float* rows = b + p * n;
    for (int64_t j = j0; j < whole; j += kLanes) {
      Lanes sum[M];
      for (int m = 0; m < M; ++m) sum[m] = load<Lanes>(c + m * n + j);
      auto add = [&](int64_t r) {
        // The same columns of the next rows: another page, where the hardware does not look ahead.
        __builtin_prefetch(rows + (r + kDepth) * n + j);
        const Lanes right = load<Lanes>(rows + r * n + j);
        for (int m = 0; m < M; ++m) sum[m] += a[m * k + p + r] * right;
      };
      if (depth == kDepth) {
#pragma GCC unroll 8
        for (int64_t r = 0; r < kDepth; ++r) add(r);
      } else {
        for (int64_t r = 0; r < depth; ++r) add(r);
      }
      for (int m = 0; m < M; ++m) store(c + m * n + j, sum[m]);
    }
    for (int m = 0; m < M; ++m)
      for (int64_t j = whole; j < j1; ++j)
        for (int64_t r = 0; r < depth; ++r) c[m * n + j] += a[m * k + p + r] * rows[r * n + j];
  }
}

// Columns [j0, j0 + N) of C, B stored [n,k]: N rows of B side by side.
template <int M, int N>
inline void gemv_dots(int64_t n, int64_t k, const float* a, const float* b, float* c, int64_t j0) {
  Lanes sums[M][N] = {};
  int64_t p = 0;
  for (; p + kLanes <= k; p += kLanes) {
    Lanes right[N];
#pragma GCC unroll 4
    for (int r = 0; r < N; ++r) right[r] = load<Lanes>(b + (j0 + r) * k + p);
#pragma GCC unroll 4
    for (int m = 0; m < M; ++m) {
      const Lanes left = load<Lanes>(a + m * k + p);
#pragma GCC unroll 4
      for (int r = 0; r < N; ++r) sums[m][r] += left * right[r];
    }
  }
  for (int m = 0; m < M; ++m)
    for (int r = 0; r < N; ++r) {
      float sum = across(sums[m][r], [](Lanes x, Lanes y) { return x + y; });
      for (int64_t q = p; q < k; ++q) sum += a[m * k + q] * b[(j0 + r) * k + q];
      c[m * n + j0 + r] = sum;
    }
}

template <int M>
inline void gemv_rows(int64_t n, int64_t k, const float* a, const float* b, float* c, int64_t j0,
                      int64_t j1) {
  constexpr int kTogether = M <= 2 ? 4 : 2;  // sums in registers
  int64_t j = j0;
  for (; j + kTogether <= j1; j += kTogether) gemv_dots<M, kTogether>(n, k, a, b, c, j);
  for (; j < j1; ++j) gemv_dots<M, 1>(n, k, a, b, c, j);
}

// How wide a task is: at least so many bytes of B that handing it out costs nothing, and narrow
// enough that the last tasks of a small product do not leave threads idle.
inline int64_t gemv_task_columns(int64_t n, int64_t k, bool b_is_nk) {
  constexpr int64_t kTaskFloats = 32768, kStrip = 256, kNarrow = 128;
  if (b_is_nk) return std::max<int64_t>(4, kTaskFloats / std::max<int64_t>(1, k) / 4 * 4);
  return n > 4 * kStrip ? kStrip : kNarrow;
}

// Columns [j0, j1) of C = A op(B), m <= kGemvRows rows.
inline void gemv(int64_t m, int64_t n, int64_t k, bool b_is_nk, const float* a, const float* b,
                 float* c, int64_t j0, int64_t j1) {
  auto with = [&](auto rows) {
    constexpr int M = decltype(rows)::value;
    if (b_is_nk)
      gemv_rows<M>(n, k, a, b, c, j0, j1);
    else
      gemv_columns<M>(n, k, a, b, c, j0, j1);
  };
  switch (m) {
    case 1:
      return with(std::integral_constant<int, 1>{});
    case 2:
      return with(std::integral_constant<int, 2>{});
    case 3:
      return with(std::integral_constant<int, 3>{});
    default:
      return with(std::integral_constant<int, 4>{});
  }
}

}  // namespace millrace::cpu::MR_ISA
