// Attention over a key/value cache on the GPU. The query heads that share a key/value head are rows
// of one problem. A block takes a few rows and every n-th tile of the keys they see, with a running
// maximum and sum (arXiv 2205.14135); what the n blocks found is put together by a second launch.
// New keys and values are taken from qkv, never from the cache, so that they can be written there
// meanwhile.
#include <algorithm>

#include "cuda/device.cuh"
#include "cuda/with_type.cuh"
#include "ops/attention_cached_cuda.h"

namespace millrace::cuda {
namespace {

constexpr int kThreads = 128, kWarps = kThreads / kWarp;
constexpr int kMaxKeys = 64, kMinKeys = 16;  // of a tile
constexpr int kMaxRows = 16;                 // of a block
constexpr int kRowsTogether = 4;             // that a thread computes when there are so many
constexpr int kMaxSplits = kThreads;         // the second launch has a thread to each
constexpr int64_t kBlocks = 528;             // worth splitting to reach: four to a multiprocessor
constexpr int kSharedBytes = 96 << 10;       // what every device from sm_80 on can give a block
constexpr int kLoads = 4;                    // in flight

struct Sizes {
  int T, H, G, K, C, beams;
  int group, rows;                         // query heads of a key/value head, rows of its problem
  int block_rows, keys, quads, key_pitch;  // quads: of a head, in float4; the pitch as well
  int splits;
  float scale;

  __device__ int clamped(int position) const { return min(max(position, 0), C); }
  // Keys that row r of a problem sees.
  __device__ int seen(int position, int r) const { return min(position + r / group + 1, C); }
  __device__ Int width() const { return (Int)(H + 2 * G) * K; }  // of a token in qkv
  __device__ Int query_at(int b, int g, int r) const {
    return ((Int)b * T + r / group) * width() + (Int)(g * group + r % group) * K;
  }
  __device__ Int out_at(int b, int g, int r) const {
    return (((Int)b * T + r / group) * H + g * group + r % group) * K;
  }
};

// Rows [begin, begin + count) of a key/value head as float, zeros behind them: those of the cache
// and, from `position` on, those of the new tokens, which are also put into the new cache.
template <typename T>
struct Tile {
  const T *cache, *fresh;  // row 0 of the head; the first new token's
  const int* history;      // by place, the row of the cache that holds it; null: this one
  const T* shared_cache;   // then: place 0 of the head of the first row
  int sequences;           // rows that there are
  Int sequence_step;
  T* new_cache;  // null: others write it
  Int cache_step, fresh_step;
  int position, begin, count;

