// iota on the GPU: start, start + 1, … in rows.
#include "cuda/device.cuh"
#include "ops/iota_cuda.h"

namespace millrace::cuda {
namespace {

constexpr int kThreads = 256;

// Modulo 2^32, as on the CPU.
__global__ void iota_kernel(const int* starts, int* out, Int count, Int size) {
  const Int i = (Int)blockIdx.x * kThreads + threadIdx.x;
  if (i < count) out[i] = (int)((starts ? (unsigned)starts[i / size] : 0u) + (unsigned)(i % size));
}

}  // namespace

void launch_iota(const int32_t* starts, int32_t* out, int64_t count, int64_t size,
                 cudaStream_t stream) {
  if (count == 0) return;
  iota_kernel<<<(count + kThreads - 1) / kThreads, kThreads, 0, stream>>>(starts, out, count, size);
}

}  // namespace millrace::cuda
