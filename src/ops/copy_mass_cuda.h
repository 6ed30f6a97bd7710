// Launches copy_mass and its gradient on a GPU.
#pragma once
#include <cuda_runtime_api.h>

#include <cstdint>

#include "core/dtype.h"

namespace millrace::cuda {

// Rows of `length` numbers of attention; row i belongs to source i % sources.
struct CopyRows {
  const int32_t* source;   // [sources, length]
  const int32_t* targets;  // [rows]
  int64_t rows, sources, length;
};

void launch_copy_mass(const CopyRows& of, const float* attention, float* mass, cudaStream_t stream);
void launch_copy_mass_grad(const CopyRows& of, const float* dmass, float* dattention,
                           cudaStream_t stream);

}  // namespace millrace::cuda
