// Launches cross_entropy and its gradient on a GPU.
#pragma once
#include <cuda_runtime_api.h>

#include <cstdint>

#include "core/dtype.h"
#include "ops/label_smoothing_cuda.h"

namespace millrace::cuda {

struct CrossEntropyRows {
  DType dtype;  // of the logits
  int64_t rows, classes;
  int multiprocessors;
};

struct CrossEntropyForward {
  const void* logits;
  const int32_t* targets;
  const float* scale;
  float *loss, *log_sum_exp;
  double* partial;  // one loss of each of cross_entropy_blocks
  LabelFloats label;
};

struct CrossEntropyBackward {
  const void* logits;
  const int32_t* targets;
  const float *scale, *log_sum_exp, *dloss;
  void* dlogits;
  LabelFloats label;
};

int64_t cross_entropy_blocks(const CrossEntropyRows& of);
void launch_cross_entropy(const CrossEntropyRows& rows, const CrossEntropyForward& of,
                          cudaStream_t stream);
void launch_cross_entropy_grad(const CrossEntropyRows& rows, const CrossEntropyBackward& of,
                               cudaStream_t stream);

}  // namespace millrace::cuda
