// What constant_cuda.cu launches.
#pragma once
#include <cuda_runtime_api.h>

#include <cstdint>

#include "core/dtype.h"

namespace millrace::cuda {

void launch_constant(DType dtype, void* out, int64_t count, float value, cudaStream_t stream);

}  // namespace millrace::cuda
