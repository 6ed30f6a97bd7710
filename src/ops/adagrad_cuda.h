// Launches adagrad on a GPU.
#pragma once
#include <cuda_runtime_api.h>

#include "ops/optimizer_cuda.h"

namespace millrace::cuda {

void launch_adagrad(const OptimizerUpdate& update, float eps, cudaStream_t stream);

}  // namespace millrace::cuda
