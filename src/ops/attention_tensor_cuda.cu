// Attention of halves on tensor cores, after FlashAttention-2 (Dao, arXiv 2307.08691). A block of
// four warps owns 64 rows, 16 to a warp, and streams the rows of the other side through two buffers
// in shared memory. Scores stay in registers: what one product leaves in a warp's registers is laid
// out as the next one wants its left operand. Products are m16n8k16, which every GPU since sm_80
// has.
#include <cuda_runtime.h>

#include <type_traits>

#include "cuda/async_copy.cuh"
#include "cuda/device.cuh"
#include "ops/attention_cuda.cuh"
#include "ops/attention_cuda.h"

namespace millrace::cuda {
namespace {

using namespace attention;

constexpr int kTile = 64, kWarps = 4, kThreads = kWarps * kWarp, kWarpRows = kTile / kWarps;
constexpr float kLog2E = 1.4426950408889634f, kLn2 = 0.6931471805599453f;
static_assert(kWarpRows == 16 && kThreads == 2 * kTile);

// --- the instructions

struct Fragment {
  unsigned word[4];
};

// Four 8 x 8 matrices of halves; thread x gives the address of row x % 8 of matrix x / 8.
__device__ __forceinline__ Fragment load_fragment(const void* row) {
  Fragment f;
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(f.word[0]), "=r"(f.word[1]), "=r"(f.word[2]), "=r"(f.word[3])
               : "r"(shared_address(row)));
  return f;
}
__device__ __forceinline__ Fragment load_transposed(const void* row) {
  Fragment f;
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(f.word[0]), "=r"(f.word[1]), "=r"(f.word[2]), "=r"(f.word[3])
               : "r"(shared_address(row)));
  return f;
}

// c[16 x 8] += a[16 x 16] b[16 x 8]; thread x has rows x / 4 (c[0], c[1]) and x / 4 + 8 (c[2],
// c[3]) of columns x % 4 * 2 and the next.
template <typename T>
__device__ __forceinline__ void multiply_add(float (&c)[4], const Fragment& a, unsigned b0,
                                             unsigned b1) {
  if constexpr (std::is_same_v<T, __half>)
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a.word[0]), "r"(a.word[1]), "r"(a.word[2]), "r"(a.word[3]), "r"(b0), "r"(b1));
  else
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a.word[0]), "r"(a.word[1]), "r"(a.word[2]), "r"(a.word[3]), "r"(b0), "r"(b1));
}

