// This file is compiled once per instruction set, as the kernels in ops/ are.
#include <memory>

#include "cpu/packed_gemm.h"
#include "cpu/parallel.h"
#include "cpu/small_gemm.h"

namespace millrace::cpu::MR_ISA {
namespace {

// A panel of B [kDepth, kPanel] stays in the first-level cache while the bands of A pass by; a
// block of A [kRows, kDepth] stays in the second-level cache while the panels of B pass by. So few
// rows that they find room there also when they lie a power of two apart.
constexpr int64_t kRows = kPackedRows, kColumns = kPackedColumns;
constexpr int64_t kPanel = 2 * kLanes, kDepth = kLanes == 16 ? 256 : 384;
static_assert(kRows % kTileRows == 0 && kColumns % kPanel == 0 && kPackedBand % kTileRows == 0);

struct Buffers {
  alignas(64) float left[kRows * kDepth];
  alignas(64) float right[kColumns * kDepth];
  alignas(64) float block[kRows * kColumns];
};
// On the heap, once for a thread: as part of its thread-local block they could outgrow its stack.
Buffers& buffers() {
  static thread_local const std::unique_ptr<Buffers> mine = std::make_unique<Buffers>();
  return *mine;
}

// Asks for the next block of A while this one is multiplied, some lines with every tile: its rows
// lie far apart, where the hardware does not look ahead.
class LinesAhead {
 public:
  LinesAhead(const float* first, int64_t stride, int64_t rows, int64_t width, int64_t turns)
      : row_(first), stride_(stride), rows_(rows), width_(width) {
    a_turn_ = pieces(rows * pieces(width, kLine), turns);
  }
  void turn() {
    for (int64_t n = a_turn_; n > 0 && rows_ > 0; --n) {
      __builtin_prefetch(row_ + at_, 0, 2);
      at_ += kLine;
      if (at_ < width_) continue;
      at_ = 0;
      row_ += stride_;
      --rows_;
    }
  }

 private:
  static constexpr int64_t kLine = 16;  // floats of a cache line
  const float* row_;
  int64_t stride_, rows_, width_, a_turn_ = 0, at_ = 0;
};

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

// B as panels of kPanel columns.
void pack_right(const float* b, int64_t stride, bool transposed, int64_t depth, int64_t columns,
                float* to) {
  if (transposed) {
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
    return;
  }
  pack_rows<kPanel>(b, stride, depth, columns, to);
}

// to[M, columns] = one band of A times one panel of B, on top of c where that is not null.
template <Left kLeft, int M>
void one_tile(int64_t depth, const float* left, int64_t left_stride, const float* right,
              const float* c, int64_t c_stride, float* to, int64_t to_stride, int64_t columns) {
  if (columns == kPanel)
    return gemm_tile<kLeft, M, 2>(depth, left, left_stride, right, kPanel, c, c_stride, to,
                                  to_stride);
  alignas(64) float whole[M * kPanel] = {};
  for (int m = 0; c && m < M; ++m) std::copy_n(c + m * c_stride, columns, whole + m * kPanel);
  gemm_tile<kLeft, M, 2>(depth, left, left_stride, right, kPanel, c ? whole : nullptr, kPanel,
                         whole, kPanel);
  for (int m = 0; m < M; ++m) std::copy_n(whole + m * kPanel, columns, to + m * to_stride);
}

}  // namespace

void multiply(const PackedProduct& p) {
  Buffers& own = buffers();
  for (int64_t j = 0; j < p.n; j += kColumns) {
    const int64_t columns = std::min(kColumns, p.n - j);
    for (int64_t k = 0; k < p.k; k += kDepth) {
      const int64_t depth = std::min(kDepth, p.k - k);
      const bool accumulate = k > 0 || p.accumulate;
      pack_right(p.tb ? p.b + j * p.b_stride + k : p.b + k * p.b_stride + j, p.b_stride, p.tb,
                 depth, columns, own.right);
      for (int64_t i = 0; i < p.m; i += kRows) {
        const int64_t rows = std::min(kRows, p.m - i);
        // Rows of A are read where they lie; columns would be read a cache line for each number.
        if (p.ta) pack_rows<kTileRows>(p.a + k * p.a_stride + i, p.a_stride, depth, rows, own.left);
        // What is asked for when it is complete is handed over where it does not depend on the rows
        // of C whether it is still in cache.
        const bool hand_over = p.done.call && k + depth == p.k;
        float* to = hand_over ? own.block : p.c + i * p.c_stride + j;
        const int64_t to_stride = hand_over ? kColumns : p.c_stride;
        const int64_t next = std::min(p.m, i + kRows), next_rows = std::min(kRows, p.m - next),
                      tiles = pieces(columns, kPanel) * pieces(rows, kTileRows);
        LinesAhead ahead =
            p.ta ? LinesAhead(p.a + k * p.a_stride + next, p.a_stride, depth, next_rows, tiles)
                 : LinesAhead(p.a + next * p.a_stride + k, p.a_stride, next_rows, depth, tiles);
        for (int64_t jj = 0; jj < columns; jj += kPanel)
          for (int64_t ii = 0; ii < rows; ii += kTileRows) {
            ahead.turn();
            const int64_t m = std::min(kTileRows, rows - ii), n = std::min(kPanel, columns - jj);
            const float* c = accumulate ? p.c + (i + ii) * p.c_stride + j + jj : nullptr;
            const float* panel = own.right + jj * depth;
            float* at = to + ii * to_stride + jj;
            for (int64_t r = 0; r < m; ++r) __builtin_prefetch(at + r * to_stride + kPanel, 1);
            with_count<kTileRows>(m, [&](auto count) {
              constexpr int M = decltype(count)::value;
              if (p.ta)
                one_tile<Left::columns, M>(depth, own.left + ii * depth, kTileRows, panel, c,
                                           p.c_stride, at, to_stride, n);
              else
                one_tile<Left::rows, M>(depth, p.a + (i + ii) * p.a_stride + k, p.a_stride, panel,
                                        c, p.c_stride, at, to_stride, n);
            });
          }
        if (hand_over)
          p.done.call(p.done.context, {p.done.i0 + i, p.done.i0 + i + rows, p.done.j0 + j,
                                       p.done.j0 + j + columns, own.block, kColumns});
      }
    }
  }
}

}  // namespace millrace::cpu::MR_ISA
