// This file is compiled once per instruction set, as the kernels in ops/ are.
#include "cpu/packed_gemm.h"
#include "cpu/packed_loops.h"

namespace millrace::cpu::MR_ISA {
namespace {

// The first `width` numbers of `depth` rows, as panels of kWidth columns, [depth][kWidth] each;
// columns behind the last are zero.
template <int64_t kWidth>
void pack_rows(const float* from, int64_t stride, int64_t depth, int64_t width, float* to) {
  const int64_t whole = width / kWidth * kWidth, rest = width - whole;
  for (int64_t k = 0; k < depth; ++k) {
    const float* row = from + k * stride;
    prefetch_row(row + kRowsAhead * stride, width);
    float* at = to + k * kWidth;
    for (int64_t j = 0; j < whole; j += kWidth)
      std::memcpy(at + j * depth, row + j, kWidth * sizeof(float));
    if (rest) {
      std::memcpy(at + whole * depth, row + whole, static_cast<size_t>(rest) * sizeof(float));
      std::fill_n(at + whole * depth + rest, kWidth - rest, 0.0f);
    }
  }
}

// The same of a matrix that is stored [width, depth].
void pack_columns(const float* b, int64_t stride, int64_t depth, int64_t columns, float* to) {
  for (int64_t j = 0; j < columns; j += 8) {
    float* panel = to + j / kPanel * kPanel * depth + j % kPanel;
    const int64_t n = std::min<int64_t>(8, columns - j);
    int64_t k = 0;
    if (n == 8)
      for (; k + 8 <= depth; k += 8)
        transpose_square(b + j * stride + k, stride, panel + k * kPanel, kPanel);
    for (; k < depth; ++k)
      for (int64_t q = 0; q < 8; ++q)
        panel[k * kPanel + q] = q < n ? b[(j + q) * stride + k] : 0.0f;
  }
  // Squares of 8 columns fill the last panel only as far as there are columns.
  for (int64_t j = (columns + 7) / 8 * 8; j % kPanel != 0; j += 8) {
    float* panel = to + j / kPanel * kPanel * depth + j % kPanel;
    for (int64_t k = 0; k < depth; ++k) std::fill_n(panel + k * kPanel, 8, 0.0f);
  }
}

// Numbers as they are. A panel of B [kDepth, kPanel] stays in the first-level cache while the bands
// of A pass by; a block of A [kPackedRows, kDepth] stays in the second-level cache while the panels
// of B pass by. So few rows that they find room there also when they lie a power of two apart.
struct Floats {
  static constexpr int64_t kDepth = kLanes == 16 ? 512 : 384;
  alignas(64) float copied[kPackedRows * kDepth];  // of A
  alignas(64) float panels[kPackedColumns * kDepth];
  alignas(64) float block[kPackedRows * kPackedColumns];
  const float* rows_of_a = nullptr;
  int64_t row_stride = 0;

  void left(const PackedProduct& p, int64_t i, int64_t k, int64_t rows, int64_t depth) {
    // Columns would be read a cache line for each number.
    if (p.ta)
      return pack_rows<kTileRows>(p.a + k * p.a_stride + i, p.a_stride, depth, rows, copied);
    rows_of_a = p.a + i * p.a_stride + k;
    row_stride = p.a_stride;
    // Rows are read where they lie, unless that is whole pages apart: numbers of one column then
    // share a set of the first-level cache, and a band has more rows than a set has places.
    constexpr int64_t kPlaces = 8, kPage = 1024;
    if (kTileRows <= kPlaces || row_stride % kPage != 0) return;
    for (int64_t r = 0; r < rows; ++r)
      std::memcpy(copied + r * kDepth, rows_of_a + r * row_stride,
                  static_cast<size_t>(depth) * sizeof(float));
    rows_of_a = copied;
    row_stride = kDepth;
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
    const float* panel = panels + jj * depth;
    if (p.ta)
      gemm_tile<Left::columns, M, 2>(depth, copied + ii * depth, kTileRows, panel, kPanel, c,
                                     c_stride, to, to_stride);
    else
      gemm_tile<Left::rows, M, 2>(depth, rows_of_a + ii * row_stride, row_stride, panel, kPanel, c,
                                  c_stride, to, to_stride);
  }
};

}  // namespace

void multiply(const PackedProduct& product) { multiply_packed<Floats>(product); }

}  // namespace millrace::cpu::MR_ISA