__device__ __forceinline__ float exp2_fast(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

template <typename T>
__device__ __forceinline__ unsigned pair_of(float low, float high) {
  if constexpr (std::is_same_v<T, __half>) {
    const __half2 pair = __floats2half2_rn(low, high);
    return *reinterpret_cast<const unsigned*>(&pair);
  } else {
    const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
    return *reinterpret_cast<const unsigned*>(&pair);
  }
}

__device__ __forceinline__ int lane() { return static_cast<int>(threadIdx.x) % kWarp; }
__device__ __forceinline__ int warp() { return static_cast<int>(threadIdx.x) / kWarp; }
// Where this thread's results of a product lie: rows row() and row() + 8 of the warp's 16, columns
// column() and column() + 1 of 8.
__device__ __forceinline__ int row() { return lane() / 4; }
__device__ __forceinline__ int column() { return lane() % 4 * 2; }

// --- operands in shared memory: 64 rows of kDim halves, whatever is missing is zero. 16 spare
// bytes after each row spread eight neighbouring rows over all banks.

template <typename T, int kDim>
struct Operand {
  static constexpr int kStride = kDim + 8, kElements = kTile * kStride;
  static constexpr int kSteps = kDim / 16;

  T* data;

  __device__ void load(const AttentionProblem& p, const T* from, Int stride, int rows) const {
    constexpr int kPacks = kDim / 8;
#pragma unroll
    for (int part = 0; part < kTile * kPacks / kThreads; ++part) {
      const int x = part * kThreads + threadIdx.x, r = x / kPacks, c = x % kPacks * 8;
      const bool inside = r < rows && c < p.K;
      copy_async<16>(data + r * kStride + c, inside ? from + r * stride + c : from, inside);
    }
  }

  // The left operand: the warp's rows, columns 16 step …
  __device__ Fragment left(int step) const {
    return load_fragment(data + (warp() * kWarpRows + lane() % 16) * kStride + step * 16 +
                         lane() / 16 * 8);
  }
  // The right operand of a product that sums over columns: words 0, 1 for rows first … first + 7,
  // words 2, 3 for the eight after them.
  __device__ Fragment right_rows(int first, int step) const {
    return load_fragment(data + (first + lane() / 16 * 8 + lane() % 8) * kStride + step * 16 +
                         lane() / 8 % 2 * 8);
  }
  // That of a product that sums over rows first … first + 15: words 0, 1 for columns 16 step …
  // 16 step + 7, words 2, 3 for the eight after them.
  __device__ Fragment right_columns(int first, int step) const {
    return load_transposed(data + (first + lane() % 16) * kStride + step * 16 + lane() / 16 * 8);
  }

  // Puts the warp's rows of a result here and from here to `to`: 16 bytes a thread.
  __device__ void store(const AttentionProblem& p, const float (&values)[kDim / 8][4],
                        const float (&factor)[2], T* to, Int stride, int rows) const {
    T* const own = data + warp() * kWarpRows * kStride;
#pragma unroll
    for (int n = 0; n < kDim / 8; ++n)
#pragma unroll
      for (int r = 0; r < 2; ++r)
        *reinterpret_cast<unsigned*>(own + (row() + r * 8) * kStride + n * 8 + column()) =
            pair_of<T>(values[n][2 * r] * factor[r], values[n][2 * r + 1] * factor[r]);
    __syncwarp();
    constexpr int kPacks = kDim / 8;
#pragma unroll
    for (int part = 0; part < kWarpRows * kPacks / kWarp; ++part) {
      const int x = part * kWarp + lane(), r = x / kPacks, c = x % kPacks * 8;
      if (warp() * kWarpRows + r < rows && c < p.K)
        *reinterpret_cast<uint4*>(to + (warp() * kWarpRows + r) * stride + c) =
            *reinterpret_cast<const uint4*>(own + r * kStride + c);
    }
  }
};

// 16 columns of scores in registers as the left operand of the next product.
template <typename T>
__device__ __forceinline__ Fragment left_of(const float (&first)[4], const float (&second)[4]) {
  return {{pair_of<T>(first[0], first[1]), pair_of<T>(first[2], first[3]),
           pair_of<T>(second[0], second[1]), pair_of<T>(second[2], second[3])}};
}

constexpr int kKeptBytes = kTile * kTile / 8;
template <typename T, int kDim>
constexpr int kForwardBytes = 5 * Operand<T, kDim>::kElements * 2 + 2 * kTile * 4 + kKeptBytes;
template <typename T, int kDim>
constexpr int kBackwardBytes = 6 * Operand<T, kDim>::kElements * 2 + 2 * 3 * kTile * 4 + kKeptBytes;

// --- forward

template <typename T, int kDim>
__global__ void __launch_bounds__(kThreads, kDim <= 64 ? 3 : 2)
    forward_kernel(const __grid_constant__ AttentionProblem p, AttentionResult result) {
  using Rows = Operand<T, kDim>;
  constexpr int kColumns = kTile / 8;  // of scores, by eights
  extern __shared__ __align__(16) unsigned char shared[];
  T* const operands = reinterpret_cast<T*>(shared);
  const Rows q{operands};
  const auto keys = [&](int stage) { return Rows{operands + (1 + 2 * stage) * Rows::kElements}; };
  const auto values = [&](int stage) { return Rows{operands + (2 + 2 * stage) * Rows::kElements}; };
  int* const segments = reinterpret_cast<int*>(operands + 5 * Rows::kElements);  // [2][kTile]
  auto* const kept = reinterpret_cast<unsigned char*>(segments + 2 * kTile);
  const Walk<kTile, false> walk(p, blockIdx.x);
  const Mask& mask = walk.mask;
  const Dropout dropout(p);
  const T* const kv = static_cast<const T*>(p.kv);
  const int first_row = warp() * kWarpRows + row();  // in the tile
  const float scale = p.scale * kLog2E;              // scores are exponents of 2

  const auto load = [&](int step, int stage) {
    const int j = walk.key(step), g = walk.key_head();
    keys(stage).load(p, kv + kv_at(p, walk.b, j, g), p.kv_row, mask.end - j);
    values(stage).load(p, kv + kv_at(p, walk.b, j, p.G + g), p.kv_row, mask.end - j);
    if (mask.segments && threadIdx.x < kTile)
      copy_async<4>(segments + stage * kTile + threadIdx.x,
                    mask.segments + min(j + static_cast<int>(threadIdx.x), p.T - 1), true);
  };

  Step step = walk.find(0);
  q.load(p, static_cast<const T*>(p.q) + q_at(p, walk.b, walk.own, walk.head), p.q_row,
         p.T - walk.own);
  if (step.at < walk.limit) load(step.at, 0);
  commit_copies();

  Fragment q_left[Rows::kSteps];
  bool q_loaded = false;
  float out[kDim / 8][4] = {}, top[2] = {-INFINITY, -INFINITY}, sum[2] = {};
  const int segment[2] = {mask.segment(walk.own + first_row),
                          mask.segment(walk.own + first_row + 8)};

  for (int stage = 0; step.at < walk.limit; stage ^= 1) {
    const int j0 = walk.key(step.at);
    const Step next = walk.find(step.at + 1);
    if (next.at < walk.limit) load(next.at, stage ^ 1);
    commit_copies();
    if (p.key)
      dropout.fill<kWarpRows, kTile, kWarp>(
          kept + warp() * kWarpRows * (kTile / 8),
          pair_at(p, walk.b, walk.head, walk.own + warp() * kWarpRows, j0), p.S, lane());
    wait_copies<1>();
    __syncthreads();
    if (!q_loaded) {
#pragma unroll
      for (int d = 0; d < Rows::kSteps; ++d) q_left[d] = q.left(d);
      q_loaded = true;
    }

    float scores[kColumns][4] = {};
#pragma unroll
    for (int d = 0; d < Rows::kSteps; ++d)
#pragma unroll
      for (int n = 0; n < kColumns; n += 2) {
        const Fragment k = keys(stage).right_rows(n * 8, d);
        multiply_add<T>(scores[n], q_left[d], k.word[0], k.word[1]);
        multiply_add<T>(scores[n + 1], q_left[d], k.word[2], k.word[3]);
      }
#pragma unroll
    for (int n = 0; n < kColumns; ++n)
#pragma unroll
      for (int x = 0; x < 4; ++x) scores[n][x] *= scale;
    if (!step.whole) {
#pragma unroll
      for (int n = 0; n < kColumns; ++n)
#pragma unroll
        for (int x = 0; x < 4; ++x) {
          const int r = x / 2, c = n * 8 + column() + x % 2;
          if (!mask.sees(walk.own + first_row + r * 8, j0 + c, segment[r],
                         segments[stage * kTile + c]))
            scores[n][x] = -INFINITY;
        }
    }

#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float best = top[r];
#pragma unroll
      for (int n = 0; n < kColumns; ++n)
        best = fmaxf(best, fmaxf(scores[n][2 * r], scores[n][2 * r + 1]));
      best = fmaxf(best, __shfl_xor_sync(kAllLanes, best, 1));
      best = fmaxf(best, __shfl_xor_sync(kAllLanes, best, 2));
      // While all keys are masked any finite base gives zeros.
      const float base = best == -INFINITY ? 0.0f : best, shrink = exp2_fast(top[r] - base);
      top[r] = best;
      sum[r] *= shrink;
#pragma unroll
      for (int n = 0; n < kDim / 8; ++n) {
        out[n][2 * r] *= shrink;
        out[n][2 * r + 1] *= shrink;
      }
#pragma unroll
      for (int n = 0; n < kColumns; ++n)
#pragma unroll
        for (int x = 2 * r; x < 2 * r + 2; ++x) {
          scores[n][x] = exp2_fast(scores[n][x] - base);
          sum[r] += scores[n][x];
        }
    }
    if (p.key) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const uint2 bits =
            *reinterpret_cast<const uint2*>(kept + (first_row + r * 8) * (kTile / 8));
#pragma unroll
        for (int n = 0; n < kColumns; ++n)
#pragma unroll
          for (int x = 0; x < 2; ++x) {
            const unsigned word = n < kColumns / 2 ? bits.x : bits.y;
            if ((word >> (n % 4 * 8 + column() + x) & 1) == 0) scores[n][2 * r + x] = 0.0f;
          }
      }
    }

