// What memory_ceiling.cu launches.
#pragma once
#include <cuda_runtime_api.h>

#include <cstdint>

namespace millrace::cuda {

// Reads and writes `bytes` (a multiple of 16) so many times, past the caches of single
// multiprocessors.
void launch_move(void* data, int64_t bytes, int passes, int multiprocessors, cudaStream_t stream);

}  // namespace millrace::cuda
