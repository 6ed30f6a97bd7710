// Packed products whose operands are rounded to bf16 when they are copied, two numbers of the depth
// beside each other, for the instruction that multiplies and adds two at a time (AVX-512 BF16, half
// of the instructions of f32). Sums are f32. Compiled for that instruction set alone.
#include <immintrin.h>

#include "cpu/packed_gemm.h"
#include "cpu/packed_loops.h"

namespace millrace::cpu::MR_ISA {
namespace {

using Pair = uint32_t;  // numbers k (low half) and k + 1

__m512i as_pairs(__m512 high, __m512 low) {
  return reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(high, low));
}
__mmask16 first_lanes(int64_t n) {
  return static_cast<__mmask16>(n >= 16 ? 0xFFFF : n <= 0 ? 0 : (1 << n) - 1);
}

// `depth` numbers of a row as pairs, whole vectors of them; zeros behind the last.
void pack_row(const float* from, int64_t depth, Pair* to) {
  for (int64_t k = 0; k < depth; k += 32)
    _mm512_store_si512(to + k / 2,
                       as_pairs(_mm512_maskz_loadu_ps(first_lanes(depth - k - 16), from + k + 16),
                                _mm512_maskz_loadu_ps(first_lanes(depth - k), from + k)));
}

// The first `width` numbers of `depth` rows, as panels of kWidth columns, [pairs][kWidth] each;
// columns behind the last are zero.
template <int64_t kWidth>
void pack_rows(const float* from, int64_t stride, int64_t depth, int64_t width, Pair* to) {
  const __m512i zip = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8,
                                       23, 7, 22, 6, 21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
  const int64_t pairs = (depth + 1) / 2;
  for (int64_t pair = 0; pair < pairs; ++pair) {
    const float* row = from + 2 * pair * stride;
    const bool both = 2 * pair + 1 < depth;
    for (int64_t r = 0; r < 2; ++r) prefetch_row(row + (kRowsAhead + r) * stride, width);
    for (int64_t j = 0; j < width; j += kWidth)
      for (int64_t v = 0; v < kWidth; v += 16) {
        const __mmask16 there = first_lanes(std::min(width - j, kWidth) - v);
        const __m512 low = _mm512_maskz_loadu_ps(there, row + j + v);
        const __m512 high =
            both ? _mm512_maskz_loadu_ps(there, row + stride + j + v) : _mm512_setzero_ps();
        _mm512_mask_storeu_epi32(to + j * pairs + pair * kWidth + v, first_lanes(kWidth - v),
                                 _mm512_permutexvar_epi16(zip, as_pairs(high, low)));
      }
  }
}

// Rows become columns: of neighbours, of twos, of fours, of eights.
void transpose(__m512i (&r)[16]) {
  __m512i s[16];
  for (int i = 0; i < 16; i += 2) {
    s[i] = _mm512_unpacklo_epi32(r[i], r[i + 1]);
    s[i + 1] = _mm512_unpackhi_epi32(r[i], r[i + 1]);
  }
  for (int i = 0; i < 16; i += 4)
    for (int h = 0; h < 2; ++h) {
      r[i + 2 * h] = _mm512_unpacklo_epi64(s[i + h], s[i + h + 2]);
      r[i + 2 * h + 1] = _mm512_unpackhi_epi64(s[i + h], s[i + h + 2]);
    }
  // r[4 q + c], lane group g: column 4 g + c of rows 4 q to 4 q + 3.
  for (int c = 0; c < 4; ++c) {
    s[c] = _mm512_shuffle_i32x4(r[c], r[4 + c], 0x88);
    s[4 + c] = _mm512_shuffle_i32x4(r[c], r[4 + c], 0xdd);
    s[8 + c] = _mm512_shuffle_i32x4(r[8 + c], r[12 + c], 0x88);
    s[12 + c] = _mm512_shuffle_i32x4(r[8 + c], r[12 + c], 0xdd);
  }
  for (int c = 0; c < 4; ++c) {
    r[c] = _mm512_shuffle_i32x4(s[c], s[8 + c], 0x88);
    r[8 + c] = _mm512_shuffle_i32x4(s[c], s[8 + c], 0xdd);
    r[4 + c] = _mm512_shuffle_i32x4(s[4 + c], s[12 + c], 0x88);
    r[12 + c] = _mm512_shuffle_i32x4(s[4 + c], s[12 + c], 0xdd);
  }
}

// Panels of kPanel columns of a matrix that is stored [width, depth].
void pack_columns(const float* b, int64_t stride, int64_t depth, int64_t columns, Pair* to) {
  const int64_t pairs = (depth + 1) / 2;
  for (int64_t j = 0; j < (columns + kPanel - 1) / kPanel * kPanel; j += 16) {
    Pair* panel = to + j / kPanel * kPanel * pairs + j % kPanel;
    for (int64_t k = 0; k < depth; k += 32) {
      const __mmask16 low = first_lanes(depth - k), high = first_lanes(depth - k - 16);
      __m512i r[16];
#pragma GCC unroll 16
      for (int64_t q = 0; q < 16; ++q) {
        const float* row = b + (j + q) * stride + k;
        r[q] = j + q < columns ? as_pairs(_mm512_maskz_loadu_ps(high, row + 16),
                                          _mm512_maskz_loadu_ps(low, row))
                               : _mm512_setzero_si512();
      }
      transpose(r);
      const int64_t whole = std::min<int64_t>(16, pairs - k / 2);
      for (int64_t pair = 0; pair < whole; ++pair)
        _mm512_store_si512(panel + (k / 2 + pair) * kPanel, r[pair]);
    }
  }
}

// to[M][kPanel] = sum over pairs; pair p of row m at left[m * kRow + p * kPair].
template <int M, int64_t kRow, int64_t kPair>
void multiply_pairs(int64_t pairs, const Pair* left, const Pair* panel, const float* c,
                    int64_t c_stride, float* to, int64_t to_stride) {
  __m512 sum[M][2];
#pragma GCC unroll 12
  for (int m = 0; m < M; ++m)
#pragma GCC unroll 2
    for (int n = 0; n < 2; ++n)
      sum[m][n] = c ? _mm512_loadu_ps(c + m * c_stride + n * kLanes) : _mm512_setzero_ps();
#pragma GCC unroll 2
  for (int64_t p = 0; p < pairs; ++p) {
    __m512bh right[2];
#pragma GCC unroll 2
    for (int n = 0; n < 2; ++n)
      right[n] = reinterpret_cast<__m512bh>(_mm512_load_si512(panel + p * kPanel + n * kLanes));
#pragma GCC unroll 12
    for (int m = 0; m < M; ++m) {
      const auto both = reinterpret_cast<__m512bh>(
          _mm512_set1_epi32(static_cast<int>(left[m * kRow + p * kPair])));
#pragma GCC unroll 2
      for (int n = 0; n < 2; ++n) sum[m][n] = _mm512_dpbf16_ps(sum[m][n], both, right[n]);
    }
  }
#pragma GCC unroll 12
  for (int m = 0; m < M; ++m)
#pragma GCC unroll 2
    for (int n = 0; n < 2; ++n) _mm512_storeu_ps(to + m * to_stride + n * kLanes, sum[m][n]);
}

// A panel of B stays in the first-level cache, a block of A in the second-level cache, as with
// floats; half as large, they go twice as deep.
struct Pairs {
  static constexpr int64_t kDepth = 1024, kRow = kDepth / 2;
  alignas(64) Pair block_of_a[kPackedRows * kRow];  // rows, or bands of columns
  alignas(64) Pair panels[kPackedColumns * kRow];
  alignas(64) float block[kPackedRows * kPackedColumns];