#pragma unroll
    for (int n = 0; n < kColumns; n += 2) {
      const Fragment left = left_of<T>(scores[n], scores[n + 1]);
#pragma unroll
      for (int d = 0; d < Rows::kSteps; ++d) {
        const Fragment v = values(stage).right_columns(n * 8, d);
        multiply_add<T>(out[2 * d], left, v.word[0], v.word[1]);
        multiply_add<T>(out[2 * d + 1], left, v.word[2], v.word[3]);
      }
    }
    __syncthreads();
    step = next;
  }

  wait_copies<0>();
  __syncthreads();
  float factor[2];
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    float total = sum[r];
    total += __shfl_xor_sync(kAllLanes, total, 1);
    total += __shfl_xor_sync(kAllLanes, total, 2);
    factor[r] = total == 0.0f ? 0.0f : p.keep_scale / total;
    const int i = walk.own + first_row + r * 8;
    if (i < p.T && lane() % 4 == 0)
      result.lse[row_at(p, walk.b, walk.head, i)] =
          total == 0.0f ? 0.0f : top[r] * kLn2 + logf(total);
  }
  q.store(p, out, factor, static_cast<T*>(result.out) + out_at(p, walk.b, walk.own, walk.head),
          Int{p.H} * p.K, p.T - walk.own);
}

