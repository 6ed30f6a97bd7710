// Attention and its gradient by cuDNN's fused engines: bf16 and f16, causal or not, key lengths,
// grouped heads. Listed before our own kernels in ops/attention_cuda.cc.
#pragma once
#include <cuda_runtime_api.h>

#include <cstdint>

namespace millrace::cuda {

struct Kernel;
Kernel cudnn_attention_kernel();
Kernel cudnn_attention_grad_kernel();

// Zeroes what belongs to a batch of length 0: `units` of 16 bytes each in `data`, `floats` each in
// `rows` (null: none).
void clear_empty_batches(const int32_t* lengths, int64_t batches, void* data, int64_t units,
                         float* rows, int64_t floats, cudaStream_t stream);

}  // namespace millrace::cuda
