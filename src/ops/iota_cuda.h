// What iota_cuda.cu launches.
#pragma once
#include <cuda_runtime_api.h>

#include <cstdint>

namespace millrace::cuda {

// Each row of `size` from its start on; `starts` may be null: 0.
void launch_iota(const int32_t* starts, int32_t* out, int64_t count, int64_t size,
                 cudaStream_t stream);

}  // namespace millrace::cuda
