// What cuDNN leaves open: rows without any key. Ours are 0.
#include "ops/attention_cudnn_cuda.h"

namespace millrace::cuda {

namespace {

constexpr int kThreads = 256;
constexpr int kBlocks = 16;  // of one batch

__global__ void clear_kernel(const int32_t* __restrict__ lengths, uint4* data, int64_t units,
                             float* rows, int64_t floats) {
  const int64_t batch = blockIdx.x / kBlocks;
  if (lengths[batch] > 0) return;
  const int64_t first = static_cast<int64_t>(blockIdx.x % kBlocks) * kThreads + threadIdx.x;
  for (int64_t i = first; i < units; i += kBlocks * kThreads)
    data[batch * units + i] = make_uint4(0, 0, 0, 0);
  for (int64_t i = first; i < floats; i += kBlocks * kThreads) rows[batch * floats + i] = 0;
}

}  // namespace

void clear_empty_batches(const int32_t* lengths, int64_t batches, void* data, int64_t units,
                         float* rows, int64_t floats, cudaStream_t stream) {
  clear_kernel<<<static_cast<unsigned>(batches * kBlocks), kThreads, 0, stream>>>(
      lengths, static_cast<uint4*>(data), units, rows, rows == nullptr ? 0 : floats);
}

}  // namespace millrace::cuda
