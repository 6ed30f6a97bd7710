// Launches sgd on a GPU.
#pragma once
#include <cuda_runtime_api.h>

#include "ops/optimizer_cuda.h"

namespace millrace::cuda {

// Without momentum (0) there is no state.
void launch_sgd(const OptimizerUpdate& update, float momentum, bool nesterov, cudaStream_t stream);

}  // namespace millrace::cuda
