// grad_norm on a GPU: a block sums the squares of its chunk, then one block adds up the sums, both
// in a fixed order. In double, as on the CPU: no finite gradient overflows on the way, and memory
// is still slower than the conversions.
#include <cuda_runtime.h>

#include "cuda/device.cuh"
#include "ops/grad_norm_cuda.h"

namespace millrace::cuda {
namespace {

constexpr int kThreads = 256, kFinalThreads = 1024;
constexpr int kUnroll = 4;  // packs that a thread has in flight, at least
constexpr int kPack = Pack<float>::kCount;

__device__ double sum_of_warp(double x) {
#pragma unroll
  for (int step = kWarp / 2; step > 0; step /= 2) x += __shfl_xor_sync(kAllLanes, x, step);
  return x;
}

// Thread 0 gets the sum over the block.
__device__ double sum_of_block(double x) {
  __shared__ double of_warp[kWarp];
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp, warps = blockDim.x / kWarp;
  x = sum_of_warp(x);
  if (lane == 0) of_warp[warp] = x;
  __syncthreads();
  return warp == 0 ? sum_of_warp(lane < warps ? of_warp[lane] : 0.0) : 0.0;
}

// Four blocks to a multiprocessor: with registers for more, ptxas puts the loads one by one.
__global__ void __launch_bounds__(kThreads, 4)
    sum_squares(const GradNormChunk* chunks, double* partial) {
  const GradNormChunk chunk = chunks[blockIdx.x];
  __builtin_assume(__isGlobal(chunk.data));  // a pointer out of a table could be to any memory
  const int count = static_cast<int>(chunk.count), packs = count / kPack;
  double sum[kUnroll] = {};
  for (int first = threadIdx.x; first < packs; first += kUnroll * kThreads) {
    Pack<float> x[kUnroll] = {};
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const int pack = first + u * kThreads;
      if (pack < packs) x[u] = load_pack(chunk.data + pack * kPack);
    }
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
#pragma unroll
      for (int i = 0; i < kPack; ++i) {
        const double value = x[u].value[i];
        sum[u] += value * value;
      }
    }
  }
  const int at = packs * kPack + threadIdx.x;  // the last elements, fewer than a pack
  if (at < count) {
    const double value = chunk.data[at];
    sum[0] += value * value;
  }
  const double total = sum_of_block((sum[0] + sum[1]) + (sum[2] + sum[3]));
  if (threadIdx.x == 0) partial[blockIdx.x] = total;
}

__global__ void __launch_bounds__(kFinalThreads)
    root_of_sum(const double* partial, int64_t count, float* norm) {
  double sum = 0;
#pragma unroll 4
  for (int64_t at = threadIdx.x; at < count; at += kFinalThreads) sum += partial[at];
  sum = sum_of_block(sum);
  if (threadIdx.x == 0) *norm = static_cast<float>(sqrt(sum));
}

}  // namespace

void launch_grad_norm(const GradNormChunk* chunks, int64_t chunk_count, double* partial,
                      float* norm, cudaStream_t stream) {
  if (chunk_count > 0)
    sum_squares<<<static_cast<unsigned>(chunk_count), kThreads, 0, stream>>>(chunks, partial);
  root_of_sum<<<1, kFinalThreads, 0, stream>>>(partial, chunk_count, norm);
}

}  // namespace millrace::cuda
