#include "cuda/device.cuh"
#include "cuda/pass_on.h"

namespace millrace::cuda {
namespace {

constexpr int kThreads = 256, kMostBlocks = 256;

__global__ void pass_on_kernel(KeptNumbers numbers, uint4* inputs, const uint4* next, Int count) {
  if (blockIdx.x == 0 && threadIdx.x < numbers.count)
    numbers.to[threadIdx.x] = *numbers.from[threadIdx.x];
  const Int stride = (Int)gridDim.x * kThreads;
  for (Int i = (Int)blockIdx.x * kThreads + threadIdx.x; i < count; i += stride)
    inputs[i] = next[i];
}

}  // namespace

void launch_pass_on(const KeptNumbers& numbers, void* inputs, const void* next, int64_t bytes,
                    cudaStream_t stream) {
  const Int count = bytes / 16, blocks = (count + kThreads - 1) / kThreads;
  pass_on_kernel<<<blocks<1 ? 1 : blocks> kMostBlocks ? kMostBlocks : blocks, kThreads, 0,
                   stream>>>(numbers, static_cast<uint4*>(inputs), static_cast<const uint4*>(next),
                             count);
}

}  // namespace millrace::cuda