  __device__ const T* row(int j) const {
    const int at = begin + j;
    if (at >= position) return fresh + (at - position) * fresh_step;
    if (!history) return cache + at * cache_step;
    const int holder = min(max(history[at], 0), sequences - 1);
    return shared_cache + holder * sequence_step + at * cache_step;
  }
  __device__ bool writes(int j) const { return new_cache && j < count && begin + j >= position; }
  __device__ T* new_row(int j) const { return new_cache + (begin + j) * cache_step; }
};

template <typename T>
__device__ void load_tile(const Tile<T>& tile, const Sizes& s, float4* to, int pitch) {
  constexpr int kCount = Pack<T>::kCount;
  if (s.K % kCount == 0) {
    const unsigned packs = s.K / kCount, units = s.keys * packs;
    for (unsigned first = threadIdx.x; first < units; first += kLoads * kThreads) {
      uint4 bits[kLoads];
#pragma unroll
      for (int k = 0; k < kLoads; ++k) {
        const unsigned unit = first + k * kThreads;
        const int j = unit / packs, d = unit % packs * kCount;
        bits[k] = uint4{};
        if (j < tile.count) bits[k] = *reinterpret_cast<const uint4*>(tile.row(j) + d);
      }
#pragma unroll
      for (int k = 0; k < kLoads; ++k) {
        const unsigned unit = first + k * kThreads;
        if (unit >= units) break;
        const int j = unit / packs, d = unit % packs * kCount;
        const T* raw = reinterpret_cast<const T*>(&bits[k]);
#pragma unroll
        for (int i = 0; i < kCount; i += 4)
          to[j * pitch + (d + i) / 4] = make_float4(to_float(raw[i]), to_float(raw[i + 1]),
                                                    to_float(raw[i + 2]), to_float(raw[i + 3]));
        if (tile.writes(j)) *reinterpret_cast<uint4*>(tile.new_row(j) + d) = bits[k];
      }
    }
    return;
  }
  float* numbers = reinterpret_cast<float*>(to);
  const unsigned padded = 4 * s.quads;
  for (unsigned unit = threadIdx.x; unit < s.keys * padded; unit += kThreads) {
    const int j = unit / padded, d = unit % padded;
    const bool real = j < tile.count && d < s.K;
    const T number = real ? tile.row(j)[d] : from_float<T>(0.0f);
    numbers[j * pitch * 4 + d] = to_float(number);
    if (real && tile.writes(j)) tile.new_row(j)[d] = number;
  }
}

__device__ __forceinline__ float dot(float4 a, float4 b, float sum) {
  return fmaf(a.w, b.w, fmaf(a.z, b.z, fmaf(a.y, b.y, fmaf(a.x, b.x, sum))));
}
__device__ __forceinline__ float4 scaled(float4 a, float factor) {
  return make_float4(a.x * factor, a.y * factor, a.z * factor, a.w * factor);
}
__device__ __forceinline__ float4 add_scaled(float4 sum, float4 a, float factor) {
  return make_float4(fmaf(a.x, factor, sum.x), fmaf(a.y, factor, sum.y), fmaf(a.z, factor, sum.z),
                     fmaf(a.w, factor, sum.w));
}

// Grid: splits, blocks of rows, key/value heads of all sequences. With one split the result goes to
// `out`, otherwise sums that are not divided yet to `sums` [problem row, split, K], and for each
// the maximum and the divisor to `scales`.
template <typename T, int kTogether>
__global__ void __launch_bounds__(kThreads)
    attend_kernel(const Sizes s, const T* qkv, const T* keys, const T* values,
                  const int* __restrict__ positions, const int* __restrict__ history, T* new_keys,
                  T* new_values, T* out, float* sums, float2* scales) {
  extern __shared__ float4 shared[];
  float4* const key = shared;                          // [keys][key_pitch]
  float4* const value = key + s.keys * s.key_pitch;    // [keys][quads]
  float4* const query = value + s.keys * s.quads;      // [block_rows][quads]
  float4* const sum = query + s.block_rows * s.quads;  // [block_rows][quads]
  float* const weight = reinterpret_cast<float*>(sum + s.block_rows * s.quads);  // [..][keys]
  float* const top = weight + s.block_rows * s.keys;                             // [block_rows]
  float* const divisor = top + s.block_rows;                                     // [block_rows]
  float* const shrink = divisor + s.block_rows;                                  // [block_rows]

  const int b = blockIdx.z / s.G, g = blockIdx.z % s.G;
  const int row0 = blockIdx.y * s.block_rows, count = min(s.block_rows, s.rows - row0);
  const int position = s.clamped(positions[b]);
  const int end = s.seen(position, row0 + count - 1), tiles = (end + s.keys - 1) / s.keys;
  if ((int)blockIdx.x >= tiles) return;

  const int padded = 4 * s.quads;
  for (int i = threadIdx.x; i < s.block_rows * padded; i += kThreads) {
    const int r = i / padded, d = i % padded;
    const bool real = r < count && d < s.K;
    reinterpret_cast<float*>(query)[i] =
        real ? s.scale * to_float(qkv[s.query_at(b, g, row0 + r) + d]) : 0.0f;
    reinterpret_cast<float*>(sum)[i] = 0;
  }
  if (threadIdx.x < s.block_rows) {
    top[threadIdx.x] = -INFINITY;
    divisor[threadIdx.x] = 0;
  }

  // The last rows see every new token: their blocks write the cache.
  const bool writes = blockIdx.y + 1 == gridDim.y;
  const Int cache = ((Int)b * s.beams * s.C * s.G + g) * s.K;
  const Int fresh = (Int)b * s.T * s.width() + (Int)(s.H + g) * s.K;
  Tile<T> key_tile = {keys + cache,
                      qkv + fresh,
                      history ? history + (Int)b * s.C : nullptr,
                      keys + (Int)g * s.K,
                      (int)gridDim.z / s.G * s.beams,
                      (Int)s.C * s.G * s.K,
                      writes ? new_keys + cache : nullptr,
                      (Int)s.G * s.K,
                      s.width(),
                      position,
                      0,
                      0};
  Tile<T> value_tile = key_tile;
  value_tile.cache = values + cache;
  value_tile.shared_cache = values + (Int)g * s.K;
  value_tile.fresh += (Int)s.G * s.K;
  value_tile.new_cache = writes ? new_values + cache : nullptr;

  for (int tile = blockIdx.x; tile < tiles; tile += s.splits) {
    const int begin = tile * s.keys, keys_here = min(s.keys, end - begin);
    key_tile.begin = value_tile.begin = begin;
    key_tile.count = value_tile.count = keys_here;
    __syncthreads();
    load_tile(key_tile, s, key, s.key_pitch);
    load_tile(value_tile, s, value, s.quads);
    __syncthreads();
    for (int i = threadIdx.x; i < s.block_rows / kTogether * s.keys; i += kThreads) {
      const int j = i % s.keys, r0 = i / s.keys * kTogether;
      float score[kTogether] = {};
      for (int q = 0; q < s.quads; ++q) {
        const float4 k = key[j * s.key_pitch + q];
#pragma unroll
        for (int r = 0; r < kTogether; ++r)
          score[r] = dot(query[(r0 + r) * s.quads + q], k, score[r]);
      }
#pragma unroll
      for (int r = 0; r < kTogether; ++r) {
        const bool seen = r0 + r < count && begin + j < s.seen(position, row0 + r0 + r);
        weight[(r0 + r) * s.keys + j] = seen ? score[r] : -INFINITY;
      }
    }
    __syncthreads();
    const int lane = threadIdx.x % kWarp;
    for (int r = threadIdx.x / kWarp; r < s.block_rows; r += kWarps) {
      float* row = weight + r * s.keys;
      float highest = -INFINITY, total = 0;
      for (int j = lane; j < s.keys; j += kWarp) highest = fmaxf(highest, row[j]);
      const float before = top[r], now = fmaxf(before, warp_max(highest));
      // Nothing seen so far: all weights are 0.
      for (int j = lane; j < s.keys; j += kWarp) {
        const float e = now == -INFINITY ? 0.0f : expf(row[j] - now);
        row[j] = e;
        total += e;
      }
      total = warp_sum(total);
      if (lane == 0) {
        const float factor = before == -INFINITY ? 0.0f : expf(before - now);
        shrink[r] = factor;
        divisor[r] = divisor[r] * factor + total;
        top[r] = now;
      }
    }
    __syncthreads();
    for (int i = threadIdx.x; i < s.block_rows / kTogether * s.quads; i += kThreads) {
      const int q = i % s.quads, r0 = i / s.quads * kTogether;
      float4 part[kTogether];
#pragma unroll
      for (int r = 0; r < kTogether; ++r)
        part[r] = scaled(sum[(r0 + r) * s.quads + q], shrink[r0 + r]);
#pragma unroll 4
      for (int j = 0; j < keys_here; ++j) {
        const float4 v = value[j * s.quads + q];
#pragma unroll
        for (int r = 0; r < kTogether; ++r)
          part[r] = add_scaled(part[r], v, weight[(r0 + r) * s.keys + j]);
      }
#pragma unroll
      for (int r = 0; r < kTogether; ++r) sum[(r0 + r) * s.quads + q] = part[r];
    }
  }
  __syncthreads();
  for (int i = threadIdx.x; i < count * s.K; i += kThreads) {
    const int r = i / s.K, d = i % s.K;
    const float number = reinterpret_cast<const float*>(sum)[r * padded + d];
    const Int at = ((Int)blockIdx.z * s.rows + row0 + r) * s.splits + blockIdx.x;
    if (s.splits == 1)
      out[s.out_at(b, g, row0 + r) + d] = from_float<T>(number / divisor[r]);
    else
      sums[at * s.K + d] = number;
    if (s.splits > 1 && d == 0) scales[at] = make_float2(top[r], divisor[r]);
  }
}

// A block to each row of each problem.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    join_kernel(const Sizes s, const int* __restrict__ positions, const float* __restrict__ sums,
                const float2* __restrict__ scales, T* __restrict__ out) {
  __shared__ float shared[kWarp], weight[kMaxSplits];
  const int problem = blockIdx.x / s.rows, r = blockIdx.x % s.rows;
  const int seen = s.seen(s.clamped(positions[problem / s.G]), r);
  const int splits = min(s.splits, (seen + s.keys - 1) / s.keys);  // that saw a key of this row
  const Int at = (Int)blockIdx.x * s.splits;
  const bool mine = (int)threadIdx.x < splits;
  const float2 scale = mine ? scales[at + threadIdx.x] : make_float2(-INFINITY, 0.0f);
  const float top = block_max(scale.x, shared);
  const float factor = mine ? expf(scale.x - top) : 0.0f;
  const float divisor = block_sum(factor * scale.y, shared);
  if (mine) weight[threadIdx.x] = factor / divisor;
  __syncthreads();
  for (int d = threadIdx.x; d < s.K; d += kThreads) {
    float sum = 0;
#pragma unroll 8
    for (int split = 0; split < splits; ++split)
      sum = fmaf(weight[split], sums[(at + split) * s.K + d], sum);
    out[s.out_at(problem / s.G, problem % s.G, r) + d] = from_float<T>(sum);
  }
}

struct Plan {
  Sizes sizes;
  int64_t problems, row_blocks, shared_bytes;
};

Plan make_plan(const CachedAttention& a) {
  Plan plan;
  Sizes& s = plan.sizes;
  s.T = static_cast<int>(a.T);
  s.H = static_cast<int>(a.H);
  s.G = static_cast<int>(a.G);
  s.K = static_cast<int>(a.K);
  s.C = static_cast<int>(a.C);
  s.beams = static_cast<int>(a.beams);
  s.scale = a.scale;
  s.group = s.H / s.G;
  s.rows = s.T * s.group;
  s.quads = (s.K + 3) / 4;
  s.key_pitch = s.quads | 1;  // odd: neighbouring keys stand in different banks
  s.keys = kMaxKeys;
  s.block_rows = std::max(1, s.rows);
  if (s.rows >= kRowsTogether)
    for (s.block_rows = kRowsTogether; s.block_rows < std::min(s.rows, kMaxRows);)
      s.block_rows *= 2;
  auto shared_bytes = [&s] {
    const int quads = s.keys * (s.key_pitch + s.quads) + 2 * s.block_rows * s.quads;
    return 16 * quads + 4 * s.block_rows * (s.keys + 3);
  };
  while (shared_bytes() > kSharedBytes) (s.keys > kMinKeys ? s.keys : s.block_rows) /= 2;
  plan.shared_bytes = shared_bytes();
  plan.problems = a.B * a.G;
  plan.row_blocks = (s.rows + s.block_rows - 1) / s.block_rows;
  const int64_t blocks = std::max<int64_t>(1, plan.problems * plan.row_blocks);
  const int64_t tiles = (a.C + s.keys - 1) / s.keys;
  s.splits = static_cast<int>(
      std::clamp<int64_t>(kBlocks / blocks, 1, std::min<int64_t>(tiles, kMaxSplits)));
  return plan;
}

// The scales come first: they are aligned to 8 bytes, the sums to 4.
int64_t scales_bytes(const Plan& plan) {
  return plan.problems * plan.sizes.rows * plan.sizes.splits * 8;
}

template <typename T>
void launch(const CachedAttention& a, const Plan& plan, void* workspace, cudaStream_t stream) {
  const Sizes& s = plan.sizes;
  auto* scales = static_cast<float2*>(workspace);
  auto* sums = reinterpret_cast<float*>(static_cast<char*>(workspace) + scales_bytes(plan));
  auto* out = static_cast<T*>(a.out);
  const dim3 blocks(static_cast<unsigned>(s.splits), static_cast<unsigned>(plan.row_blocks),
                    static_cast<unsigned>(plan.problems));
  const auto kernel =
      s.rows >= kRowsTogether ? attend_kernel<T, kRowsTogether> : attend_kernel<T, 1>;
  kernel<<<blocks, kThreads, plan.shared_bytes, stream>>>(
      s, static_cast<const T*>(a.qkv), static_cast<const T*>(a.keys),
      static_cast<const T*>(a.values), a.positions, a.history, static_cast<T*>(a.new_keys),
      static_cast<T*>(a.new_values), out, sums, scales);
  if (s.splits > 1)
    join_kernel<T>
        <<<plan.problems * s.rows, kThreads, 0, stream>>>(s, a.positions, sums, scales, out);
}

template <typename T>
cudaError_t allow_shared() {
  const auto kind = cudaFuncAttributeMaxDynamicSharedMemorySize;
  const cudaError_t status = cudaFuncSetAttribute(attend_kernel<T, 1>, kind, kSharedBytes);
  if (status != cudaSuccess) return status;
  return cudaFuncSetAttribute(attend_kernel<T, kRowsTogether>, kind, kSharedBytes);
}

}  // namespace

