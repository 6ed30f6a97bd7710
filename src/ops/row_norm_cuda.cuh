// layer_norm (kCentred) and rms_norm (not) on a GPU, all memory-bound. Forward: a row is read once.
// Backward: blocks stay and walk the rows; one pass over x and dy makes dx and, column by column in
// registers, the block's part of dweight and dbias, which a second kernel adds up in order. Where
// these sums leave few registers for a row, the next ones wait in shared memory. Rows too long for
// that are read again instead.
#pragma once
#include "cuda/async_copy.cuh"
#include "ops/row_math_cuda.cuh"
#include "ops/row_norm_cuda.h"

namespace millrace::cuda {

template <bool kCentred, typename T, int kWidth, int kPieces>
__global__ void __launch_bounds__(kRowThreads, row_blocks(kWidth* kPieces))
    norm_rows(NormForward of, Int rows, int length, int warps) {
  __shared__ float shared[kGroupShared];
  RowGroup<GroupKind::lone> group(warps, shared);
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

// A thread's parts of the rows of x, dy and, where there is one, the residual: one row that is
// computed with, and what follows on its way. Both kinds are called in the same order: first, then
// for every row turn, read, again, read, done. `at` is where a row begins.

// In registers; the next row.
template <typename T, int kWidth, int kPieces, typename Group>
class RowsInRegisters {
 public:
  __device__ __forceinline__ RowsInRegisters(const NormBackward& of, int length, const Group& group,
                                             uint4*)
      : of_(of), length_(length), group_(group) {}
  __device__ __forceinline__ void first(bool there, Int at, bool, Int) {
    if (there) load(next_, at);
  }
  __device__ __forceinline__ void turn(Int at, bool more, Int next_at) {
    now_[0] = next_[0];
    now_[1] = next_[1];
    if (of_.residual != nullptr)
      now_[2].load(static_cast<const T*>(of_.residual) + at, length_, group_);
    if (more) load(next_, next_at);
  }
  __device__ __forceinline__ void read(int matrix, int p, float (&value)[kWidth]) const {
    unpack<T>(now_[matrix].piece[p], value);
  }
  __device__ __forceinline__ void again() {
    now_[0].forget_unpacked();
    now_[1].forget_unpacked();
  }
  __device__ __forceinline__ void done(bool, Int) {}

 private:
  using Part = RowPart<T, kWidth, kPieces>;
  __device__ __forceinline__ void load(Part (&to)[2], Int at) const {
    to[0].load(static_cast<const T*>(of_.x) + at, length_, group_);
    to[1].load(static_cast<const T*>(of_.dy) + at, length_, group_);
  }

  const NormBackward& of_;
  int length_;
  const Group& group_;
  Part now_[3], next_[2] = {};
};

// In shared memory; the next two rows. A thread brings what it reads, so none waits for another.
template <typename T, int kWidth, int kPieces, typename Group>
class RowsInShared {
 public:
  static_assert(kWidth * sizeof(T) == 16);
  __device__ __forceinline__ RowsInShared(const NormBackward& of, int length, const Group& group,
                                          uint4* shared)
      : of_(of),
        length_(length),
        group_(group),
        place_(shared + threadIdx.x),
        slot_((of.residual ? 3 : 2) * kPieces * static_cast<int>(blockDim.x)) {}
  __device__ __forceinline__ void first(bool there, Int at, bool more, Int next_at) {
    bring(there, at);
    turned_ ^= 1;
    bring(more, next_at);
    turned_ ^= 1;
  }
  __device__ __forceinline__ void turn(Int, bool, Int) { wait_copies<1>(); }
  __device__ __forceinline__ void read(int matrix, int p, float (&value)[kWidth]) const {
    const uint4 bits = *place(matrix, p);
    unpack<T>(bits, value);
  }
  __device__ __forceinline__ void again() {}
  __device__ __forceinline__ void done(bool more, Int second_next_at) {
    bring(more, second_next_at);
    turned_ ^= 1;
  }

 private:
  using Part = RowPart<T, kWidth, kPieces>;
  // One group of copies, also of nothing.
  __device__ __forceinline__ void bring(bool there, Int at) {
    if (there) {
      bring(of_.x, 0, at);
      bring(of_.dy, 1, at);
      if (of_.residual != nullptr) bring(of_.residual, 2, at);
    }
    commit_copies();
  }
  __device__ __forceinline__ void bring(const void* from, int matrix, Int at) {
#pragma unroll
    for (int p = 0; p < kPieces; ++p)
      if (const int column = Part::column(p, group_); column < length_)
        copy_async<16>(place(matrix, p), static_cast<const T*>(from) + at + column);
  }
  __device__ __forceinline__ uint4* place(int matrix, int p) const {
    return place_ + turned_ * slot_ + (matrix * kPieces + p) * static_cast<int>(blockDim.x);
  }

  const NormBackward& of_;
  int length_;
  const Group& group_;
  uint4* place_;
  int slot_, turned_ = 0;
};

template <bool kCentred, bool kSummed, GroupKind kKind, typename T, int kWidth, int kPieces>
__global__ void __launch_bounds__(backward_warps(kWidth* kPieces) * kWarp,
                                  backward_blocks(kWidth* kPieces))
    norm_backward_rows(NormBackward of, Int rows, int length, int warps) {
  constexpr int kSums = kCentred ? 2 : 1, kTotals = kSums + kSummed;
  constexpr bool kInShared = backward_in_shared(kWidth * kPieces);
  __shared__ float exchanged[kGroupShared];
  extern __shared__ uint4 shared[];
  using Group = RowGroup<kKind>;
  using Part = RowPart<T, kWidth, kPieces>;
  Group group(warps, exchanged);
  std::conditional_t<kInShared, RowsInShared<T, kWidth, kPieces, Group>,
                     RowsInRegisters<T, kWidth, kPieces, Group>>
      ahead(of, length, group, shared);

  const Int step = group.row_step(), hop = step * length;
  Int row = group.first_row(), at = row * length;
  float next_mean = 0, next_rstd = 0;
  const auto load_next = [&](Int next) {
    if (next >= rows) return;
    if (kCentred) next_mean = of.mean[next];
    next_rstd = of.rstd[next];
  };
  ahead.first(row < rows, at, row + step < rows, at + hop);
  load_next(row);

  // Cells behind the end of the row have weight 0 and dy 0: they add nothing.
  float kept[kInShared ? 1 : kPieces][kWidth] = {};
  if constexpr (!kInShared) {
#pragma unroll
    for (int p = 0; p < kPieces; ++p)
      if (const int column = Part::column(p, group); column < length)
        load_floats(of.weight + column, kept[p]);
  }
  const auto weight_of = [&](int p, float(&weight)[kWidth]) {
    if constexpr (kInShared) {
      load_floats(of.weight + Part::column(p, group), weight);
    } else {
#pragma unroll
      for (int k = 0; k < kWidth; ++k) weight[k] = kept[p][k];
    }
  };

  float total[kTotals][kPieces][kWidth] = {};  // of dy xhat, of dy, of dx
  const float inverse = 1.0f / static_cast<float>(length);
  for (; row < rows; row += step, at += hop) {
    const float mean = next_mean, rstd = next_rstd;
    ahead.turn(at, row + step < rows, at + hop);
    load_next(row + step);

    float sum[kSums] = {};  // of dy weight (x - mean), of dy weight
#pragma unroll
    for (int p = 0; p < kPieces; ++p) {
      if (kInShared && Part::column(p, group) >= length) continue;
      float from_x[kWidth], from_dy[kWidth], weight[kWidth];
      ahead.read(0, p, from_x);
      ahead.read(1, p, from_dy);
      weight_of(p, weight);
#pragma unroll
      for (int k = 0; k < kWidth; ++k) {
        const float centred = from_x[k] - mean, dxhat = from_dy[k] * weight[k];
        sum[0] += dxhat * centred;
        total[0][p][k] += from_dy[k] * rstd * centred;
        if constexpr (kCentred) {
          sum[1] += dxhat;
          total[1][p][k] += from_dy[k];
        }
      }
    }
    group.sum(sum);
    ahead.again();
    const float slope = sum[0] * inverse * rstd * rstd * rstd;
    const float shift = kCentred ? sum[kSums - 1] * inverse * rstd : 0.0f;
#pragma unroll
    for (int p = 0; p < kPieces; ++p) {
      const int column = Part::column(p, group);
      if (column >= length) continue;
      float from_x[kWidth], from_dy[kWidth], weight[kWidth], result[kWidth];
      ahead.read(0, p, from_x);
      ahead.read(1, p, from_dy);
      weight_of(p, weight);
#pragma unroll
      for (int k = 0; k < kWidth; ++k) {
        const float dxhat = from_dy[k] * weight[k];
        result[k] = dxhat * rstd - shift - (from_x[k] - mean) * slope;
      }
      if (of.residual != nullptr) {
        float more[kWidth];
        ahead.read(2, p, more);
#pragma unroll
        for (int k = 0; k < kWidth; ++k) result[k] += more[k];
      }
      if constexpr (kSummed) {
#pragma unroll
        for (int k = 0; k < kWidth; ++k) total[kSums][p][k] += result[k];
      }
      store_piece(static_cast<T*>(of.dx) + at + column, result);
    }
    ahead.done(row + 2 * step < rows, at + 2 * hop);
  }

  // Nothing is on its way any more: behind the last row only empty groups of copies are.
  float* const columns = reinterpret_cast<float*>(shared);  // [groups, length]
  const int groups = group.groups();
#pragma unroll
  for (int s = 0; s < kTotals; ++s) {
    float* partial = of.partial + (static_cast<Int>(blockIdx.x) * kTotals + s) * length;
    float* place = groups == 1 ? partial : columns + group.index() * length;
    __syncthreads();
#pragma unroll
    for (int p = 0; p < kPieces; ++p) {
      const int column = Part::column(p, group);
      if (column >= length) continue;
#pragma unroll
      for (int k = 0; k < kWidth; ++k) place[column + k] = total[s][p][k];
    }
    if (groups == 1) continue;
    __syncthreads();
    for (int j = threadIdx.x; j < length; j += blockDim.x) {
      float of_block = 0;
      for (int g = 0; g < groups; ++g) of_block += columns[g * length + j];
      partial[j] = of_block;
    }
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
      const int ahead = backward_in_shared(kWidth * kPieces)
                            ? 2 * (of.residual ? 3 : 2) * kPieces * 16 * grid.threads
                            : 0;
      const int columns = grid.threads / kWarp / plan.warps * static_cast<int>(rows.length) * 4;
      const auto kernel =
          plan.warps == 1
              ? norm_backward_rows<kCentred, kSummed, GroupKind::one_warp, T, kWidth, kPieces>
              : norm_backward_rows<kCentred, kSummed, GroupKind::several, T, kWidth, kPieces>;
      const int bytes = std::max(ahead, columns);
      // What is wrong with it the launch says as well.
      (void)cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
      kernel<<<static_cast<unsigned>(grid.blocks), grid.threads, bytes, stream>>>(
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
