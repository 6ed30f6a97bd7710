// Launches adam on a GPU.
#pragma once
#include <cuda_runtime_api.h>

#include "ops/optimizer_cuda.h"

namespace millrace::cuda {

struct AdamSettings {
  double beta1, beta2, eps;
  bool decoupled;
};
void launch_adam(const OptimizerUpdate& update, const AdamSettings& settings, cudaStream_t stream);

}  // namespace millrace::cuda
