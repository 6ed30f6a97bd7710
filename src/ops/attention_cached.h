// The constants of one use of attention_cached, read from its node; shared by the card and the
// kernel.
#pragma once
#include <algorithm>

#include "graph/op.h"

namespace millrace {

struct CachedAttentionSite {
  int64_t B = 0, T = 0, H = 0, G = 0, K = 0;  // G: key/value heads, each shared by H/G query heads
  int64_t C = 0;                              // places of a row of the cache
  int64_t rows = 0, beams = 1;                // rows of the cache, and so many for each sequence
  double scale = 0;
  bool history = false;  // there is an input for it

  int64_t row() const { return (H + 2 * G) * K; }     // floats of one token in qkv: q, k, v heads
  int64_t own(int64_t b) const { return b * beams; }  // the row of the cache that sequence b fills
  int64_t group() const { return H / G; }
  // A position from outside as one that is safe: tokens already in the cache.
  int64_t clamped(int64_t position) const { return std::clamp<int64_t>(position, 0, C); }
  // New tokens that have a place in the cache; those after them are padding and leave nothing.
  int64_t kept(int64_t position) const { return std::min(T, C - position); }
  // Places of the cache that token t of the new ones sees.
  int64_t seen(int64_t position, int64_t t) const { return std::min(position + t + 1, C); }
  // Which row holds token j of sequence b, of those that were there before.
  int64_t holder(const int32_t* past, int64_t b, int64_t j) const {
    return history ? std::clamp<int64_t>(past[b * C + j], 0, rows - 1) : own(b);
  }
};

CachedAttentionSite cached_attention_site(const OpSite& site);

}  // namespace millrace
