// The constants of one use of attention, read from its node; shared by the card and the kernels.
#pragma once
#include "graph/op.h"

namespace millrace {

struct AttentionSite {
  enum class Mask { none, lengths, segments };

  int64_t B = 0, T = 0, H = 0, G = 0, K = 0;  // G: key/value heads, each shared by H/G query heads
  bool causal = false;
  double scale = 0;
  Mask mask = Mask::none;
  double dropout = 0;
  int64_t stream = 0;
  size_t mask_input = 0, key_input = 0;  // meaningful when there is a mask, when dropout > 0

  int64_t row() const { return (H + 2 * G) * K; }  // floats of one token in qkv: q, k, v heads
  int64_t kv_head(int64_t h) const { return h / (H / G); }
  // Score positions that are computed, per head: below the diagonal only when causal.
  double pairs() const {
    const double t = static_cast<double>(T);
    return static_cast<double>(B) * (causal ? t * (t + 1) / 2 : t * t);
  }
};

// `tensors` inputs come before the optional mask and key: 1 for attention, 4 for attention_grad.
AttentionSite attention_site(const OpSite& site, size_t tensors);

}  // namespace millrace
