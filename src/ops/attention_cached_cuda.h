// What attention_cached_cuda.cu launches.
#pragma once
#include <cuda_runtime_api.h>

#include <cstdint>

#include "core/dtype.h"

namespace millrace::cuda {

constexpr int64_t kCachedMaxWidth = 512;  // of a head: bounds what a block keeps in shared memory

struct CachedAttention {
  int64_t B, T, H, G, K, C, beams;  // as in ops/attention_cached.h
  float scale;
  DType dtype;  // of everything but positions and history
  const void* qkv;
  const void *keys, *values;  // the caches; the new ones may be the same
  const int32_t* positions;
  const int32_t* history;  // null: none
  void *out, *new_keys, *new_values;
};

int64_t cached_attention_workspace(const CachedAttention& a);
// Once, before the first launch.
cudaError_t prepare_cached_attention(DType dtype);
void launch_cached_attention(const CachedAttention& a, void* workspace, cudaStream_t stream);

}  // namespace millrace::cuda