  void left(const PackedProduct& p, int64_t i, int64_t k, int64_t rows, int64_t depth) {
    if (p.ta)
      return pack_rows<kTileRows>(p.a + k * p.a_stride + i, p.a_stride, depth, rows, block_of_a);
    for (int64_t r = 0; r < rows; ++r)
      pack_row(p.a + (i + r) * p.a_stride + k, depth, block_of_a + r * kRow);
  }
  void right(const PackedProduct& p, int64_t j, int64_t k, int64_t columns, int64_t depth) {
    if (p.tb)
      pack_columns(p.b + j * p.b_stride + k, p.b_stride, depth, columns, panels);
    else
      pack_rows<kPanel>(p.b + k * p.b_stride + j, p.b_stride, depth, columns, panels);
  }
  template <int M>
  void multiply(const PackedProduct& p, int64_t ii, int64_t jj, int64_t depth, const float* c,
                int64_t c_stride, float* to, int64_t to_stride) const {
    const int64_t pairs = (depth + 1) / 2;
    const Pair* panel = panels + jj * pairs;
    if (p.ta)
      multiply_pairs<M, 1, kTileRows>(pairs, block_of_a + ii * pairs, panel, c, c_stride, to,
                                      to_stride);
    else
      multiply_pairs<M, kRow, 1>(pairs, block_of_a + ii * kRow, panel, c, c_stride, to, to_stride);
  }
};

}  // namespace

void multiply(const PackedProduct& product) { multiply_packed<Pairs>(product); }

}  // namespace millrace::cpu::MR_ISA
