// What pass_on.cu launches.
#pragma once
#include <cuda_runtime_api.h>

#include <cstdint>

namespace millrace::cuda {

// A few numbers that a run gave, and where they are kept, one behind the other.
struct KeptNumbers {
  static constexpr int kMost = 4;
  const float* from[kMost] = {};
  float* to = nullptr;
  int count = 0;
};

// Between two runs of one graph: keeps the numbers of the first and puts the inputs of the second
// in place. `bytes` is a multiple of 16; 0: there is no second.
void launch_pass_on(const KeptNumbers& numbers, void* inputs, const void* next, int64_t bytes,
                    cudaStream_t stream);

}  // namespace millrace::cuda
