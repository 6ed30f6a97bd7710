// Launches top_k on a GPU.
#pragma once
#include <cuda_runtime_api.h>

#include <cstdint>

namespace millrace::cuda {

void launch_top_k(const float* x, int64_t rows, int64_t width, int64_t k, float* values,
                  int32_t* places, cudaStream_t stream);

}  // namespace millrace::cuda
