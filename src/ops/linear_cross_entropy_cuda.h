// The kernels of the loss head around its products: from logits to losses and gradients.
#pragma once
#include <cuda_runtime_api.h>

#include <cstdint>

#include "core/dtype.h"
#include "ops/label_smoothing_cuda.h"

namespace millrace::cuda {

// What a row's loss is taken against: its target, the target smoothed, or the target mixed with
// what may be copied.
enum class HeadForm { plain, smooth, copy };

// What rows need where words may be copied: gate and mass and, with `gradients`, where the
// gradients of these go.
struct HeadCopy {
  const float *gate = nullptr, *mass = nullptr;
  float *dgate = nullptr, *dmass = nullptr;
};

// Lets launch_head_rows use `shared_bytes` of shared memory in a block. Once, before it is
// launched.
cudaError_t allow_head_rows(DType dtype, HeadForm form, int64_t shared_bytes);
// The loss of each row of logits, unscaled, 0 where its target is none of the columns; with
// `gradients`, logits become their gradient, with the scale, in place. Where words are copied, a
// target behind the columns is one that only the source has.
void launch_head_rows(DType dtype, HeadForm form, void* logits, int64_t row_stride,
                      const int32_t* targets, LabelFloats label, const HeadCopy& copy,
                      const float* scale, float* losses, int64_t rows, int64_t columns,
                      bool gradients, int64_t shared_bytes, cudaStream_t stream);
// loss = scale times the sum.
void launch_head_loss(const float* losses, int64_t count, const float* scale, float* loss,
                      cudaStream_t stream);
// `to` is of a half type.
void launch_head_round(const float* from, void* to, DType dtype, int64_t count,
                       cudaStream_t stream);

}  // namespace millrace::cuda
