// constant on the GPU: one number all over.
#include <algorithm>

#include "cuda/device.cuh"
#include "cuda/with_type.cuh"
#include "ops/constant_cuda.h"

namespace millrace::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int64_t kMaxBlocks = 2048;

template <typename T>
__global__ void fill_kernel(T* out, Int count, float value) {
  constexpr int kCount = Pack<T>::kCount;
  Pack<T> pack;
#pragma unroll
  for (int i = 0; i < kCount; ++i) pack.value[i] = value;
  const Int packs = count / kCount, first = (Int)blockIdx.x * kThreads + threadIdx.x;
  for (Int i = first; i < packs; i += (Int)gridDim.x * kThreads) store_pack(out + i * kCount, pack);
  if (first < count % kCount) out[packs * kCount + first] = from_float<T>(value);
}

template <typename T>
void launch(void* out, int64_t count, float value, cudaStream_t stream) {
  const int64_t packs = count / Pack<T>::kCount + 1;
  const int64_t blocks = std::min(kMaxBlocks, (packs + kThreads - 1) / kThreads);
  fill_kernel<T><<<blocks, kThreads, 0, stream>>>(static_cast<T*>(out), count, value);
}

}  // namespace

void launch_constant(DType dtype, void* out, int64_t count, float value, cudaStream_t stream) {
  if (count == 0) return;
  with_type(dtype, [&]<typename T>(T*) { launch<T>(out, count, value, stream); });
}

}  // namespace millrace::cuda
