// top_k: a block has a row. Every thread knows the largest of its own places; in each of k rounds
// the largest of those is taken, and its thread alone looks for its next.
#include <cuda_runtime.h>

#include "cuda/device.cuh"
#include "ops/top_k_cuda.h"

namespace millrace::cuda {
namespace {

using Rank = unsigned long long;  // the higher, the earlier; no two of a row have the same
// The rank of a NaN in the first place is below the highest number there is, which no rank reaches.
constexpr unsigned kFirstPlace = 0xfffffffeu;

__device__ __forceinline__ Rank rank_of(float x, unsigned place) {
  const unsigned bits = __float_as_uint(x + 0.0f);  // -0 is 0
  const unsigned ordered = isnan(x) ? 0xffffffffu : bits & 0x80000000 ? ~bits : bits | 0x80000000;
  return (Rank)ordered << 32 | (kFirstPlace - place);
}

// The highest of this thread's places below `below`; 0: none.
__device__ __forceinline__ Rank highest(const float* x, unsigned width, Rank below) {
  Rank found = 0;
#pragma unroll 8
  for (unsigned i = threadIdx.x; i < width; i += blockDim.x) {
    const Rank here = rank_of(x[i], i);
    if (here < below && here > found) found = here;
  }
  return found;
}

__global__ void top_rows(const float* x, unsigned width, unsigned k, float* values, int* places) {
  __shared__ Rank of_warp[kWarp];
  const Int row = blockIdx.x;
  x += row * width;
  const unsigned lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp, warps = blockDim.x / kWarp;
  Rank own = highest(x, width, ~(Rank)0);
  for (unsigned round = 0; round < k; ++round) {
    Rank best = own;
#pragma unroll
    for (int step = kWarp / 2; step > 0; step /= 2) {
      const Rank other = __shfl_xor_sync(kAllLanes, best, step);
      if (other > best) best = other;
    }
    if (lane == 0) of_warp[warp] = best;
    __syncthreads();
    for (unsigned w = 0; w < warps; ++w)
      if (of_warp[w] > best) best = of_warp[w];
    if (own == best) {
      const unsigned place = kFirstPlace - (unsigned)best;
      values[row * k + round] = x[place];
      places[row * k + round] = (int)place;
      own = highest(x, width, best);
    }
    __syncthreads();
  }
}

}  // namespace

void launch_top_k(const float* x, int64_t rows, int64_t width, int64_t k, float* values,
                  int32_t* places, cudaStream_t stream) {
  if (rows == 0 || k == 0) return;
  const unsigned threads = width < 1024 ? 64 : width < 8192 ? 256 : 512;
  top_rows<<<(unsigned)rows, threads, 0, stream>>>(x, (unsigned)width, (unsigned)k, values, places);
}

}  // namespace millrace::cuda
