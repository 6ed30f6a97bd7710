// layer_norm (kCentred) and rms_norm (not) on a GPU, all memory-bound. Forward: a row is read once.
// Backward: blocks stay and walk the rows; one pass over x and dy makes dx and, column by column in
// registers, the block's part of dweight and dbias, which a second kernel adds up in order. Rows
// too long for registers are read again instead.
#pragma once
#include "ops/row_math_cuda.cuh"
#include "ops/row_norm_cuda.h"

namespace millrace::cuda {

template <bool kCentred, typename T, int kWidth, int kPieces>
__global__ void __launch_bounds__(kRowThreads, row_blocks(kWidth* kPieces))
    norm_rows(NormForward of, Int rows, int length, int warps) {
  __shared__ float shared[kGroupShared];
  RowGroup<true> group(warps, shared);
  using Part = RowPart<T, kWidth, kPieces>;
  const T* x = static_cast<const T*>(of.x);
  T* y = static_cast<T*>(of.y);
  const Int step = group.row_step();
  Int row = group.first_row();
  if (row >= rows) return;
  Part next;
  next.load(x + row * length, length, group);

  float weight[kPieces][kWidth] = {}, bias[kPieces][kWidth] = {};
#pragma unroll
  for (int p = 0; p < kPieces; ++p) {
    const int at = Part::column(p, group);
    if (at >= length) continue;
    load_floats(of.weight + at, weight[p]);
    if (kCentred && of.bias != nullptr) load_floats(of.bias + at, bias[p]);
  }

  const float inverse = 1.0f / static_cast<float>(length);
  for (; row < rows; row += step) {
    float value[kPieces][kWidth];
#pragma unroll
    for (int p = 0; p < kPieces; ++p) unpack<T>(next.piece[p], value[p]);
    if (row + step < rows) next.load(x + (row + step) * length, length, group);

    float mean = 0;
    if constexpr (kCentred) {
      float sum = 0;
#pragma unroll
      for (int p = 0; p < kPieces; ++p) {
#pragma unroll
        for (int k = 0; k < kWidth; ++k) sum += value[p][k];
      }
      mean = group.sum(sum) / static_cast<float>(length);
    }
    float squares = 0;
#pragma unroll
    for (int p = 0; p < kPieces; ++p) {
      if (Part::column(p, group) >= length) continue;
#pragma unroll
      for (int k = 0; k < kWidth; ++k) {
        value[p][k] -= mean;
        squares += value[p][k] * value[p][k];
      }
    }
    const float rstd = 1.0f / sqrtf(group.sum(squares) * inverse + of.eps);
#pragma unroll
    for (int p = 0; p < kPieces; ++p) {
      const int at = Part::column(p, group);
      if (at >= length) continue;
#pragma unroll
      for (int k = 0; k < kWidth; ++k) value[p][k] = value[p][k] * rstd * weight[p][k] + bias[p][k];
      store_piece(y + row * length + at, value[p]);
    }
    if (group.thread() == 0) {
      if (kCentred) of.mean[row] = mean;
      of.rstd[row] = rstd;
    }
  }
}

template <bool kCentred, typename T>
__global__ void __launch_bounds__(kRowThreads)
    norm_long_rows(NormForward of, Int rows, Int length) {
  __shared__ float shared[kWarp];
  const float inverse = 1.0f / static_cast<float>(length);
  for (Int row = blockIdx.x; row < rows; row += gridDim.x) {
    const T* x = static_cast<const T*>(of.x) + row * length;
    T* y = static_cast<T*>(of.y) + row * length;
    float mean = 0;
    if constexpr (kCentred) {
      float sum = 0;
#pragma unroll 8
      for (Int j = threadIdx.x; j < length; j += kRowThreads) sum += to_float(x[j]);
      mean = block_sum(sum, shared) / static_cast<float>(length);
    }
    float squares = 0;
#pragma unroll 8
    for (Int j = threadIdx.x; j < length; j += kRowThreads) {
      const float centred = to_float(x[j]) - mean;
      squares += centred * centred;
    }
    const float rstd = 1.0f / sqrtf(block_sum(squares, shared) * inverse + of.eps);
    for (Int j = threadIdx.x; j < length; j += kRowThreads) {
      float value = (to_float(x[j]) - mean) * rstd * of.weight[j];
      if (kCentred && of.bias != nullptr) value += of.bias[j];
      y[j] = from_float<T>(value);
    }
    if (threadIdx.x == 0) {
      if (kCentred) of.mean[row] = mean;
      of.rstd[row] = rstd;
    }
  }
}

template <int kCells>
constexpr int kBackwardColumns = backward_warps(kCells) * kWarp* kCells;

template <bool kCentred, bool kSummed, typename T, int kWidth, int kPieces>
__global__ void __launch_bounds__(backward_warps(kWidth* kPieces) * kWarp,
                                  backward_blocks(kWidth* kPieces))
    norm_backward_rows(NormBackward of, Int rows, int length, int warps) {
  constexpr int kSums = kCentred ? 2 : 1, kTotals = kSums + kSummed;
  __shared__ float shared[kGroupShared];
  __shared__ float columns[kBackwardColumns<kWidth * kPieces>];  // [groups, length]
  RowGroup<false> group(warps, shared);
  using Part = RowPart<T, kWidth, kPieces>;
  const T *x = static_cast<const T*>(of.x), *dy = static_cast<const T*>(of.dy);
  const T* residual = static_cast<const T*>(of.residual);
  T* dx = static_cast<T*>(of.dx);

  const Int step = group.row_step();
  Int row = group.first_row();
  Part next_x = {}, next_dy = {};
  float next_mean = 0, next_rstd = 0;
  const auto load_next = [&](Int at) {
    next_x.load(x + at * length, length, group);
    next_dy.load(dy + at * length, length, group);
    if (kCentred) next_mean = of.mean[at];
    next_rstd = of.rstd[at];
  };
  if (row < rows) load_next(row);

  // Cells behind the end of the row have weight 0 and dy 0: they add nothing.
  float weight[kPieces][kWidth] = {};
  float total[kTotals][kPieces][kWidth] = {};  // of dy xhat, of dy, of dx
#pragma unroll
  for (int p = 0; p < kPieces; ++p)
    if (const int at = Part::column(p, group); at < length) load_floats(of.weight + at, weight[p]);

  const float inverse = 1.0f / static_cast<float>(length);
  for (; row < rows; row += step) {
    Part now_x = next_x, now_dy = next_dy;
    const float mean = next_mean, rstd = next_rstd;
    Part now_residual;
    if (residual != nullptr) now_residual.load(residual + row * length, length, group);
    if (row + step < rows) load_next(row + step);

    float sum[kSums] = {};  // of dy weight xhat, of dy weight
#pragma unroll
    for (int p = 0; p < kPieces; ++p) {
      float from_x[kWidth], from_dy[kWidth];
      unpack<T>(now_x.piece[p], from_x);
      unpack<T>(now_dy.piece[p], from_dy);
#pragma unroll
      for (int k = 0; k < kWidth; ++k) {
        const float xhat = (from_x[k] - mean) * rstd, dxhat = from_dy[k] * weight[p][k];
        sum[0] += dxhat * xhat;
        total[0][p][k] += from_dy[k] * xhat;
        if constexpr (kCentred) {
          sum[1] += dxhat;
          total[1][p][k] += from_dy[k];
        }
      }
    }
    group.sum(sum);
    now_x.forget_unpacked();
    now_dy.forget_unpacked();
    const float slope = sum[0] * inverse, shift = kCentred ? sum[kSums - 1] * inverse : 0.0f;
#pragma unroll
    for (int p = 0; p < kPieces; ++p) {
      const int at = Part::column(p, group);
      if (at >= length) continue;
      float from_x[kWidth], from_dy[kWidth], result[kWidth];
      unpack<T>(now_x.piece[p], from_x);
      unpack<T>(now_dy.piece[p], from_dy);
#pragma unroll
      for (int k = 0; k < kWidth; ++k) {
        const float xhat = (from_x[k] - mean) * rstd;
        result[k] = rstd * (from_dy[k] * weight[p][k] - shift - xhat * slope);
      }
      if (residual != nullptr) {
        float more[kWidth];
        unpack<T>(now_residual.piece[p], more);
#pragma unroll
        for (int k = 0; k < kWidth; ++k) result[k] += more[k];
      }
      if constexpr (kSummed) {
#pragma unroll
        for (int k = 0; k < kWidth; ++k) total[kSums][p][k] += result[k];
      }
      store_piece(dx + row * length + at, result);
    }
  }

  const int groups = group.groups();
#pragma unroll
  for (int s = 0; s < kTotals; ++s) {
    float* partial = of.partial + (static_cast<Int>(blockIdx.x) * kTotals + s) * length;
    float* place = groups == 1 ? partial : columns + group.index() * length;
#pragma unroll
    for (int p = 0; p < kPieces; ++p) {
      const int at = Part::column(p, group);
      if (at >= length) continue;
#pragma unroll
      for (int k = 0; k < kWidth; ++k) place[at + k] = total[s][p][k];
    }
    if (groups == 1) continue;
    __syncthreads();
    for (int j = threadIdx.x; j < length; j += blockDim.x) {
      float of_block = 0;
      for (int g = 0; g < groups; ++g) of_block += columns[g * length + j];
      partial[j] = of_block;
    }
    __syncthreads();
  }
}

// The block's sums over columns stand in the workspace from the beginning: always the same thread
// adds to a column.
template <bool kCentred, bool kSummed, typename T>
__global__ void __launch_bounds__(kRowThreads)
    norm_backward_long_rows(NormBackward of, Int rows, Int length) {
  constexpr int kSums = kCentred ? 2 : 1, kTotals = kSums + kSummed;
  __shared__ float shared[kWarp];
  const float inverse = 1.0f / static_cast<float>(length);
  float* total = of.partial + static_cast<Int>(blockIdx.x) * kTotals * length;
  for (Int j = threadIdx.x; j < length; j += kRowThreads)
    for (int s = 0; s < kTotals; ++s) total[s * length + j] = 0;
  for (Int row = blockIdx.x; row < rows; row += gridDim.x) {
    const T* x = static_cast<const T*>(of.x) + row * length;
    const T* dy = static_cast<const T*>(of.dy) + row * length;
    T* dx = static_cast<T*>(of.dx) + row * length;
    const float mean = kCentred ? of.mean[row] : 0.0f, rstd = of.rstd[row];
    float slope = 0, shift = 0;
#pragma unroll 4
    for (Int j = threadIdx.x; j < length; j += kRowThreads) {
      const float xhat = (to_float(x[j]) - mean) * rstd, dxhat = to_float(dy[j]) * of.weight[j];
      slope += dxhat * xhat;
      shift += dxhat;
    }
    slope = block_sum(slope, shared) * inverse;
    shift = kCentred ? block_sum(shift, shared) * inverse : 0.0f;
    for (Int j = threadIdx.x; j < length; j += kRowThreads) {
      const float xhat = (to_float(x[j]) - mean) * rstd, from_dy = to_float(dy[j]);
      total[j] += from_dy * xhat;
      if (kCentred) total[length + j] += from_dy;
      float result = rstd * (from_dy * of.weight[j] - shift - xhat * slope);
      if (of.residual != nullptr)
        result += to_float(static_cast<const T*>(of.residual)[row * length + j]);
      if (kSummed) total[kSums * length + j] += result;
      dx[j] = from_float<T>(result);
    }
  }
}

// dweight, dbias and sums, 32 columns a block: each warp adds every 32nd partial sum, then the
// warps' sums are added across.
template <bool kCentred, bool kSummed>
__global__ void __launch_bounds__(kWarp* kWarp)
    add_norm_partials(NormBackward of, int blocks, Int length) {
  constexpr int kAtOnce = 12;
  __shared__ float tile[kWarp][kWarp + 1];
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const Int from = static_cast<Int>(blockIdx.x) * kWarp;
  const Int stride = ((kCentred ? 2 : 1) + kSummed) * length;
  float sum = 0;
  if (from + lane < stride) {
    for (int first = warp; first < blocks; first += kAtOnce * kWarp) {
      float part[kAtOnce];
#pragma unroll
      for (int u = 0; u < kAtOnce; ++u) {
        const int block = first + u * kWarp;
        part[u] = block < blocks ? of.partial[block * stride + from + lane] : 0.0f;
      }
#pragma unroll
      for (int u = 0; u < kAtOnce; ++u) sum += part[u];
    }
  }
  tile[warp][lane] = sum;
  __syncthreads();
  sum = warp_sum(tile[lane][warp]);
  const Int column = from + warp;
  if (lane != 0 || column >= stride) return;
  const Int which = column / length;
  float* const to = which == 0 ? of.dweight : kCentred && which == 1 ? of.dbias : of.sums;
  if (to != nullptr) to[column - which * length] = sum;
}

template <bool kCentred, bool kSummed = false>
struct NormLaunch {
  template <typename T, int kWidth, int kPieces>
  struct Forward {
    static void run(const RowPlan& plan, const NormRows& rows, const NormForward& of,
                    cudaStream_t stream) {
      const RowGrid grid = row_grid(plan, rows.rows, rows.multiprocessors);
      norm_rows<kCentred, T, kWidth, kPieces>
          <<<static_cast<unsigned>(grid.blocks), grid.threads, 0, stream>>>(
              of, rows.rows, static_cast<int>(rows.length), plan.warps);
    }
  };
  template <typename T>
  struct LongForward {
    static void run(const NormRows& rows, const NormForward& of, cudaStream_t stream) {
      const RowGrid grid = long_row_grid(rows.rows, rows.multiprocessors);
      norm_long_rows<kCentred, T><<<static_cast<unsigned>(grid.blocks), grid.threads, 0, stream>>>(
          of, rows.rows, rows.length);
    }
  };
  template <typename T, int kWidth, int kPieces>
  struct Backward {
    static void run(const RowPlan& plan, const NormRows& rows, const NormBackward& of,
                    cudaStream_t stream) {
      const RowGrid grid = norm_backward_grid(rows);
      norm_backward_rows<kCentred, kSummed, T, kWidth, kPieces>
          <<<static_cast<unsigned>(grid.blocks), grid.threads, 0, stream>>>(
              of, rows.rows, static_cast<int>(rows.length), plan.warps);
    }
  };
  template <typename T>
  struct LongBackward {
    static void run(const NormRows& rows, const NormBackward& of, cudaStream_t stream) {
      const RowGrid grid = norm_backward_grid(rows);
      norm_backward_long_rows<kCentred, kSummed, T>
          <<<static_cast<unsigned>(grid.blocks), grid.threads, 0, stream>>>(of, rows.rows,
                                                                            rows.length);
    }
  };
};

template <bool kCentred>
void launch_norm(const NormRows& rows, const NormForward& of, cudaStream_t stream) {
  if (rows.rows == 0) return;
  const RowPlan plan = plan_rows(rows.dtype, rows.length, kRowWarps);
  if (plan.warps > 0)
    launch_rows<NormLaunch<kCentred>::template Forward>(rows.dtype, plan, rows, of, stream);
  else
    launch_typed<NormLaunch<kCentred>::template LongForward>(rows.dtype, rows, of, stream);
}

template <bool kCentred, bool kSummed>
void launch_norm_backward(const NormRows& rows, const NormBackward& of, cudaStream_t stream) {
  using Launch = NormLaunch<kCentred, kSummed>;
  const RowPlan plan = plan_rows(rows.dtype, rows.length, kBackwardWarps);
  const RowGrid grid = norm_backward_grid(rows);
  if (grid.blocks > 0) {
    if (plan.warps > 0)
      launch_rows<Launch::template Backward>(rows.dtype, plan, rows, of, stream);
    else
      launch_typed<Launch::template LongBackward>(rows.dtype, rows, of, stream);
  }
}

template <bool kCentred, bool kSummed>
void launch_norm_backward_end(const NormRows& rows, const NormBackward& of, cudaStream_t stream) {
  const RowGrid grid = norm_backward_grid(rows);
  const int64_t columns = rows.length * ((kCentred ? 2 : 1) + kSummed);
  add_norm_partials<kCentred, kSummed>
      <<<static_cast<unsigned>((columns + kWarp - 1) / kWarp), kWarp * kWarp, 0, stream>>>(
          of, static_cast<int>(grid.blocks), rows.length);
}

}  // namespace millrace::cuda