// --- backward

// The gradients of the rows that block `index` owns: those of keys and values, or those of queries.
// Written for keys: scores stand transposed, `other` are queries. For queries the sides change.
template <typename T, int kDim, bool kKeys>
__device__ __forceinline__ void backward_block(const AttentionProblem& p,
                                               const AttentionGradient& gradient, unsigned index) {
  using Rows = Operand<T, kDim>;
  constexpr int kPart = 32, kColumns = kPart / 8;  // columns at a time: registers are short
  constexpr bool kResident = kDim <= 64;           // the left operands fit into registers
  extern __shared__ __align__(16) unsigned char shared[];
  T* const operands = reinterpret_cast<T*>(shared);
  const Rows own{operands}, own_pair{operands + Rows::kElements};  // k and v, or q and dout
  const auto other = [&](int stage) { return Rows{operands + (2 + 2 * stage) * Rows::kElements}; };
  const auto other_pair = [&](int stage) {
    return Rows{operands + (3 + 2 * stage) * Rows::kElements};
  };
  float* const other_lse = reinterpret_cast<float*>(operands + 6 * Rows::kElements);  // [2][kTile]
  float* const other_delta = other_lse + 2 * kTile;
  int* const other_segments = reinterpret_cast<int*>(other_delta + 2 * kTile);
  auto* const kept = reinterpret_cast<unsigned char*>(other_segments + 2 * kTile);
  const Walk<kTile, kKeys> walk(p, index);
  const Mask& mask = walk.mask;
  const Dropout dropout(p);
  const T *const queries = static_cast<const T*>(p.q), *const kv = static_cast<const T*>(p.kv);
  const T* const dout = static_cast<const T*>(gradient.dout);
  const int first_row = warp() * kWarpRows + row();
  const float scale = p.scale * kLog2E;

  const auto load_queries = [&](const Rows& q, const Rows& d_out, int h, int i) {
    q.load(p, queries + q_at(p, walk.b, i, h), p.q_row, p.T - i);
    d_out.load(p, dout + out_at(p, walk.b, i, h), Int{p.H} * p.K, p.T - i);
  };
  const auto load_keys = [&](const Rows& k, const Rows& v, int g, int j) {
    k.load(p, kv + kv_at(p, walk.b, j, g), p.kv_row, mask.end - j);
    v.load(p, kv + kv_at(p, walk.b, j, p.G + g), p.kv_row, mask.end - j);
  };
  const auto load = [&](int at, int stage) {
    const int x0 = walk.other(at), x = static_cast<int>(threadIdx.x) % kTile;
    const bool first_half = threadIdx.x < kTile, inside = x0 + x < p.T;
    if (kKeys) {
      const int h = walk.query_head(at);
      load_queries(other(stage), other_pair(stage), h, x0);
      const float* const from = first_half ? gradient.lse : gradient.delta;
      copy_async<4>((first_half ? other_lse : other_delta) + stage * kTile + x,
                    from + (inside ? row_at(p, walk.b, h, x0 + x) : 0), inside);
    } else {
      load_keys(other(stage), other_pair(stage), walk.key_head(), x0);
    }
    if (mask.segments && first_half)
      copy_async<4>(other_segments + stage * kTile + x, mask.segments + min(x0 + x, p.T - 1), true);
  };

  Step step = walk.find(0);
  if (kKeys)
    load_keys(own, own_pair, walk.head, walk.own);
  else
    load_queries(own, own_pair, walk.head, walk.own);
  if (step.at < walk.limit) load(step.at, 0);
  commit_copies();

  float sums[kDim / 8][4] = {}, sums_pair[kDim / 8][4] = {};
  float lse[2] = {}, delta[2] = {};
  int segment[2];
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int t = walk.own + first_row + r * 8;
    segment[r] = mask.segment(t);
    if (kKeys || t >= p.T) continue;
    lse[r] = gradient.lse[row_at(p, walk.b, walk.head, t)] * kLog2E;
    delta[r] = gradient.delta[row_at(p, walk.b, walk.head, t)];
  }
  Fragment left[kResident ? Rows::kSteps : 1], left_pair[kResident ? Rows::kSteps : 1];
  bool left_loaded = false;

  for (int stage = 0; step.at < walk.limit; stage ^= 1) {
    const int x0 = walk.other(step.at);
    const Step next = walk.find(step.at + 1);
    if (next.at < walk.limit) load(next.at, stage ^ 1);
    commit_copies();
    if (p.key)
      dropout.fill<kTile, kTile, kThreads>(
          kept,
          pair_at(p, walk.b, walk.query_head(step.at), walk.query(step.at), walk.key(step.at)), p.S,
          threadIdx.x);
    wait_copies<1>();
    __syncthreads();
    if (kResident && !left_loaded) {
#pragma unroll
      for (int d = 0; d < Rows::kSteps; ++d) {
        left[d] = own.left(d);
        left_pair[d] = own_pair.left(d);
      }
      left_loaded = true;
    }

#pragma unroll 1
    for (int part = 0; part < kTile; part += kPart) {
      float scores[kColumns][4] = {}, upper[kColumns][4] = {};
#pragma unroll
      for (int d = 0; d < Rows::kSteps; ++d) {
        const int at = kResident ? d : 0;
        if (!kResident) {
          left[0] = own.left(d);
          left_pair[0] = own_pair.left(d);
        }
#pragma unroll
        for (int n = 0; n < kColumns; n += 2) {
          const Fragment x = other(stage).right_rows(part + n * 8, d);
          multiply_add<T>(scores[n], left[at], x.word[0], x.word[1]);
          multiply_add<T>(scores[n + 1], left[at], x.word[2], x.word[3]);
          const Fragment y = other_pair(stage).right_rows(part + n * 8, d);
          multiply_add<T>(upper[n], left_pair[at], y.word[0], y.word[1]);
          multiply_add<T>(upper[n + 1], left_pair[at], y.word[2], y.word[3]);
        }
      }

      unsigned keep = 0;  // a bit for each score of this thread: 4 n + x
      if (p.key) {
#pragma unroll
        for (int n = 0; n < kColumns; ++n)
#pragma unroll
          for (int y = 0; y < 2; ++y) {
            const int query = kKeys ? part + n * 8 + column() + y : first_row + y * 8;
            const int key = kKeys ? warp() * kWarpRows : part + n * 8;
            const unsigned char* const from = kept + (query * kTile + key) / 8;
            const unsigned bits = kKeys ? *reinterpret_cast<const unsigned short*>(from) : *from;
#pragma unroll
            for (int z = 0; z < 2; ++z) {
              const int x = kKeys ? 2 * z + y : 2 * y + z;
              const unsigned bit = bits >> (kKeys ? row() + z * 8 : column() + z) & 1u;
              keep |= bit << (4 * n + x);
              upper[n][x] = bit != 0 ? upper[n][x] * p.keep_scale : 0.0f;
            }
          }
      }
#pragma unroll
      for (int n = 0; n < kColumns; ++n) {
        const float* const column_lse = other_lse + stage * kTile + part + n * 8 + column();
#pragma unroll
        for (int x = 0; x < 4; ++x)
          scores[n][x] =
              fmaf(scores[n][x], scale, kKeys ? column_lse[x % 2] * -kLog2E : -lse[x / 2]);
      }
      if (!step.whole) {
#pragma unroll
        for (int n = 0; n < kColumns; ++n)
#pragma unroll
          for (int x = 0; x < 4; ++x) {
            const int t = walk.own + first_row + x / 2 * 8;
            const int c = part + n * 8 + column() + x % 2;
            if (!mask.sees(kKeys ? x0 + c : t, kKeys ? t : x0 + c, segment[x / 2],
                           other_segments[stage * kTile + c]))
              scores[n][x] = -INFINITY;
          }
      }
#pragma unroll
      for (int n = 0; n < kColumns; ++n) {
        const float* const column_delta = other_delta + stage * kTile + part + n * 8 + column();
#pragma unroll
        for (int x = 0; x < 4; ++x) {
          scores[n][x] = exp2_fast(scores[n][x]);
          upper[n][x] = scores[n][x] * (upper[n][x] - (kKeys ? column_delta[x % 2] : delta[x / 2]));
        }
      }
      if (kKeys && p.key) {
#pragma unroll
        for (int n = 0; n < kColumns; ++n)
#pragma unroll
          for (int x = 0; x < 4; ++x)
            if ((keep >> (4 * n + x) & 1u) == 0) scores[n][x] = 0.0f;
      }

#pragma unroll
      for (int n = 0; n < kColumns; n += 2) {
        const Fragment a = left_of<T>(upper[n], upper[n + 1]);
        const Fragment a_pair = left_of<T>(scores[n], scores[n + 1]);
#pragma unroll
        for (int d = 0; d < Rows::kSteps; ++d) {
          const Fragment x = other(stage).right_columns(part + n * 8, d);
          multiply_add<T>(sums[2 * d], a, x.word[0], x.word[1]);
          multiply_add<T>(sums[2 * d + 1], a, x.word[2], x.word[3]);
          if (!kKeys) continue;
          const Fragment y = other_pair(stage).right_columns(part + n * 8, d);
          multiply_add<T>(sums_pair[2 * d], a_pair, y.word[0], y.word[1]);
          multiply_add<T>(sums_pair[2 * d + 1], a_pair, y.word[2], y.word[3]);
        }
      }
    }
    __syncthreads();
    step = next;
  }

  wait_copies<0>();
  __syncthreads();
  T* const to = kKeys ? static_cast<T*>(gradient.dkv) + kv_at(p, walk.b, walk.own, walk.head)
                      : static_cast<T*>(gradient.dq) + q_at(p, walk.b, walk.own, walk.head);
  const Int stride = kKeys ? p.kv_row : p.q_row;
  const int rows = (kKeys ? p.S : p.T) - walk.own;
  own.store(p, sums, {p.scale, p.scale}, to, stride, rows);
  if (kKeys)
    own_pair.store(p, sums_pair, {p.keep_scale, p.keep_scale}, to + Int{p.G} * p.K, stride, rows);
}

