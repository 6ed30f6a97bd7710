// The constants of one use of attention, read from its node; shared by the card and the kernels.
#pragma once
#include "graph/op.h"

namespace millrace {

struct AttentionSite {
  enum class Mask { none, lengths, segments };

  // S: how many keys there are, T unless `cross`; G: key/value heads, each shared by H/G query
  // heads.
  int64_t B = 0, T = 0, S = 0, H = 0, G = 0, K = 0;
  bool cross = false, causal = false;
  double scale = 0;
  Mask mask = Mask::none;
  // Of rows with several segments: how long that of a place is, on the mean. T otherwise.
  double sequence_length = 0;
  double dropout = 0;
  int64_t stream = 0;
  // Queries are read from input 0, keys and values from `kv_input`, which is 0 too unless `cross`;
  // likewise the gradients are output 0 and `kv_output`.
  size_t kv_input = 0, kv_output = 0;
  size_t mask_input = 0, key_input = 0;  // meaningful when there is a mask, when dropout > 0

  // Numbers of a token where queries lie, where keys and values lie, and before its first key head.
  int64_t q_row() const { return (cross ? H : H + 2 * G) * K; }
  int64_t kv_row() const { return (cross ? 2 * G : H + 2 * G) * K; }
  int64_t kv_first() const { return cross ? 0 : H * K; }
  int64_t q_at(int64_t b, int64_t h, int64_t t) const { return (b * T + t) * q_row() + h * K; }
  int64_t k_at(int64_t b, int64_t g, int64_t s) const {
    return (b * S + s) * kv_row() + kv_first() + g * K;
  }
  int64_t v_at(int64_t b, int64_t g, int64_t s) const { return k_at(b, G + g, s); }
  int64_t out_at(int64_t b, int64_t h, int64_t t) const { return ((b * T + t) * H + h) * K; }
  int64_t row_at(int64_t b, int64_t h, int64_t t) const { return (b * H + h) * T + t; }
  // The number of a score: what its dropout is drawn by.
  int64_t pair_at(int64_t b, int64_t h, int64_t t, int64_t s) const {
    return row_at(b, h, t) * S + s;
  }
  int64_t kv_head(int64_t h) const { return h / (H / G); }
  // Score positions that are computed, per head: of one segment, below the diagonal only when
  // causal.
  double pairs() const {
    const double seen = cross ? static_cast<double>(S) : sequence_length;
    return static_cast<double>(B * T) * (causal ? (seen + 1) / 2 : seen);
  }
};

// `tensors` inputs come before the optional kv, mask and key: 1 for attention, 4 for
// attention_grad.
AttentionSite attention_site(const OpSite& site, size_t tensors);

}  // namespace millrace
