// Products of matrices that already sit in cache, for kernels that fuse a product with what stands
// around it. Register tiles of kTileRows by 2 vectors: independent sums hide the latency of two FMA
// units, and the more rows, the fewer vectors of the right operand are read for each. Everything is
// in namespace MR_ISA: each instruction set gets its own copy.
#pragma once
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <type_traits>

namespace millrace::cpu::MR_ISA {

#if defined(__AVX512F__)
constexpr int64_t kLanes = 16, kTileRows = 12;  // of 32 registers
#else
constexpr int64_t kLanes = 8, kTileRows = 6;  // of 16 registers
#endif
typedef float Lanes __attribute__((vector_size(kLanes * sizeof(float)), may_alias));
typedef float Octet __attribute__((vector_size(8 * sizeof(float)), may_alias));

inline int64_t padded(int64_t n) { return (n + kLanes - 1) / kLanes * kLanes; }

template <typename V>
inline V load(const float* p) {
  V v;
  std::memcpy(&v, p, sizeof v);
  return v;
}
template <typename V>
inline void store(float* p, V v) {
  std::memcpy(p, &v, sizeof v);
}

// Calls f(std::integral_constant<int, n>) for n in 1 .. kMost.
template <int kMost, typename F>
inline void with_count(int64_t n, const F& f) {
  if constexpr (kMost == 1)
    f(std::integral_constant<int, 1>{});
  else if (n >= kMost)
    f(std::integral_constant<int, kMost>{});
  else
    with_count<kMost - 1>(n, f);
}

// How the left operand lies in memory: element (m, k) at a[m * stride + k] or at a[k * stride + m].
enum class Left { rows, columns };

// to[M][N vectors] = sum over k of a(m, k) b[k][.], on top of c where that is not null.
template <Left kLeft, int M, int N>
inline void gemm_tile(int64_t depth, const float* a, int64_t a_stride, const float* b,
                      int64_t b_stride, const float* c, int64_t c_stride, float* to,
                      int64_t to_stride) {
  Lanes sum[M][N];
#pragma GCC unroll 12
  for (int m = 0; m < M; ++m)
#pragma GCC unroll 2
    for (int n = 0; n < N; ++n)
      sum[m][n] = c ? load<Lanes>(c + m * c_stride + n * kLanes) : Lanes{};
  // Rows by threes, with pointers that the compiler cannot derive from each other: it would keep a
  // register for the distance of every row, and has not so many.
  const float* threes[(M + 2) / 3];
#pragma GCC unroll 4
  for (int t = 0; t < (M + 2) / 3; ++t) {
    threes[t] = a + 3 * t * a_stride;
    asm("" : "+r"(threes[t]));
  }
#pragma GCC unroll 2
  for (int64_t k = 0; k < depth; ++k) {
    Lanes right[N];
#pragma GCC unroll 2
    for (int n = 0; n < N; ++n) right[n] = load<Lanes>(b + k * b_stride + n * kLanes);
#pragma GCC unroll 12
    for (int m = 0; m < M; ++m) {
      const float left =
          kLeft == Left::rows ? threes[m / 3][m % 3 * a_stride + k] : a[k * a_stride + m];
#pragma GCC unroll 2
      for (int n = 0; n < N; ++n) sum[m][n] += left * right[n];
    }
  }
#pragma GCC unroll 12
  for (int m = 0; m < M; ++m)
#pragma GCC unroll 2
    for (int n = 0; n < N; ++n) store(to + m * to_stride + n * kLanes, sum[m][n]);
}

// Which columns of a band of rows are wanted and which part of the depth is not zero.
struct GemmPart {
  int64_t column_end;  // from column 0, rounded up to whole vectors
  int64_t depth_begin, depth_end;
};

template <Left kLeft, int M>
inline void gemm_band(const GemmPart& part, const float* a, int64_t a_stride, const float* b,
                      int64_t b_stride, float* c, int64_t c_stride, bool accumulate) {
  const int64_t depth = part.depth_end - part.depth_begin;
  a += part.depth_begin * (kLeft == Left::rows ? 1 : a_stride);
  b += part.depth_begin * b_stride;
  const int64_t end = padded(part.column_end);
  int64_t n = 0;
  for (; n + 2 * kLanes <= end; n += 2 * kLanes)
    gemm_tile<kLeft, M, 2>(depth, a, a_stride, b + n, b_stride, accumulate ? c + n : nullptr,
                           c_stride, c + n, c_stride);
  if (n < end)
    gemm_tile<kLeft, M, 1>(depth, a, a_stride, b + n, b_stride, accumulate ? c + n : nullptr,
                           c_stride, c + n, c_stride);
}

// c (+)= a b for rows [begin, end); `part(first, last)` says what each band of rows needs. Rows of
// b and c are readable and writable up to whole vectors.
template <Left kLeft, typename F>
void small_gemm(int64_t begin, int64_t end, const float* a, int64_t a_stride, const float* b,
                int64_t b_stride, float* c, int64_t c_stride, bool accumulate, const F& part) {
  for (int64_t m = begin; m < end; m += kTileRows) {
    const int64_t rows = std::min(kTileRows, end - m);
    const GemmPart p = part(m, m + rows);
    const float* left = a + m * (kLeft == Left::rows ? a_stride : 1);
    float* to = c + m * c_stride;
    with_count<kTileRows>(rows, [&](auto count) {
      gemm_band<kLeft, decltype(count)::value>(p, left, a_stride, b, b_stride, to, c_stride,
                                               accumulate);
    });
  }
}

// Rows of a packed tensor lie pages apart, where the hardware does not look ahead: the copies below
// ask for a row this many rows early.
constexpr int64_t kRowsAhead = 8;
inline void prefetch_row(const float* row, int64_t width) {
  for (int64_t d = 0; d < width; d += 16) __builtin_prefetch(row + d);
}

// to[row][0, padded(width)) = factor * from[row][0, width), zeros behind.
inline void copy_rows(int64_t rows, int64_t width, const float* from, int64_t from_stride,
                      float* to, int64_t to_stride, float factor) {
  const int64_t wide = padded(width);
  for (int64_t r = 0; r < rows; ++r) {
    const float* source = from + r * from_stride;
    prefetch_row(source + kRowsAhead * from_stride, width);
    float* target = to + r * to_stride;
#pragma omp simd
    for (int64_t d = 0; d < width; ++d) target[d] = factor * source[d];
    for (int64_t d = width; d < wide; ++d) target[d] = 0;
  }
}

// to[d][row] = factor * from[row][d] for a square of 8: pairs of rows, fours, then halves change
// places.
inline void transpose_square(const float* from, int64_t from_stride, float* to, int64_t to_stride,
                             float factor = 1.0f) {
  Octet r[8], s[8];
  for (int i = 0; i < 8; ++i) r[i] = factor * load<Octet>(from + i * from_stride);
  for (int i = 0; i < 8; i += 2) {
    s[i] = __builtin_shufflevector(r[i], r[i + 1], 0, 8, 1, 9, 4, 12, 5, 13);
    s[i + 1] = __builtin_shufflevector(r[i], r[i + 1], 2, 10, 3, 11, 6, 14, 7, 15);
  }
  for (int i = 0; i < 8; i += 4)
    for (int j = 0; j < 2; ++j) {
      r[i + 2 * j] = __builtin_shufflevector(s[i + j], s[i + j + 2], 0, 1, 8, 9, 4, 5, 12, 13);
      r[i + 2 * j + 1] =
          __builtin_shufflevector(s[i + j], s[i + j + 2], 2, 3, 10, 11, 6, 7, 14, 15);
    }
  for (int i = 0; i < 4; ++i) {
    store(to + i * to_stride, __builtin_shufflevector(r[i], r[i + 4], 0, 1, 2, 3, 8, 9, 10, 11));
    store(to + (i + 4) * to_stride,
          __builtin_shufflevector(r[i], r[i + 4], 4, 5, 6, 7, 12, 13, 14, 15));
  }
}

// to[d][row] = factor * from[row][d] for d < width; rows are padded with zeros to whole vectors.
inline void copy_transposed(int64_t rows, int64_t width, const float* from, int64_t from_stride,
                            float* to, int64_t to_stride, float factor) {
  const int64_t squares = rows / 8 * 8, wide = width / 8 * 8;
  for (int64_t r = 0; r < squares; r += 8) {
    for (int64_t i = r; i < r + 8; ++i) prefetch_row(from + (i + kRowsAhead) * from_stride, width);
    for (int64_t d = 0; d < wide; d += 8)
      transpose_square(from + r * from_stride + d, from_stride, to + d * to_stride + r, to_stride,
                       factor);
    for (int64_t d = wide; d < width; ++d)
      for (int64_t i = r; i < r + 8; ++i)
        to[d * to_stride + i] = factor * from[i * from_stride + d];
  }
  for (int64_t d = 0; d < width; ++d) {
    for (int64_t r = squares; r < rows; ++r)
      to[d * to_stride + r] = factor * from[r * from_stride + d];
    for (int64_t r = rows; r < padded(rows); ++r) to[d * to_stride + r] = 0;
  }
}

}  // namespace millrace::cpu::MR_ISA
