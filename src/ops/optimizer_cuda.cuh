// The device code that the CUDA optimizers share: a block reads its chunk once, applies a rule to
// every element and writes it once. All of it is memory-bound.
//
// A Rule is handed to the kernel by value and has
//   kKept                       tensors that are kept: the parameter and its state
//   Step                        the numbers it computes with
//   begin(numbers)              makes them; called once, by every thread of the block
//   apply(step, gradient, x)    turns the old x[0 … kKept-1] (the parameter first) into the new
#pragma once
#include <cuda_runtime.h>

#include "cuda/device.cuh"
#include "ops/optimizer_cuda.h"

namespace millrace::cuda {

constexpr int kUpdateThreads = 256;
constexpr int kUpdateUnroll = 2;  // packs of each tensor that a thread has in flight
constexpr int kUpdatePack = Pack<float>::kCount;

struct StepNumbers {
  float rate, scale, time;  // learning rate, gradient scale, step
  float decay;              // of this chunk
};

// To the compiler a pointer out of a table could be to any memory: these say that it is to global
// memory.
__device__ __forceinline__ Pack<float> load_global(const float* from) {
  const float4 x = __ldcg(reinterpret_cast<const float4*>(from));
  return {{x.x, x.y, x.z, x.w}};
}
__device__ __forceinline__ void store_global(float* to, const Pack<float>& x) {
  __stwb(reinterpret_cast<float4*>(to),
         make_float4(x.value[0], x.value[1], x.value[2], x.value[3]));
}
template <typename T>
__device__ __forceinline__ void store_rounded(uint16_t* to, const Pack<float>& x) {
  uint2 bits;
  T* raw = reinterpret_cast<T*>(&bits);
#pragma unroll
  for (int i = 0; i < kUpdatePack; ++i) raw[i] = from_float<T>(x.value[i]);
  __stwb(reinterpret_cast<uint2*>(to), bits);
}

template <typename T>
__device__ __forceinline__ void copy_unless_in_place(const T* from, T* to, int count) {
  if (from == to) return;
#pragma unroll 1
  for (int at = threadIdx.x; at < count; at += kUpdateThreads) to[at] = from[at];
}

template <typename Rule>
__global__ void __launch_bounds__(kUpdateThreads) update_chunk(OptimizerUpdate update, Rule rule) {
  const OptimizerChunk chunk = update.chunks[blockIdx.x];
  const float scale = *update.scale;
  if (!isfinite(scale)) {  // a broken step leaves the model as it was
#pragma unroll
    for (int k = 0; k < Rule::kKept; ++k)
      copy_unless_in_place(chunk.kept[k], chunk.kept_out[k], chunk.count);
    copy_unless_in_place(chunk.shadow, chunk.shadow_out, chunk.count);
    return;
  }
  const typename Rule::Step step = rule.begin(
      {.rate = *update.learning_rate, .scale = scale, .time = *update.step, .decay = chunk.decay});
  const bool to_bf16 = update.shadow_type == DType::bf16;

  const int packs = chunk.count / kUpdatePack;
  for (int first = threadIdx.x; first < packs; first += kUpdateUnroll * kUpdateThreads) {
    Pack<float> gradient[kUpdateUnroll], kept[kUpdateUnroll][Rule::kKept];
#pragma unroll
    for (int u = 0; u < kUpdateUnroll; ++u) {
      const int pack = first + u * kUpdateThreads;
      if (pack >= packs) continue;
      gradient[u] = load_global(chunk.gradient + pack * kUpdatePack);
#pragma unroll
      for (int k = 0; k < Rule::kKept; ++k)
        kept[u][k] = load_global(chunk.kept[k] + pack * kUpdatePack);
    }
#pragma unroll
    for (int u = 0; u < kUpdateUnroll; ++u) {
      const int pack = first + u * kUpdateThreads;
      if (pack >= packs) continue;
#pragma unroll
      for (int i = 0; i < kUpdatePack; ++i) {
        float x[Rule::kKept];
#pragma unroll
        for (int k = 0; k < Rule::kKept; ++k) x[k] = kept[u][k].value[i];
        rule.apply(step, gradient[u].value[i], x);
#pragma unroll
        for (int k = 0; k < Rule::kKept; ++k) kept[u][k].value[i] = x[k];
      }
#pragma unroll
      for (int k = 0; k < Rule::kKept; ++k)
        store_global(chunk.kept_out[k] + pack * kUpdatePack, kept[u][k]);
      if (chunk.shadow_out == nullptr) continue;
      uint16_t* const shadow = chunk.shadow_out + pack * kUpdatePack;
      if (to_bf16)
        store_rounded<__nv_bfloat16>(shadow, kept[u][0]);
      else
        store_rounded<__half>(shadow, kept[u][0]);
    }
  }

  const int at = packs * kUpdatePack + threadIdx.x;  // the last elements, fewer than a pack
  if (at >= chunk.count) return;
  float x[Rule::kKept];
#pragma unroll
  for (int k = 0; k < Rule::kKept; ++k) x[k] = chunk.kept[k][at];
  rule.apply(step, chunk.gradient[at], x);
#pragma unroll
  for (int k = 0; k < Rule::kKept; ++k) chunk.kept_out[k][at] = x[k];
  if (chunk.shadow_out == nullptr) return;
  chunk.shadow_out[at] = to_bf16 ? __bfloat16_as_ushort(from_float<__nv_bfloat16>(x[0]))
                                 : __half_as_ushort(from_float<__half>(x[0]));
}

template <typename Rule>
void launch_update(const OptimizerUpdate& update, const Rule& rule, cudaStream_t stream) {
  const auto blocks = static_cast<unsigned>(update.chunk_count);
  update_chunk<<<blocks, kUpdateThreads, 0, stream>>>(update, rule);
}

}  // namespace millrace::cuda
