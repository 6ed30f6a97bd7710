// Products with GELU or its derivative behind them, for devices of compute capability 9.0. A
// library's epilogue runs when its products are over and the tensor cores wait; here a warpgroup of
// its own does it while the next tile is multiplied.
#pragma once
#include <cuda_runtime_api.h>

#include "cuda/gemm.h"

namespace millrace::cuda {

// "", or why it cannot be used.
std::string decline_gelu_gemm(const GemmSpec& spec, int sm);
cudaError_t launch_gelu_gemm(const GemmSpec& spec, const GemmData& data, int multiprocessors,
                             cudaStream_t stream);

}  // namespace millrace::cuda
