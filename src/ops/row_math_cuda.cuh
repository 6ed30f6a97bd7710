// What the row-wise CUDA kernels share on the device: a group of warps that takes a row, a thread's
// part of that row in registers, sums and maxima over the group, exponentials.
#pragma once
#include <cuda_runtime.h>

#include <type_traits>

#include "cuda/device.cuh"
#include "cuda/with_type.cuh"
#include "ops/row_math_cuda.h"

namespace millrace::cuda {

// Kernels whose rows have nothing to do with each other: launch bounds and grids.
constexpr int kRowBlockWarps = 4;  // of a block of several groups
constexpr int kRowThreads = kRowWarps * kWarp;
constexpr int row_blocks(int cells) { return cells <= 8 ? 2 : 1; }  // of kRowThreads, resident
inline RowGrid row_grid(const RowPlan& plan, int64_t rows, int multiprocessors) {
  if (plan.warps == 0) return long_row_grid(rows, multiprocessors);
  return grid_of(plan.warps, rows, plan.warps == 1 ? kRowBlockWarps : plan.warps,
                 row_blocks(plan.cells()) * kRowWarps, multiprocessors);
}

constexpr int kGroupShared = 4 * kRowWarps;  // floats: two turns of two values a warp

enum class GroupKind {
  one_warp,  // what is known beforehand
  lone,      // a group of several warps has its block to itself
  several,   // each has a barrier of its own, which reserves all sixteen of a block: for kernels of
             // few resident blocks
};

template <GroupKind kKind>
class RowGroup {
 public:
  __device__ __forceinline__ RowGroup(int warps, float* shared)
      : warps_(kKind == GroupKind::one_warp ? 1 : warps),
        index_(threadIdx.x / threads()),
        thread_(threadIdx.x % threads()),
        shared_(shared + 2 * warps_ * index_) {}

  __device__ __forceinline__ int index() const { return index_; }    // in the block
  __device__ __forceinline__ int thread() const { return thread_; }  // in the group
  __device__ __forceinline__ int threads() const {
    return kKind == GroupKind::one_warp ? kWarp : warps_ * kWarp;
  }
  __device__ __forceinline__ int groups() const { return blockDim.x / threads(); }
  __device__ __forceinline__ Int first_row() const {
    return static_cast<Int>(blockIdx.x) * groups() + index_;
  }
  __device__ __forceinline__ Int row_step() const { return static_cast<Int>(gridDim.x) * groups(); }

  // Every thread of the group gets the result.
  template <int kCount>
  __device__ __forceinline__ void sum(float (&value)[kCount]) {
#pragma unroll
    for (int n = 0; n < kCount; ++n) value[n] = warp_sum(value[n]);
    if (kKind == GroupKind::one_warp || warps_ == 1) return;
    const float* all = exchange(value);
#pragma unroll
    for (int n = 0; n < kCount; ++n) value[n] = 0.0f;
    for (int w = 0; w < warps_; ++w) {
#pragma unroll
      for (int n = 0; n < kCount; ++n) value[n] += all[2 * w + n];
    }
  }
  __device__ __forceinline__ float sum(float x) {
    float value[1] = {x};
    sum(value);
    return value[0];
  }
  __device__ __forceinline__ float max(float x) {
    float value[1] = {warp_max(x)};
    if (kKind == GroupKind::one_warp || warps_ == 1) return value[0];
    const float* all = exchange(value);
    for (int w = 0; w < warps_; ++w) value[0] = fmaxf(value[0], all[2 * w]);
    return value[0];
  }

 private:
  // The values of every warp of the group. One barrier is enough because two places take turns: who
  // fills one again has passed the barrier of the other, so everyone has read the first.
  template <int kCount>
  __device__ __forceinline__ const float* exchange(const float (&value)[kCount]) {
    static_assert(kCount <= 2);
    float* place = shared_ + turn_;
    turn_ ^= 2 * kRowWarps;
    if (thread_ % kWarp == 0) {
#pragma unroll
      for (int n = 0; n < kCount; ++n) place[2 * (thread_ / kWarp) + n] = value[n];
    }
    if constexpr (kKind == GroupKind::lone) {
      __syncthreads();
    } else {
      __syncwarp();
      // Barrier 0 is __syncthreads.
      asm volatile("bar.sync %0, %1;" ::"r"(1 + index_), "r"(threads()) : "memory");
    }
    return place;
  }

