// What reduce_sum_cuda.cu launches.
#pragma once
#include <cuda_runtime_api.h>

#include <cstdint>

#include "core/dtype.h"

namespace millrace::cuda {

// The input as a matrix [rows, width], f32 or half; the result f32 or half. The workspace holds the
// partial sums: so many bytes.
int64_t column_sums_workspace(DType dtype, int64_t rows, int64_t width);
void launch_column_sums(DType dtype, const void* x, int64_t rows, int64_t width, DType out_dtype,
                        void* out, void* workspace, cudaStream_t stream);

int64_t row_sums_workspace(int64_t rows, int64_t width);
void launch_row_sums(DType dtype, const void* x, int64_t rows, int64_t width, DType out_dtype,
                     void* out, void* workspace, cudaStream_t stream);

}  // namespace millrace::cuda
