// layer_norm and rms_norm on a GPU are one kernel, with and without a mean: what it is called with.
#pragma once
#include <cstdint>

#include "ops/row_math_cuda.h"

namespace millrace::cuda {

struct NormRows {
  DType dtype;  // of x, y, dy, residual, dx
  int64_t rows, length;
  int multiprocessors;
};

struct NormForward {
  const void* x;
  const float *weight, *bias;  // no bias: null
  void* y;
  float *mean, *rstd;  // rms_norm: mean is null
  float eps;
};

struct NormBackward {
  const void *x, *dy, *residual;  // no residual: null
  const float *weight, *mean, *rstd;
  void* dx;
  float *dweight, *dbias;  // no dbias: null
  float* sums;             // of the columns of dx; null: not wanted, as always of rms_norm
  float* partial;  // [blocks of norm_backward_grid, 2 for layer_norm or 1, +1 with sums, length]
};

// As many warps as the registers of a multiprocessor hold without spills, in few blocks: each
// leaves a partial sum of the parameter gradients. From 17 numbers of a row on a thread has no
// registers for the next row; shared memory of every device has room for two rows of eight warps.
constexpr int kBackwardWarps = 8;  // of a row at most
constexpr bool backward_in_shared(int cells) { return cells > 16; }
constexpr int backward_warps(int cells) {  // of a block at most
  return backward_in_shared(cells) ? kBackwardWarps : cells > 8 ? 12 : 10;
}
constexpr int backward_blocks(int cells) { return cells > 8 && cells <= 16 ? 1 : 2; }  // resident

// The order of the additions over rows, and with it the last bits, depends on rows, length, type
// and multiprocessors, and on nothing else.
inline RowGrid norm_backward_grid(const NormRows& of) {
  const RowPlan plan = plan_rows(of.dtype, of.length, kBackwardWarps);
  if (plan.warps == 0) return long_row_grid(of.rows, of.multiprocessors);
  // Few rows: rather some on every multiprocessor than full blocks on some of them.
  const int most = backward_warps(plan.cells());
  const int64_t rows = (of.rows + of.multiprocessors - 1) / of.multiprocessors;
  const int warps = static_cast<int>(std::clamp<int64_t>(rows * plan.warps, 1, most));
  return grid_of(plan.warps, of.rows, warps, most * backward_blocks(plan.cells()),
                 of.multiprocessors);
}

}  // namespace millrace::cuda
