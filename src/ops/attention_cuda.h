// Launches attention and its gradient on a GPU. Two families: "tensor" multiplies halves on tensor
// cores; "tiled" multiplies floats, for f32 and for the head widths that tensor cores do not take.
#pragma once
#include <cuda_runtime_api.h>

#include <cstdint>

#include "core/dtype.h"

namespace millrace::cuda {

struct AttentionProblem {
  DType dtype = DType::f32;  // of q, kv, out and their gradients
  const void *q = nullptr, *kv = nullptr;
  // What there is none of is null: keys that count [B], segments [B,T], the random key of dropout.
  const int32_t *lengths = nullptr, *segments = nullptr, *key = nullptr;
  int B = 0, T = 0, S = 0, H = 0, G = 0, K = 0;
  // Elements of a token where queries lie, where keys and values lie, and before its first key
  // head.
  int64_t q_row = 0, kv_row = 0, kv_first = 0;
  bool causal = false;
  float scale = 0;
  int64_t stream = 0;
  uint32_t threshold = 0;  // 16-bit draws below it are dropped
  float keep_scale = 1;
};

struct AttentionResult {
  void* out;   // [B,T,HK]
  float* lse;  // [B,H,T]
};

struct AttentionGradient {
  const void *out, *dout;
  const float* lse;
  float* delta;    // workspace [B,H,T]: sums of out * dout
  void *dq, *dkv;  // laid out as q and kv
};

enum class AttentionPass { forward, backward };

constexpr int kTiledMaxWidth = 256, kTensorMaxWidth = 128;

// Shared memory that a block takes; `allow` lets the kernels have it, once per device.
int attention_tiled_shared(const AttentionProblem& p, AttentionPass pass);
int attention_tensor_shared(const AttentionProblem& p, AttentionPass pass);
cudaError_t attention_tiled_allow(const AttentionProblem& p, AttentionPass pass);
cudaError_t attention_tensor_allow(const AttentionProblem& p, AttentionPass pass);

void attention_tiled(const AttentionProblem& p, const AttentionResult& result, cudaStream_t stream);
void attention_tensor(const AttentionProblem& p, const AttentionResult& result,
                      cudaStream_t stream);
void attention_tiled_gradient(const AttentionProblem& p, const AttentionGradient& gradient,
                              cudaStream_t stream);
void attention_tensor_gradient(const AttentionProblem& p, const AttentionGradient& gradient,
                               cudaStream_t stream);
// Fills gradient.delta; the two above begin with it.
void attention_delta(const AttentionProblem& p, const AttentionGradient& gradient,
                     cudaStream_t stream);

}  // namespace millrace::cuda
