// The loops of a packed product (cpu/packed_gemm.h), for every format in which operands can be
// copied: blocks of B, depth and rows, then panels and bands. A format copies the blocks and
// multiplies a band with a panel.
#pragma once
#include <algorithm>
#include <memory>

#include "cpu/packed_gemm.h"
#include "cpu/parallel.h"
#include "cpu/small_gemm.h"

namespace millrace::cpu::MR_ISA {

constexpr int64_t kPanel = 2 * kLanes;  // columns of B that are multiplied at a time
static_assert(kPackedRows % kTileRows == 0 && kPackedColumns % kPanel == 0 &&
              kPackedBand % kTileRows == 0);

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

// What a format has:
//   kDepth                            of a block
//   left(p, i, k, rows, depth)        copies a block of A, or says where it lies
//   right(p, j, k, columns, depth)    copies a block of B, as panels
//   multiply<M>(p, ii, jj, depth, c, c_stride, to, to_stride)
//                                     to[M, kPanel] = rows ii of the block of A times the panel of
//                                     column jj, on top of c where that is not null
//   block                             [kPackedRows, kPackedColumns], results to be handed over
template <typename Format, int M>
void one_tile(const Format& format, const PackedProduct& p, int64_t ii, int64_t jj, int64_t depth,
              const float* c, float* to, int64_t to_stride, int64_t columns) {
  if (columns == kPanel)
    return format.template multiply<M>(p, ii, jj, depth, c, p.c_stride, to, to_stride);
  alignas(64) float whole[M * kPanel] = {};
  for (int m = 0; c && m < M; ++m) std::copy_n(c + m * p.c_stride, columns, whole + m * kPanel);
  format.template multiply<M>(p, ii, jj, depth, c ? whole : nullptr, kPanel, whole, kPanel);
  for (int m = 0; m < M; ++m) std::copy_n(whole + m * kPanel, columns, to + m * to_stride);
}

template <typename Format>
void multiply_packed(const PackedProduct& p) {
  // On the heap, once for a thread: as part of its thread-local block they could outgrow its stack.
  static thread_local const std::unique_ptr<Format> mine = std::make_unique<Format>();
  Format& format = *mine;
  for (int64_t j = 0; j < p.n; j += kPackedColumns) {
    const int64_t columns = std::min(kPackedColumns, p.n - j);
    for (int64_t k = 0; k < p.k; k += Format::kDepth) {
      const int64_t depth = std::min(Format::kDepth, p.k - k);
      const bool accumulate = k > 0 || p.accumulate;
      format.right(p, j, k, columns, depth);
      for (int64_t i = 0; i < p.m; i += kPackedRows) {
        const int64_t rows = std::min(kPackedRows, p.m - i);
        format.left(p, i, k, rows, depth);
        // What is asked for when it is complete is handed over where it does not depend on the rows
        // of C whether it is still in cache.
        const bool hand_over = p.done.call && k + depth == p.k;
        float* to = hand_over ? format.block : p.c + i * p.c_stride + j;
        const int64_t to_stride = hand_over ? kPackedColumns : p.c_stride;
        const int64_t next = std::min(p.m, i + kPackedRows),
                      next_rows = std::min(kPackedRows, p.m - next),
                      tiles = pieces(columns, kPanel) * pieces(rows, kTileRows);
        LinesAhead ahead =
            p.ta ? LinesAhead(p.a + k * p.a_stride + next, p.a_stride, depth, next_rows, tiles)
                 : LinesAhead(p.a + next * p.a_stride + k, p.a_stride, next_rows, depth, tiles);
        for (int64_t jj = 0; jj < columns; jj += kPanel)
          for (int64_t ii = 0; ii < rows; ii += kTileRows) {
            ahead.turn();
            const int64_t m = std::min(kTileRows, rows - ii), n = std::min(kPanel, columns - jj);
            const float* c = accumulate ? p.c + (i + ii) * p.c_stride + j + jj : nullptr;
            float* at = to + ii * to_stride + jj;
            for (int64_t r = 0; r < m; ++r) __builtin_prefetch(at + r * to_stride + kPanel, 1);
            with_count<kTileRows>(m, [&](auto count) {
              one_tile<Format, decltype(count)::value>(format, p, ii, jj, depth, c, at, to_stride,
                                                       n);
            });
          }
        if (hand_over)
          p.done.call(p.done.context, {p.done.i0 + i, p.done.i0 + i + rows, p.done.j0 + j,
                                       p.done.j0 + j + columns, format.block, kPackedColumns});
      }
    }
  }
}

}  // namespace millrace::cpu::MR_ISA
