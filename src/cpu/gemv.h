// Products of a few rows with a large matrix, C[m,n] = A[m,k] op(B) with m <= 4: bound by how fast
// B comes out of memory, whatever the kernel. B is read once, in order, for all rows of A, and no
// shape has to be measured first. Each element of C is one sum in an order that follows from k
// alone. Everything is in namespace MR_ISA: each instruction set gets its own copy.
#pragma once
#include <algorithm>
#include <cstdint>

#include "cpu/small_gemm.h"
#include "cpu/softmax_lanes.h"

namespace millrace::cpu::MR_ISA {

constexpr int64_t kGemvRows = 4;

// B stored [k,n] is cut into slabs of whole rows, so that each thread reads memory in order. A slab
// gives a share of every element of C.
constexpr int64_t kSlabRows = 32;  // the shares are a 32nd of B, and stay in cache
inline int64_t gemv_slabs(int64_t k) { return (k + kSlabRows - 1) / kSlabRows; }

// share[M][n] = A[:, p0 .. p1) B[p0 .. p1, :]
template <int M>
inline void gemv_slab(int64_t n, int64_t k, const float* a, const float* b, int64_t p0, int64_t p1,
                      float* share) {
  constexpr int64_t kDepth = 8, kStrip = 4096;  // sums of a strip stay in the first-level cache
  std::fill_n(share, M * n, 0.0f);
  for (int64_t j0 = 0; j0 < n; j0 += kStrip) {
    const int64_t j1 = std::min(n, j0 + kStrip), whole = j0 + (j1 - j0) / kLanes * kLanes;
    for (int64_t p = p0; p < p1; p += kDepth) {
      const int64_t depth = std::min(kDepth, p1 - p);
      const float* rows = b + p * n;
      auto columns = [&](int64_t j, auto vectors) {  // [j, j + N vectors)
        constexpr int N = decltype(vectors)::value;
        Lanes sum[M][N];
        for (int m = 0; m < M; ++m)
          for (int v = 0; v < N; ++v) sum[m][v] = load<Lanes>(share + m * n + j + v * kLanes);
        auto add = [&](int64_t r) {
          for (int v = 0; v < N; ++v) {
            const Lanes right = load<Lanes>(rows + r * n + j + v * kLanes);
            for (int m = 0; m < M; ++m) sum[m][v] += a[m * k + p + r] * right;
          }
        };
        if (depth == kDepth) {
#pragma GCC unroll 8
          for (int64_t r = 0; r < kDepth; ++r) add(r);
        } else {
          for (int64_t r = 0; r < depth; ++r) add(r);
        }
        for (int m = 0; m < M; ++m)
          for (int v = 0; v < N; ++v) store(share + m * n + j + v * kLanes, sum[m][v]);
      };
      int64_t first = j0;
      for (; first + 2 * kLanes <= whole; first += 2 * kLanes)
        columns(first, std::integral_constant<int, 2>{});
      if (first < whole) columns(first, std::integral_constant<int, 1>{});
      for (int m = 0; m < M; ++m)
        for (int64_t j = whole; j < j1; ++j)
          for (int64_t r = 0; r < depth; ++r)
            share[m * n + j] += a[m * k + p + r] * rows[r * n + j];
    }
  }
}

// C[m, j0 .. j1) = the shares of the slabs, added in order.
inline void gemv_add_shares(int64_t m, int64_t n, int64_t slabs, const float* shares, float* c,
                            int64_t j0, int64_t j1) {
  for (int64_t i = 0; i < m; ++i) {
    float* to = c + i * n;
    std::copy(shares + i * n + j0, shares + i * n + j1, to + j0);
    for (int64_t s = 1; s < slabs; ++s) {
      const float* share = shares + (s * m + i) * n;
#pragma omp simd
      for (int64_t j = j0; j < j1; ++j) to[j] += share[j];
    }
  }
}

// Columns [j0, j1) of C, B stored [n,k]: one row of B after the other, which is the order of
// memory; two sums for each row of A hide what an addition waits for.
template <int M>
inline void gemv_rows(int64_t n, int64_t k, const float* a, const float* b, float* c, int64_t j0,
                      int64_t j1) {
  for (int64_t j = j0; j < j1; ++j) {
    const float* row = b + j * k;
    Lanes even[M] = {}, odd[M] = {};
    int64_t p = 0;
    for (; p + 2 * kLanes <= k; p += 2 * kLanes) {
      const Lanes first = load<Lanes>(row + p), second = load<Lanes>(row + p + kLanes);
      for (int m = 0; m < M; ++m) {
        even[m] += load<Lanes>(a + m * k + p) * first;
        odd[m] += load<Lanes>(a + m * k + p + kLanes) * second;
      }
    }
    for (int m = 0; m < M; ++m) {
      float sum = across(even[m] + odd[m], [](Lanes x, Lanes y) { return x + y; });
      for (int64_t q = p; q < k; ++q) sum += a[m * k + q] * row[q];
      c[m * n + j] = sum;
    }
  }
}

// Rows of B [n,k] that are one task: enough bytes that handing it out costs nothing.
inline int64_t gemv_task_rows(int64_t k) { return std::max<int64_t>(4, 32768 / k / 4 * 4); }

}  // namespace millrace::cpu::MR_ISA
