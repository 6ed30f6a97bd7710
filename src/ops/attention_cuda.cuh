// Device code that the attention kernels share: where heads lie, which scores count, what dropout
// leaves, and the way of a block of threads through the scores.
//
// Scores are cut into squares of kTile queries by kTile keys. A block of threads owns kTile queries
// of one query head, or (for the gradients of keys and values) kTile keys of one key head, and
// walks the squares in its row or column.
#pragma once
#include "cuda/device.cuh"
#include "ops/attention_cuda.h"

namespace millrace::cuda::attention {

// --- where things lie, in elements

__device__ __forceinline__ Int q_at(const AttentionProblem& p, int b, int t, int h) {
  return (Int{b} * p.T + t) * p.q_row + Int{h} * p.K;
}
// `head` counts through G key heads, then G value heads.
__device__ __forceinline__ Int kv_at(const AttentionProblem& p, int b, int s, int head) {
  return (Int{b} * p.S + s) * p.kv_row + p.kv_first + Int{head} * p.K;
}
__device__ __forceinline__ Int out_at(const AttentionProblem& p, int b, int t, int h) {
  return ((Int{b} * p.T + t) * p.H + h) * p.K;
}
__device__ __forceinline__ Int row_at(const AttentionProblem& p, int b, int h, int t) {
  return (Int{b} * p.H + h) * p.T + t;
}
// The number of a score: what its dropout is drawn by.
__device__ __forceinline__ Int pair_at(const AttentionProblem& p, int b, int h, int t, int s) {
  return row_at(p, b, h, t) * p.S + s;
}

__host__ __device__ constexpr int pieces(int whole, int part) { return (whole + part - 1) / part; }

// --- masks

struct Range {
  int low, high;
  __device__ bool meets(Range other) const { return low <= other.high && other.low <= high; }
  // Both hold one and the same number only.
  __device__ bool is_all(Range other) const {
    return low == high && other.low == low && other.high == low;
  }
};

struct Mask {
  int T, end;  // queries; keys from `end` on do not count
  bool causal;
  const int* segments;  // of this row of the batch, or null

  __device__ Mask(const AttentionProblem& p, int b)
      : T(p.T),
        end(p.lengths ? min(max(p.lengths[b], 0), p.S) : p.S),
        causal(p.causal),
        segments(p.segments ? p.segments + Int{b} * p.T : nullptr) {}

  __device__ bool sees(int i, int j, int segment_i, int segment_j) const {
    return i < T && j < end && (!causal || j <= i) &&
           (segments == nullptr || segment_i == segment_j);
  }
  __device__ int segment(int t) const { return segments ? segments[min(t, T - 1)] : 0; }
  // The least and the largest segment of `count` tokens from `first` on; for a whole warp.
  __device__ Range range(int first, int count) const {
    if (segments == nullptr) return {0, 0};
    int low = 0x7fffffff, high = -0x7fffffff - 1;
    for (int t = first + threadIdx.x % kWarp; t < min(first + count, T); t += kWarp) {
      low = min(low, segments[t]);
      high = max(high, segments[t]);
    }
    return {__reduce_min_sync(kAllLanes, low), __reduce_max_sync(kAllLanes, high)};
  }
};

// --- the squares that a block of threads goes through

struct Step {
  int at;
  bool whole;  // every score of the square counts
};

// The heads are taken 32 at a time, so that their keys and values stay in the L2 cache; among those
// the long rows and columns of a causal mask come first.
template <int kTile, bool kKeys>
struct Walk {
  static constexpr int kHeadsAtOnce = 32;

  int query_tiles, group, head;
  int own;  // the first query or key of the block
  int b;
  Mask mask;
  Range range;
  int limit;  // of the steps