  int warps_, index_, thread_;
  float* shared_;
  int turn_ = 0;
};

// kWidth neighbours of a row as they travel.
template <typename T, int kWidth>
using Piece = std::conditional_t<kWidth == 1, T, uint4>;

template <typename T>
__device__ __forceinline__ void unpack(const T& piece, float (&value)[1]) {
  value[0] = to_float(piece);
}

// A thread's part of a row: pieces that stand a group's width apart.
template <typename T, int kWidth, int kPieces>
struct RowPart {
  Piece<T, kWidth> piece[kPieces];

  template <typename Group>
  static __device__ __forceinline__ int column(int p, const Group& group) {
    return (p * group.threads() + group.thread()) * kWidth;
  }
  // What begins at `end` or behind it is not read: zeros.
  template <typename Group>
  __device__ __forceinline__ void load(const T* row, int end, const Group& group) {
#pragma unroll
    for (int p = 0; p < kPieces; ++p) {
      const int at = column(p, group);
      piece[p] = Piece<T, kWidth>{};
      if (at < end) piece[p] = *reinterpret_cast<const Piece<T, kWidth>*>(row + at);
    }
  }
  // What was unpacked is not kept beyond this point: the pieces take half the registers.
  __device__ __forceinline__ void forget_unpacked() {
    if constexpr (kWidth == 8) {
#pragma unroll
      for (int p = 0; p < kPieces; ++p)
        asm volatile("" : "+r"(piece[p].x), "+r"(piece[p].y), "+r"(piece[p].z), "+r"(piece[p].w));
    }
  }
};

template <typename T, int kWidth>
__device__ __forceinline__ void store_piece(T* p, const float (&value)[kWidth]) {
  if constexpr (kWidth == 1)
    *p = from_float<T>(value[0]);
  else
    *reinterpret_cast<uint4*>(p) = packed<T>(value);
}

template <int kWidth>
__device__ __forceinline__ void load_floats(const float* p, float (&value)[kWidth]) {
  if constexpr (kWidth % 4 == 0) {
#pragma unroll
    for (int k = 0; k < kWidth; k += 4) {
      const float4 four = *reinterpret_cast<const float4*>(p + k);
      value[k] = four.x;
      value[k + 1] = four.y;
      value[k + 2] = four.z;
      value[k + 3] = four.w;
    }
  } else {
#pragma unroll
    for (int k = 0; k < kWidth; ++k) value[k] = p[k];
  }
}

// Sum of e^(x - largest), corrected when a larger number comes (Milakov & Gimelshein, arXiv
// 1805.02867).
template <typename T>
struct OnlineSum {
  float largest = -INFINITY, sum = 0;

  template <int kCount>
  __device__ __forceinline__ void add(const float (&x)[kCount]) {
    float top = largest;
#pragma unroll
    for (int k = 0; k < kCount; ++k) top = fmaxf(top, x[k]);
    const float shift = shift_by(top);
    float part = 0;
#pragma unroll
    for (int k = 0; k < kCount; ++k) part += exp_for<T>(x[k] - shift);
    sum = sum * expf(largest - shift) + part;
    largest = top;
  }
  // Over the threads of a group.
  template <typename Group>
  __device__ __forceinline__ void gather(Group& group) {
    const float top = group.max(largest);
    sum = group.sum(sum * expf(largest - shift_by(top)));
    largest = top;
  }

 private:
  // While all is -inf so far, a shift by it would make NaN out of nothing.
  static __device__ __forceinline__ float shift_by(float top) {
    return top == -INFINITY ? 0.0f : top;
  }
};

// Calls Launch<T, width, pieces>::run(plan, …) for the kernel that a plan asks for.
template <template <typename, int, int> class Launch, typename T, typename... Args>
void launch_pieces(const RowPlan& plan, const Args&... args) {
  constexpr int kCount = Pack<T>::kCount;
  if (plan.width == 1) return Launch<T, 1, kScalarPieces>::run(plan, args...);
  if (plan.pieces == 1) return Launch<T, kCount, 1>::run(plan, args...);
  if (plan.pieces == 2) return Launch<T, kCount, 2>::run(plan, args...);
  if (plan.pieces == 3) return Launch<T, kCount, 3>::run(plan, args...);
  if constexpr (sizeof(T) == 4) Launch<T, kCount, 4>::run(plan, args...);
}
template <template <typename, int, int> class Launch, typename... Args>
void launch_rows(DType dtype, const RowPlan& plan, const Args&... args) {
  with_type(dtype, [&]<typename T>(T*) { launch_pieces<Launch, T>(plan, args...); });
}
// Calls Launch<T>::run(…).
template <template <typename> class Launch, typename... Args>
void launch_typed(DType dtype, const Args&... args) {
  with_type(dtype, [&]<typename T>(T*) { Launch<T>::run(args...); });
}

}  // namespace millrace::cuda
