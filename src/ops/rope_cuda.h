// What rope_cuda.cu launches.
#pragma once
#include <cuda_runtime_api.h>

#include <cstdint>

#include "core/dtype.h"

namespace millrace::cuda {

constexpr int64_t kRopeMaxWidth = 8192;  // of a head: the angles of a row stand in shared memory

struct RopeSizes {
  int64_t rows, steps,
      offset;            // row r is at position r % steps + offset, unless positions are given
  int64_t turned, kept;  // heads: q and k; v
  int64_t width;         // of a head
  float direction;       // 1 or -1
};

// `turns` holds width / 2 numbers: the full turns of a pair in one step of position. `positions`
// may be null. y may be x.
void launch_rope(DType dtype, const RopeSizes& sizes, const double* turns, const int32_t* positions,
                 const void* x, void* y, cudaStream_t stream);

}  // namespace millrace::cuda
