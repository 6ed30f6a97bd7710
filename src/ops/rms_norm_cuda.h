// Launches rms_norm and its gradient on a GPU.
#pragma once
#include <cuda_runtime_api.h>

#include "ops/row_norm_cuda.h"

namespace millrace::cuda {

void launch_rms_norm(const NormRows& rows, const NormForward& of, cudaStream_t stream);
void launch_rms_norm_grad(const NormRows& rows, const NormBackward& of, cudaStream_t stream);
// dweight, dbias and sums out of their partial sums.
void launch_rms_norm_grad_end(const NormRows& rows, const NormBackward& of, cudaStream_t stream);

}  // namespace millrace::cuda
