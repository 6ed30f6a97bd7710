#include "cuda/device.cuh"
#include "cuda/memory_ceiling.h"

namespace millrace::cuda {
namespace {

constexpr int kThreads = 512, kBlocks = 4;  // of a multiprocessor, all at once
constexpr int kAtOnce = 4;                  // that a thread has under way

__global__ __launch_bounds__(kThreads, kBlocks) void move_kernel(uint4* data, Int count,
                                                                 int passes) {
  const Int stride = (Int)gridDim.x * kThreads;
  for (int pass = 0; pass < passes; ++pass)
    for (Int i = (Int)blockIdx.x * kThreads + threadIdx.x; i < count; i += kAtOnce * stride) {
      uint4 value[kAtOnce];
#pragma unroll
      for (int k = 0; k < kAtOnce; ++k)
        if (i + k * stride < count) value[k] = __ldcg(data + i + k * stride);
#pragma unroll
      for (int k = 0; k < kAtOnce; ++k) {
        if (i + k * stride >= count) break;
        value[k].x += 1;
        __stcg(data + i + k * stride, value[k]);
      }
    }
}

}  // namespace

void launch_move(void* data, int64_t bytes, int passes, int multiprocessors, cudaStream_t stream) {
  move_kernel<<<kBlocks * multiprocessors, kThreads, 0, stream>>>(static_cast<uint4*>(data),
                                                                  bytes / 16, passes);
}

}  // namespace millrace::cuda
