// softmax and its gradient on a GPU, memory-bound: a group of warps keeps a row in registers, so it
// is read once. Rows too long for that are read twice: once for the sums, once for the result.
#include "ops/row_math_cuda.cuh"
#include "ops/softmax_cuda.h"

namespace millrace::cuda {
namespace {

constexpr int kLongAtOnce = 8;  // loads that a thread has in flight in a long row

// How many keys of its row a query may see: those up to j = i + (S - T).
__device__ __forceinline__ Int keys_seen(Int row, Int queries, Int length) {
  if (queries == 0) return length;
  const Int seen = row % queries + (length - queries) + 1;
  return seen < 0 ? 0 : seen > length ? length : seen;
}

template <typename T, int kWidth, int kPieces>
__global__ void __launch_bounds__(kRowThreads, row_blocks(kWidth* kPieces))
    softmax_rows(const T* x, T* y, Int rows, int length, Int queries, int warps) {
  __shared__ float shared[kGroupShared];
  RowGroup<GroupKind::lone> group(warps, shared);
  using Part = RowPart<T, kWidth, kPieces>;
  const Int step = group.row_step();
  Int row = group.first_row();
  if (row >= rows) return;
  int next_seen = static_cast<int>(keys_seen(row, queries, length));
  Part next;
  next.load(x + row * length, next_seen, group);

  for (; row < rows; row += step) {
    const int seen = next_seen;
    float value[kPieces][kWidth];
    float largest = -INFINITY;
#pragma unroll
    for (int p = 0; p < kPieces; ++p) {
      const int at = Part::column(p, group);
      unpack<T>(next.piece[p], value[p]);
#pragma unroll
      for (int k = 0; k < kWidth; ++k)
        if (at + k < seen) largest = fmaxf(largest, value[p][k]);
    }
    if (row + step < rows) {
      next_seen = static_cast<int>(keys_seen(row + step, queries, length));
      next.load(x + (row + step) * length, next_seen, group);
    }
    largest = group.max(largest);
    float sum = 0;
#pragma unroll
    for (int p = 0; p < kPieces; ++p) {
      const int at = Part::column(p, group);
#pragma unroll
      for (int k = 0; k < kWidth; ++k) {
        value[p][k] = at + k < seen ? exp_for<T>(value[p][k] - largest) : 0.0f;
        sum += value[p][k];
      }
    }
    sum = group.sum(sum);
    const float factor = seen > 0 ? 1.0f / sum : 0.0f;  // a row that sees nothing is all zeros
#pragma unroll
    for (int p = 0; p < kPieces; ++p) {
      const int at = Part::column(p, group);
      if (at >= length) continue;
#pragma unroll
      for (int k = 0; k < kWidth; ++k) value[p][k] *= factor;
      store_piece(y + row * length + at, value[p]);
    }
  }
}

template <typename T>
__global__ void __launch_bounds__(kRowThreads)
    softmax_long_rows(const T* x, T* y, Int rows, Int length, Int queries) {
  __shared__ float shared[kGroupShared];
  RowGroup<GroupKind::lone> group(kRowWarps, shared);
  for (Int row = blockIdx.x; row < rows; row += gridDim.x) {
    const T* from = x + row * length;
    T* to = y + row * length;
    const Int seen = keys_seen(row, queries, length);
    OnlineSum<T> total;
    for (Int first = threadIdx.x; first < seen; first += kLongAtOnce * kRowThreads) {
      float value[kLongAtOnce];
#pragma unroll
      for (int u = 0; u < kLongAtOnce; ++u) {
        const Int at = first + u * kRowThreads;
        value[u] = at < seen ? to_float(from[at]) : -INFINITY;
      }
      total.add(value);
    }
    total.gather(group);
    const float factor = seen > 0 ? 1.0f / total.sum : 0.0f;
#pragma unroll 4
    for (Int at = threadIdx.x; at < length; at += kRowThreads)
      to[at] =
          from_float<T>(at < seen ? exp_for<T>(to_float(from[at]) - total.largest) * factor : 0.0f);
  }
}

template <typename T, int kWidth, int kPieces>
__global__ void __launch_bounds__(kRowThreads, row_blocks(kWidth* kPieces))
    softmax_grad_rows(const T* y, const T* dy, T* dx, Int rows, int length, int warps) {
  __shared__ float shared[kGroupShared];
  RowGroup<GroupKind::lone> group(warps, shared);
  using Part = RowPart<T, kWidth, kPieces>;
  const Int step = group.row_step();
  Int row = group.first_row();
  if (row >= rows) return;
  Part next_y, next_dy;
  next_y.load(y + row * length, length, group);
  next_dy.load(dy + row * length, length, group);

  for (; row < rows; row += step) {
    Part now_y = next_y, now_dy = next_dy;
    if (row + step < rows) {
      next_y.load(y + (row + step) * length, length, group);
      next_dy.load(dy + (row + step) * length, length, group);
    }
    float dot = 0;
#pragma unroll
    for (int p = 0; p < kPieces; ++p) {
      float from_y[kWidth], from_dy[kWidth];
      unpack<T>(now_y.piece[p], from_y);
      unpack<T>(now_dy.piece[p], from_dy);
#pragma unroll
      for (int k = 0; k < kWidth; ++k) dot += from_y[k] * from_dy[k];
    }
    dot = group.sum(dot);
    now_y.forget_unpacked();
    now_dy.forget_unpacked();
#pragma unroll
    for (int p = 0; p < kPieces; ++p) {
      const int at = Part::column(p, group);
      if (at >= length) continue;
      float from_y[kWidth], result[kWidth];
      unpack<T>(now_y.piece[p], from_y);
      unpack<T>(now_dy.piece[p], result);
#pragma unroll
      for (int k = 0; k < kWidth; ++k) result[k] = from_y[k] * (result[k] - dot);
      store_piece(dx + row * length + at, result);
    }
  }
}

template <typename T>
__global__ void __launch_bounds__(kRowThreads)
    softmax_grad_long_rows(const T* y, const T* dy, T* dx, Int rows, Int length) {
  __shared__ float shared[kWarp];
  for (Int row = blockIdx.x; row < rows; row += gridDim.x) {
    const Int from = row * length;
    float dot = 0;
#pragma unroll 4
    for (Int at = threadIdx.x; at < length; at += kRowThreads)
      dot += to_float(y[from + at]) * to_float(dy[from + at]);
    dot = block_sum(dot, shared);
    for (Int at = threadIdx.x; at < length; at += kRowThreads)
      dx[from + at] = from_float<T>(to_float(y[from + at]) * (to_float(dy[from + at]) - dot));
  }
}

template <typename T, int kWidth, int kPieces>
struct Forward {
  static void run(const RowPlan& plan, const RowGrid& grid, const SoftmaxRows& of, const void* x,
                  void* y, cudaStream_t stream) {
    softmax_rows<T, kWidth, kPieces>
        <<<static_cast<unsigned>(grid.blocks), grid.threads, 0, stream>>>(
            static_cast<const T*>(x), static_cast<T*>(y), of.rows, static_cast<int>(of.length),
            of.queries, plan.warps);
  }
};
template <typename T>
struct LongForward {
  static void run(const RowGrid& grid, const SoftmaxRows& of, const void* x, void* y,
                  cudaStream_t stream) {
    softmax_long_rows<T><<<static_cast<unsigned>(grid.blocks), grid.threads, 0, stream>>>(
        static_cast<const T*>(x), static_cast<T*>(y), of.rows, of.length, of.queries);
  }
};
template <typename T, int kWidth, int kPieces>
struct Backward {
  static void run(const RowPlan& plan, const RowGrid& grid, const SoftmaxRows& of, const void* y,
                  const void* dy, void* dx, cudaStream_t stream) {
    softmax_grad_rows<T, kWidth, kPieces>
        <<<static_cast<unsigned>(grid.blocks), grid.threads, 0, stream>>>(
            static_cast<const T*>(y), static_cast<const T*>(dy), static_cast<T*>(dx), of.rows,
            static_cast<int>(of.length), plan.warps);
  }
};
template <typename T>
struct LongBackward {
  static void run(const RowGrid& grid, const SoftmaxRows& of, const void* y, const void* dy,
                  void* dx, cudaStream_t stream) {
    softmax_grad_long_rows<T><<<static_cast<unsigned>(grid.blocks), grid.threads, 0, stream>>>(
        static_cast<const T*>(y), static_cast<const T*>(dy), static_cast<T*>(dx), of.rows,
        of.length);
  }
};

}  // namespace

void launch_softmax(const SoftmaxRows& of, const void* x, void* y, cudaStream_t stream) {
  if (of.rows == 0 || of.length == 0) return;
  const RowPlan plan = plan_rows(of.dtype, of.length, kRowWarps);
  const RowGrid grid = row_grid(plan, of.rows, of.multiprocessors);
  if (plan.warps > 0)
    launch_rows<Forward>(of.dtype, plan, grid, of, x, y, stream);
  else
    launch_typed<LongForward>(of.dtype, grid, of, x, y, stream);
}

void launch_softmax_grad(const SoftmaxRows& of, const void* y, const void* dy, void* dx,
                         cudaStream_t stream) {
  if (of.rows == 0 || of.length == 0) return;
  const RowPlan plan = plan_rows(of.dtype, of.length, kRowWarps);
  const RowGrid grid = row_grid(plan, of.rows, of.multiprocessors);
  if (plan.warps > 0)
    launch_rows<Backward>(of.dtype, plan, grid, of, y, dy, dx, stream);
  else
    launch_typed<LongBackward>(of.dtype, grid, of, y, dy, dx, stream);
}

}  // namespace millrace::cuda