// Both kinds of blocks in one launch, so that few rows still fill the GPU.
template <typename T, int kDim>
__global__ void __launch_bounds__(kThreads, kDim <= 64 ? 3 : 2)
    backward_kernel(const __grid_constant__ AttentionProblem p, AttentionGradient gradient,
                    unsigned key_blocks) {
  if (blockIdx.x < key_blocks)
    backward_block<T, kDim, true>(p, gradient, blockIdx.x);
  else
    backward_block<T, kDim, false>(p, gradient, blockIdx.x - key_blocks);
}

// Calls use(number of the problem's type, width of its heads in shared memory).
template <typename Use>
void with_width(const AttentionProblem& p, Use use) {
  const auto of_type = [&](auto number) {
    if (p.K <= 32) return use(number, std::integral_constant<int, 32>());
    if (p.K <= 64) return use(number, std::integral_constant<int, 64>());
    if (p.K <= 96) return use(number, std::integral_constant<int, 96>());
    use(number, std::integral_constant<int, kTensorMaxWidth>());
  };
  if (p.dtype == DType::bf16)
    of_type(__nv_bfloat16());
  else
    of_type(__half());
}

}  // namespace

int attention_tensor_shared(const AttentionProblem& p, AttentionPass pass) {
  int bytes = 0;
  with_width(p, [&](auto number, auto width) {
    using T = decltype(number);
    bytes = pass == AttentionPass::forward ? kForwardBytes<T, width()> : kBackwardBytes<T, width()>;
  });
  return bytes;
}

