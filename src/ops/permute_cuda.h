// What permute_cuda.cu launches.
#pragma once
#include <cuda_runtime_api.h>

#include <cstdint>

namespace millrace::cuda {

constexpr int kPermuteMaxRank = 6;

// The output's dimensions, outermost first, in elements: size and the distance between neighbours
// in the input. Sizes are 2 or more, and no two dimensions could be one.
struct PermuteAxes {
  int rank = 0;
  int64_t size[kPermuteMaxRank] = {}, from[kPermuteMaxRank] = {};
};

// Elements of 2 or 4 bytes.
void launch_permute(const PermuteAxes& axes, int64_t element_bytes, const void* x, void* y,
                    cudaStream_t stream);

}  // namespace millrace::cuda