  __device__ Walk(const AttentionProblem& p, unsigned index)
      : query_tiles(pieces(p.T, kTile)),
        group(p.H / p.G),
        b(place(p, index)),
        mask(p, b),
        range(mask.range(own, kTile)) {
    if (kKeys)
      limit = own < mask.end ? group * query_tiles : 0;
    else
      limit = pieces(mask.causal ? min(mask.end, own + kTile) : mask.end, kTile);
  }

  __device__ int key_head() const { return kKeys ? head : head / group; }
  __device__ int query_head(int step) const {
    return kKeys ? head * group + step / query_tiles : head;
  }
  __device__ int other(int step) const { return (kKeys ? step % query_tiles : step) * kTile; }
  __device__ int query(int step) const { return kKeys ? other(step) : own; }
  __device__ int key(int step) const { return kKeys ? own : other(step); }

  // The first step from `step` on with a score that may count, or `limit`. For whole warps: all
  // come to the same result.
  __device__ Step find(int step) const {
    for (; step < limit; ++step) {
      const int i = query(step), j = key(step);
      if (mask.causal && j >= i + kTile) continue;
      const Range others = mask.range(other(step), kTile);
      if (!others.meets(range)) continue;
      return {step, i + kTile <= mask.T && j + kTile <= mask.end &&
                        (!mask.causal || j + kTile <= i + 1) && others.is_all(range)};
    }
    return {limit, false};
  }

 private:
  // Sets head and own, returns the row of the batch.
  __device__ int place(const AttentionProblem& p, unsigned index) {
    const int heads = kKeys ? p.G : p.H, tiles = kKeys ? pieces(p.S, kTile) : query_tiles;
    const unsigned round = index / (kHeadsAtOnce * tiles);
    const unsigned rest = index - round * kHeadsAtOnce * tiles;
    const int first = static_cast<int>(round) * kHeadsAtOnce;
    const unsigned count = min(kHeadsAtOnce, p.B * heads - first);
    const int all = first + static_cast<int>(rest % count), tile = static_cast<int>(rest / count);
    head = all % heads;
    own = (kKeys ? tile : tiles - 1 - tile) * kTile;
    return all / heads;
  }
};

// --- dropout: one bit a score, packed by query: byte [query][key / 8]

struct Dropout {
  int key[4];
  Int stream;
  unsigned threshold;

  // Reads the random key, if there is one.
  __device__ explicit Dropout(const AttentionProblem& p)
      : key{0, 0, 0, 0}, stream(p.stream), threshold(p.threshold) {
    if (p.key == nullptr) return;
    for (int i = 0; i < 4; ++i) key[i] = p.key[i];
  }

  __device__ unsigned aligned_byte(Int block) const {
    const PhiloxBlock draws = keep_block(key, stream, block);
    unsigned bits = 0;
#pragma unroll
    for (int i = 0; i < 8; ++i)
      bits |= static_cast<unsigned>(keep_in_block(draws, i, threshold)) << i;
    return bits;
  }
  // Of eight elements; they lie in two blocks of draws when S is no multiple of 8.
  __device__ unsigned byte(Int element) const {
    const int shift = static_cast<int>(element & 7);
    unsigned bits = aligned_byte(element >> 3);
    if (shift != 0) bits = (bits | aligned_byte((element >> 3) + 1) << 8) >> shift;
    return bits & 0xffu;
  }
  // Of kKeys keys for each of kQueries queries. `element` is that of the first score; S: from one
  // query to the next.
  template <int kQueries, int kKeys, int kThreads>
  __device__ void fill(unsigned char* bits, Int element, int S, int thread) const {
    constexpr int kBytes = kKeys / 8, kAll = kQueries * kBytes;
#pragma unroll 2
    for (int part = 0; part < pieces(kAll, kThreads); ++part) {
      const int x = part * kThreads + thread;
      if (kAll % kThreads == 0 || x < kAll)
        bits[x] = static_cast<unsigned char>(byte(element + Int{x / kBytes} * S + x % kBytes * 8));
    }
  }
};

}  // namespace millrace::cuda::attention
