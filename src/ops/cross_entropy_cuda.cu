// cross_entropy and its gradient on a GPU, memory-bound: one pass over the logits each. A group of
// warps takes a row; the running maximum and sum of its threads are put together at the end. Each
// block adds up the losses of its rows in order, a second kernel those of the blocks.
#include "ops/cross_entropy_cuda.h"
#include "ops/row_math_cuda.cuh"

namespace millrace::cuda {
namespace {

constexpr int kWarps = 8;           // of a block
constexpr int kResidentBlocks = 4;  // of a multiprocessor
constexpr int kAtOnce = 4;          // packs that a thread has in flight
constexpr int kTotalThreads = 256;

// A row of any length in packs of 16 bytes: what stands before the first boundary and behind the
// last is taken number by number.
template <typename T>
struct RowSpan {
  static constexpr int kCount = Pack<T>::kCount;
  Int head, packs;  // numbers before the first pack, packs
  Int classes;

  __device__ __forceinline__ RowSpan(Int row, Int row_classes) : classes(row_classes) {
    head = (kCount - row * classes % kCount) % kCount;
    if (head > classes) head = classes;
    packs = (classes - head) / kCount;
  }
  __device__ __forceinline__ Int pack(Int p) const { return head + p * kCount; }
  // The edge number that is this thread's, or -1.
  __device__ __forceinline__ Int edge(int thread) const {
    if (thread < head) return thread;
    const Int at = pack(packs) + (thread - head);
    return at < classes ? at : -1;
  }
};

// A pack of -inf, which adds nothing to a sum of exponentials.
template <typename T>
__device__ __forceinline__ uint4 nothing() {
  constexpr unsigned kWord = sizeof(T) == 4              ? 0xff800000u
                             : std::is_same_v<T, __half> ? 0xfc00fc00u
                                                         : 0xff80ff80u;
  return {kWord, kWord, kWord, kWord};
}

template <typename T>
__global__ void __launch_bounds__(kWarps* kWarp, kResidentBlocks)
    cross_entropy_rows(CrossEntropyForward of, Int rows, Int classes, int warps) {
  constexpr int kCount = Pack<T>::kCount;
  __shared__ float shared[kGroupShared];
  __shared__ double losses[kWarps];
  RowGroup<GroupKind::lone> group(warps, shared);
  const int thread = group.thread(), threads = group.threads();
  const Int step = group.row_step();
  Int row = group.first_row();
  double loss = 0;
  int next_target = row < rows ? of.targets[row] : 0;
  for (; row < rows; row += step) {
    const int target = next_target;
    if (row + step < rows) next_target = of.targets[row + step];
    if (target < 0 || target >= classes) {
      if (thread == 0) of.log_sum_exp[row] = 0;
      continue;
    }
    const T* x = static_cast<const T*>(of.logits) + row * classes;
    const float at_target = thread == 0 ? to_float(x[target]) : 0.0f;
    const RowSpan<T> span(row, classes);
    OnlineSum<T> total;
    float logits = 0;  // their sum
    if (const Int edge = span.edge(thread); edge >= 0) {
      const float one[1] = {to_float(x[edge])};
      total.add(one);
      logits += one[0];
    }
    for (Int first = thread; first < span.packs; first += kAtOnce * threads) {
      uint4 raw[kAtOnce];
#pragma unroll
      for (int u = 0; u < kAtOnce; ++u) {
        const Int p = first + u * threads;
        raw[u] = nothing<T>();
        if (p < span.packs) raw[u] = *reinterpret_cast<const uint4*>(x + span.pack(p));
      }
      float value[kAtOnce * kCount];
#pragma unroll
      for (int u = 0; u < kAtOnce; ++u) {
#pragma unroll
        for (int k = 0; k < kCount; ++k)
          value[u * kCount + k] = to_float(reinterpret_cast<const T*>(&raw[u])[k]);
      }
      total.add(value);
#pragma unroll
      for (int i = 0; i < kAtOnce * kCount; ++i)
        if (first + i / kCount * threads < span.packs) logits += value[i];
    }
    total.gather(group);
    if (of.label.off > 0) logits = group.sum(logits);
    if (thread == 0) {
      const float log_sum = logf(total.sum);
      // Without smoothing the sum does not count, even where it is infinite.
      const float wanted =
          of.label.off > 0 ? of.label.on * at_target + of.label.off * logits : at_target;
      of.log_sum_exp[row] = total.largest + log_sum;
      loss += (static_cast<double>(total.largest) - wanted) + log_sum;
    }
  }
  if (thread == 0) losses[group.index()] = loss;
  __syncthreads();
  if (threadIdx.x != 0) return;
  for (int g = 1; g < group.groups(); ++g) loss += losses[g];
  of.partial[blockIdx.x] = loss;
}

__global__ void __launch_bounds__(kTotalThreads)
    add_losses(const double* partial, int blocks, const float* scale, float* loss) {
  __shared__ double sums[kTotalThreads];
  double sum = 0;
  for (int block = threadIdx.x; block < blocks; block += kTotalThreads) sum += partial[block];
  sums[threadIdx.x] = sum;
  for (int half = kTotalThreads / 2; half > 0; half /= 2) {
    __syncthreads();
    if (threadIdx.x < half) sums[threadIdx.x] += sums[threadIdx.x + half];
  }
  if (threadIdx.x == 0) *loss = static_cast<float>(*scale * sums[0]);
}

template <typename T>
__global__ void __launch_bounds__(kWarps* kWarp, kResidentBlocks)
    cross_entropy_grad_rows(CrossEntropyBackward of, Int rows, Int classes, int warps) {
  constexpr int kCount = Pack<T>::kCount;
  __shared__ float shared[kGroupShared];
  const RowGroup<GroupKind::lone> group(warps, shared);
  const int thread = group.thread(), threads = group.threads();
  const Int step = group.row_step();
  Int row = group.first_row();
  if (row >= rows) return;
  const float factor = *of.dloss * *of.scale;
  int next_target = of.targets[row];
  float next_lse = of.log_sum_exp[row];
  for (; row < rows; row += step) {
    const int target = next_target;
    const float lse = next_lse;
    if (row + step < rows) {
      next_target = of.targets[row + step];
      next_lse = of.log_sum_exp[row + step];
    }
    const T* x = static_cast<const T*>(of.logits) + row * classes;
    T* dx = static_cast<T*>(of.dlogits) + row * classes;
    const RowSpan<T> span(row, classes);
    const Int edge = span.edge(thread);
    if (target < 0 || target >= classes) {
      if (edge >= 0) dx[edge] = from_float<T>(0.0f);
      for (Int p = thread; p < span.packs; p += threads)
        *reinterpret_cast<uint4*>(dx + span.pack(p)) = uint4{};
      continue;
    }
    if (edge >= 0) {
      const float y = exp_for<T>(to_float(x[edge]) - lse) - of.label.off;
      dx[edge] = from_float<T>(factor * (edge == target ? y - of.label.on : y));
    }
    for (Int first = thread; first < span.packs; first += kAtOnce * threads) {
      uint4 raw[kAtOnce] = {};
#pragma unroll
      for (int u = 0; u < kAtOnce; ++u) {
        const Int p = first + u * threads;
        if (p < span.packs) raw[u] = *reinterpret_cast<const uint4*>(x + span.pack(p));
      }
#pragma unroll
      for (int u = 0; u < kAtOnce; ++u) {
        const Int p = first + u * threads;
        if (p >= span.packs) continue;
        const Int at = span.pack(p);
        Pack<T> pack;
#pragma unroll
        for (int k = 0; k < kCount; ++k)
          pack.value[k] =
              exp_for<T>(to_float(reinterpret_cast<const T*>(&raw[u])[k]) - lse) - of.label.off;
        if (target >= at && target < at + kCount) {
#pragma unroll
          for (int k = 0; k < kCount; ++k)
            if (at + k == target) pack.value[k] -= of.label.on;
        }
#pragma unroll
        for (int k = 0; k < kCount; ++k) pack.value[k] *= factor;
        store_pack(dx + at, pack);
      }
    }
  }
}

// Enough warps that a thread has kAtOnce packs of its row, as far as a block goes.
int group_warps(const CrossEntropyRows& of) {
  const int64_t bytes = of.classes * dtype_bytes(of.dtype), share = 16 * kAtOnce * kWarp;
  return static_cast<int>(std::clamp<int64_t>((bytes + share - 1) / share, 1, kWarps));
}
RowGrid cross_entropy_grid(const CrossEntropyRows& of) {
  const int warps = group_warps(of);
  return grid_of(warps, of.rows, warps == 1 ? kWarps : warps, kWarps * kResidentBlocks,
                 of.multiprocessors);
}

template <typename T>
struct Forward {
  static void run(const CrossEntropyRows& rows, const CrossEntropyForward& of,
                  cudaStream_t stream) {
    const RowGrid grid = cross_entropy_grid(rows);
    cross_entropy_rows<T><<<static_cast<unsigned>(grid.blocks), grid.threads, 0, stream>>>(
        of, rows.rows, rows.classes, group_warps(rows));
  }
};
template <typename T>
struct Backward {
  static void run(const CrossEntropyRows& rows, const CrossEntropyBackward& of,
                  cudaStream_t stream) {
    const RowGrid grid = cross_entropy_grid(rows);
    cross_entropy_grad_rows<T><<<static_cast<unsigned>(grid.blocks), grid.threads, 0, stream>>>(
        of, rows.rows, rows.classes, group_warps(rows));
  }
};

}  // namespace

int64_t cross_entropy_blocks(const CrossEntropyRows& of) { return cross_entropy_grid(of).blocks; }

void launch_cross_entropy(const CrossEntropyRows& rows, const CrossEntropyForward& of,
                          cudaStream_t stream) {
  if (rows.rows > 0) launch_typed<Forward>(rows.dtype, rows, of, stream);
  add_losses<<<1, kTotalThreads, 0, stream>>>(
      of.partial, static_cast<int>(cross_entropy_blocks(rows)), of.scale, of.loss);
}

void launch_cross_entropy_grad(const CrossEntropyRows& rows, const CrossEntropyBackward& of,
                               cudaStream_t stream) {
  if (rows.rows > 0 && rows.classes > 0) launch_typed<Backward>(rows.dtype, rows, of, stream);
}

}  // namespace millrace::cuda
