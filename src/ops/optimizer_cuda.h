// What device code and hooks of the CUDA optimizers share: one launch updates all tensors of a
// node, a block to a chunk.
#pragma once
#include <cstdint>

#include "core/dtype.h"

namespace millrace::cuda {

// A piece of one parameter with all that belongs to it. The pointers are those of the chunk's first
// element, aligned to 16 bytes (shadows: 8).
struct alignas(16) OptimizerChunk {
  static constexpr int kMaxKept = 3;
  const float* kept[kMaxKept];  // the parameter, then its state
  float* kept_out[kMaxKept];
  const float* gradient;
  const uint16_t* shadow;  // null: the parameter has none
  uint16_t* shadow_out;
  float decay;
  int32_t count;  // elements
};

// One step of one node; everything lies in device memory.
struct OptimizerUpdate {
  const OptimizerChunk* chunks = nullptr;
  int64_t chunk_count = 0;  // at least 1
  const float *learning_rate = nullptr, *scale = nullptr, *step = nullptr;
  DType shadow_type = DType::bf16;
};

}  // namespace millrace::cuda