int64_t cached_attention_workspace(const CachedAttention& a) {
  const Plan plan = make_plan(a);
  if (plan.sizes.splits == 1) return 0;
  return scales_bytes(plan) + plan.problems * plan.sizes.rows * plan.sizes.splits * a.K * 4;
}

cudaError_t prepare_cached_attention(DType dtype) {
  return with_type(dtype, []<typename T>(T*) { return allow_shared<T>(); });
}

void launch_cached_attention(const CachedAttention& a, void* workspace, cudaStream_t stream) {
  // Outside of tests and benchmarks the caches are updated where they stand.
  const auto bytes = static_cast<size_t>(a.B * a.beams * a.C * a.G * a.K * dtype_bytes(a.dtype));
  if (a.new_keys != a.keys && bytes > 0)
    cudaMemcpyAsync(a.new_keys, a.keys, bytes, cudaMemcpyDeviceToDevice, stream);
  if (a.new_values != a.values && bytes > 0)
    cudaMemcpyAsync(a.new_values, a.values, bytes, cudaMemcpyDeviceToDevice, stream);
  if (a.B * a.T == 0) return;
  const Plan plan = make_plan(a);
  with_type(a.dtype, [&]<typename T>(T*) { launch<T>(a, plan, workspace, stream); });
}

}  // namespace millrace::cuda
