// Launches copy_mix on a GPU.
#pragma once
#include <cuda_runtime_api.h>

#include <cstdint>

namespace millrace::cuda {

struct CopyMix {
  const float *probabilities, *gate, *attention;
  const int32_t *columns, *lengths;  // of groups, each of rows / groups rows
  float* out;
  int64_t rows, words, groups, places;
};
void launch_copy_mix(const CopyMix& of, cudaStream_t stream);

}  // namespace millrace::cuda
