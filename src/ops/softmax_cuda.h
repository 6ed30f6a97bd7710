// Launches softmax and its gradient on a GPU.
#pragma once
#include <cuda_runtime_api.h>

#include <cstdint>

#include "core/dtype.h"

namespace millrace::cuda {

struct SoftmaxRows {
  DType dtype;
  int64_t rows, length;
  int64_t queries;  // rows of a causal square or rectangle; 0: not causal
  int multiprocessors;
};

void launch_softmax(const SoftmaxRows& of, const void* x, void* y, cudaStream_t stream);
void launch_softmax_grad(const SoftmaxRows& of, const void* y, const void* dy, void* dx,
                         cudaStream_t stream);

}  // namespace millrace::cuda
