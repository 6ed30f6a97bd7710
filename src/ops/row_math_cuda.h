// How the row-wise CUDA kernels share out the rows of a matrix: what the hosts of their launches
// and of their workspaces must agree on. The device side is row_math_cuda.cuh.
#pragma once
#include <algorithm>
#include <cstdint>

#include "core/dtype.h"

namespace millrace::cuda {

constexpr int kRowWarps = 16;  // of a block at most
constexpr int kScalarPieces = 16;

// A row is taken by a group of warps and kept in their registers.
struct RowPlan {
  int width;   // numbers in a piece: 16 bytes, or one where rows do not start at multiples of 16
  int pieces;  // of a thread
  int warps;   // of a group; 0: the row is too long for registers
  int cells() const { return width * pieces; }
};

inline RowPlan plan_rows(DType dtype, int64_t length, int most_warps) {
  const int64_t bytes = dtype_bytes(dtype);
  const int64_t width = length * bytes % 16 == 0 ? 16 / bytes : 1;
  const int64_t most_pieces = width == 1 ? kScalarPieces : width == 4 ? 4 : 3;
  const int64_t pieces = (length + width - 1) / width;
  const int64_t warps = (pieces + 32 * most_pieces - 1) / (32 * most_pieces);
  if (warps > most_warps) return {1, 0, 0};
  // Rows that are not aligned are rare: one kernel serves them all.
  const int64_t share = width == 1 ? kScalarPieces : (pieces + 32 * warps - 1) / (32 * warps);
  return {static_cast<int>(width), static_cast<int>(share), static_cast<int>(warps)};
}

struct RowGrid {
  int64_t blocks;
  int threads;
};

// Blocks that stay and walk the rows: as many as are resident at once, or fewer.
inline RowGrid grid_of(int group_warps, int64_t rows, int block_warps, int resident_warps,
                       int multiprocessors) {
  const int groups = std::max(1, block_warps / group_warps);
  const int warps = groups * group_warps;
  const int64_t resident = int64_t{multiprocessors} * std::max(1, resident_warps / warps);
  return {std::min((rows + groups - 1) / groups, resident), 32 * warps};
}

// For rows too long for registers: a block takes one, two blocks are resident.
inline RowGrid long_row_grid(int64_t rows, int multiprocessors) {
  return grid_of(kRowWarps, rows, kRowWarps, 2 * kRowWarps, multiprocessors);
}

}  // namespace millrace::cuda
