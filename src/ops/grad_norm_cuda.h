// Launches grad_norm on a GPU.
#pragma once
#include <cuda_runtime_api.h>

#include <cstdint>

namespace millrace::cuda {

struct GradNormChunk {
  const float* data;  // aligned to 16 bytes
  int64_t count;
};
// `partial` has room for a sum of every chunk. No chunk: the norm is 0.
void launch_grad_norm(const GradNormChunk* chunks, int64_t chunk_count, double* partial,
                      float* norm, cudaStream_t stream);

}  // namespace millrace::cuda