cudaError_t attention_tensor_allow(const AttentionProblem& p, AttentionPass pass) {
  const int bytes = attention_tensor_shared(p, pass);
  cudaError_t status = cudaSuccess;
  with_width(p, [&](auto number, auto width) {
    using T = decltype(number);
    constexpr auto kAttribute = cudaFuncAttributeMaxDynamicSharedMemorySize;
    status = pass == AttentionPass::forward
                 ? cudaFuncSetAttribute(forward_kernel<T, width()>, kAttribute, bytes)
                 : cudaFuncSetAttribute(backward_kernel<T, width()>, kAttribute, bytes);
  });
  return status;
}

void attention_tensor(const AttentionProblem& p, const AttentionResult& result,
                      cudaStream_t stream) {
  if (p.B == 0 || p.T == 0) return;
  with_width(p, [&](auto number, auto width) {
    using T = decltype(number);
    const unsigned blocks = static_cast<unsigned>(p.B * p.H * pieces(p.T, kTile));
    forward_kernel<T, width()><<<blocks, kThreads, kForwardBytes<T, width()>, stream>>>(p, result);
  });
}

void attention_tensor_gradient(const AttentionProblem& p, const AttentionGradient& gradient,
                               cudaStream_t stream) {
  attention_delta(p, gradient, stream);
  with_width(p, [&](auto number, auto width) {
    using T = decltype(number);
    const auto key_blocks = static_cast<unsigned>(p.B * p.G * pieces(p.S, kTile));
    const auto blocks = key_blocks + static_cast<unsigned>(p.B * p.H * pieces(p.T, kTile));
    if (blocks == 0) return;
    backward_kernel<T, width()>
        <<<blocks, kThreads, kBackwardBytes<T, width()>, stream>>>(p, gradient, key_blocks);
  });
}

}  // namespace millrace::cuda
