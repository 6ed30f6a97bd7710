// What embedding_cuda.cu launches.
#pragma once
#include <cuda_runtime_api.h>

#include <cstdint>

#include "core/dtype.h"

namespace millrace::cuda {

constexpr int64_t kEmbeddingMaxRows = int64_t{1} << 30;  // of ids or of the table, in the gradient

// `count` ids, a table of `rows` rows of `width` numbers.
void launch_embedding(DType dtype, const int32_t* ids, const void* table, void* out, int64_t count,
                      int64_t rows, int64_t width, cudaStream_t stream);

// `base` may be null, and may be `out`.
struct EmbeddingGrad {
  int64_t count, rows, width;
  DType dtype;  // of dy
  const int32_t* ids;
  const void* dy;
  const float* base;
  float* out;
};
int64_t embedding_grad_workspace(int64_t count, int64_t rows, int64_t width);
void launch_embedding_grad(const EmbeddingGrad& grad, void* workspace, cudaStream_t stream);

}  // namespace millrace::cuda
