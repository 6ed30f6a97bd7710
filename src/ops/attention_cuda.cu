// Attention over tiles of floats in shared memory, after FlashAttention-2 (Dao, arXiv 2307.08691):
// for f32, and for halves where tensor cores do not fit. A block of 16 x 16 threads owns kTile
// rows; thread (down, across) computes the scores of kTile / 16 rows that lie together with columns
// across, across + 16, … The 16 threads of a row are half a warp: rows are reduced by shuffles, and
// a warp reads only those scores from shared memory that it wrote.
#include <cuda_runtime.h>

#include "cuda/device.cuh"
#include "cuda/with_type.cuh"
#include "ops/attention_cuda.cuh"
#include "ops/attention_cuda.h"

namespace millrace::cuda {
namespace {

using namespace attention;

constexpr int kSide = 16, kThreads = kSide * kSide;
constexpr int kEnoughBlocks = 264;  // two for each multiprocessor of the GPUs we have in mind

template <int kCount, typename T = float>
struct alignas(kCount * sizeof(T)) Vector {
  T value[kCount];
};

// How a tile of kTile rows of up to kDim numbers lies in shared memory and in registers. A stride
// of 4 modulo 32 banks lets 16 threads read 16 bytes each from neighbouring rows at full speed.
template <int kDimension, int kTileRows>
struct Tiling {
  static constexpr int kDim = kDimension, kTile = kTileRows;
  static constexpr int kRows = kTile / kSide;    // of a thread; as many columns of scores
  static constexpr int kColumns = kDim / kSide;  // of a thread, in the results
  static constexpr int kVector = kColumns < 4 ? kColumns : 4;
  static constexpr int kStride = kDim + 4, kScoreStride = kTile + 4;
  static constexpr int kOperand = kTile * kStride, kScores = kTile * kScoreStride;
  // Operands, scores, segments of the other side's rows, their lse and delta, bits of dropout.
  static constexpr int kForwardBytes = 4 * (3 * kOperand + kScores + kTile) + kTile * kTile / 8;
  static constexpr int kBackwardBytes =
      4 * (4 * kOperand + kScores + 3 * kTile) + kTile * kTile / 8;
};

__device__ __forceinline__ int across() { return static_cast<int>(threadIdx.x) % kSide; }
__device__ __forceinline__ int down() { return static_cast<int>(threadIdx.x) / kSide; }

// Rows are readable 16 bytes at a time: every head begins at a multiple of 16 bytes.
template <typename T>
__device__ __forceinline__ bool in_packs(const AttentionProblem& p) {
  return p.K % Pack<T>::kCount == 0;
}

// A tile of a head, as floats; what is not within `rows` and the head's width becomes zero.
template <typename S, typename T>
__device__ __forceinline__ void load_tile(const AttentionProblem& p, float* to, const T* from,
                                          Int stride, int rows) {
  if (!in_packs<T>(p)) {
#pragma unroll 4
    for (int x = threadIdx.x; x < S::kTile * S::kDim; x += kThreads) {
      const int row = x / S::kDim, column = x % S::kDim;
      const bool inside = row < rows && column < p.K;
      to[row * S::kStride + column] = inside ? to_float(from[row * stride + column]) : 0.0f;
    }
    return;
  }
  constexpr int kCount = Pack<T>::kCount, kPacks = S::kDim / kCount, kAll = S::kTile * kPacks;
  Pack<T> packs[pieces(kAll, kThreads)];  // all loads under way before the first is waited for
#pragma unroll
  for (int part = 0; part < pieces(kAll, kThreads); ++part) {
    const int x = part * kThreads + threadIdx.x, row = x / kPacks, column = x % kPacks * kCount;
    if (row < rows && row < S::kTile && column < p.K)
      packs[part] = load_pack(from + row * stride + column);
    else
      packs[part] = {};
  }
#pragma unroll
  for (int part = 0; part < pieces(kAll, kThreads); ++part) {
    const int x = part * kThreads + threadIdx.x, row = x / kPacks, column = x % kPacks * kCount;
    if (row >= S::kTile) continue;
#pragma unroll
    for (int i = 0; i < kCount; i += 4) {
      const float* value = packs[part].value + i;
      *reinterpret_cast<float4*>(to + row * S::kStride + column + i) =
          make_float4(value[0], value[1], value[2], value[3]);
    }
  }
}

// Row r of the thread goes to `to` + r * stride.
template <typename S, typename T>
__device__ __forceinline__ void store_row(const AttentionProblem& p, T* to,
                                          const float (&from)[S::kColumns], float factor) {
#pragma unroll
  for (int first = 0; first < S::kColumns; first += S::kVector) {
    const int column = first * kSide + across() * S::kVector;
    Vector<S::kVector, T> values;
#pragma unroll
    for (int i = 0; i < S::kVector; ++i) values.value[i] = from_float<T>(from[first + i] * factor);
    if (in_packs<T>(p)) {
      if (column < p.K) *reinterpret_cast<Vector<S::kVector, T>*>(to + column) = values;
      continue;
    }
#pragma unroll
    for (int i = 0; i < S::kVector; ++i)
      if (column + i < p.K) to[column + i] = values.value[i];
  }
}

// scores = own other'
template <typename S>
__device__ __forceinline__ void multiply(const float* own, const float* other,
                                         float (&scores)[S::kRows][S::kRows]) {
  own += down() * S::kRows * S::kStride;
  other += across() * S::kStride;
#pragma unroll
  for (int r = 0; r < S::kRows; ++r)
#pragma unroll
    for (int c = 0; c < S::kRows; ++c) scores[r][c] = 0.0f;
#pragma unroll 2
  for (int d = 0; d < S::kDim; d += 4) {
    float4 x[S::kRows], y[S::kRows];
#pragma unroll
    for (int r = 0; r < S::kRows; ++r)
      x[r] = *reinterpret_cast<const float4*>(own + r * S::kStride + d);
#pragma unroll
    for (int c = 0; c < S::kRows; ++c)
      y[c] = *reinterpret_cast<const float4*>(other + c * kSide * S::kStride + d);
#pragma unroll
    for (int r = 0; r < S::kRows; ++r)
#pragma unroll
      for (int c = 0; c < S::kRows; ++c) {
        float sum = scores[r][c];
        sum = fmaf(x[r].x, y[c].x, sum);
        sum = fmaf(x[r].y, y[c].y, sum);
        sum = fmaf(x[r].z, y[c].z, sum);
        scores[r][c] = fmaf(x[r].w, y[c].w, sum);
      }
  }
}

// Gives the warp's scores to all of its threads.
template <typename S>
__device__ __forceinline__ void share_scores(float* shared,
                                             const float (&scores)[S::kRows][S::kRows]) {
  __syncwarp();
#pragma unroll
  for (int r = 0; r < S::kRows; ++r)
#pragma unroll
    for (int c = 0; c < S::kRows; ++c)
      shared[(down() * S::kRows + r) * S::kScoreStride + c * kSide + across()] = scores[r][c];
  __syncwarp();
}

// sums += scores other
template <typename S>
__device__ __forceinline__ void accumulate(const float* scores, const float* other,
                                           float (&sums)[S::kRows][S::kColumns]) {
  scores += down() * S::kRows * S::kScoreStride;
  other += across() * S::kVector;
#pragma unroll 2
  for (int j = 0; j < S::kTile; j += 4) {
    Vector<4> weight[S::kRows];
#pragma unroll
    for (int r = 0; r < S::kRows; ++r)
      weight[r] = *reinterpret_cast<const Vector<4>*>(scores + r * S::kScoreStride + j);
#pragma unroll
    for (int y = 0; y < 4; ++y)
#pragma unroll
      for (int first = 0; first < S::kColumns; first += S::kVector) {
        const auto x = *reinterpret_cast<const Vector<S::kVector>*>(other + (j + y) * S::kStride +
                                                                    first * kSide);
#pragma unroll
        for (int r = 0; r < S::kRows; ++r)
#pragma unroll
          for (int i = 0; i < S::kVector; ++i)
            sums[r][first + i] = fmaf(weight[r].value[y], x.value[i], sums[r][first + i]);
      }
  }
}

template <typename S, typename T>
__global__ void __launch_bounds__(kThreads, 2)
    forward_kernel(const __grid_constant__ AttentionProblem p, AttentionResult result) {
  extern __shared__ __align__(16) float shared[];
  float *const q = shared, *const k = q + S::kOperand, *const v = k + S::kOperand;
  float* const probabilities = v + S::kOperand;
  int* const segments = reinterpret_cast<int*>(probabilities + S::kScores);
  auto* const kept = reinterpret_cast<unsigned char*>(segments + S::kTile);
  const Walk<S::kTile, false> walk(p, blockIdx.x);
  const Mask& mask = walk.mask;
  const Dropout dropout(p);
  const T* const kv = static_cast<const T*>(p.kv);
  const int first_row = walk.own + down() * S::kRows;

  load_tile<S>(p, q, static_cast<const T*>(p.q) + q_at(p, walk.b, walk.own, walk.head), p.q_row,
               p.T - walk.own);
  float top[S::kRows], sum[S::kRows], out[S::kRows][S::kColumns] = {};
  int segment[S::kRows];
#pragma unroll
  for (int r = 0; r < S::kRows; ++r) {
    top[r] = -INFINITY;
    sum[r] = 0.0f;
    segment[r] = mask.segment(first_row + r);
  }

  for (Step step = walk.find(0); step.at < walk.limit; step = walk.find(step.at + 1)) {
    const int j0 = walk.key(step.at);
    __syncthreads();
    load_tile<S>(p, k, kv + kv_at(p, walk.b, j0, walk.key_head()), p.kv_row, mask.end - j0);
    load_tile<S>(p, v, kv + kv_at(p, walk.b, j0, p.G + walk.key_head()), p.kv_row, mask.end - j0);
    if (threadIdx.x < S::kTile) segments[threadIdx.x] = mask.segment(j0 + threadIdx.x);
    if (p.key)
      dropout.fill<S::kTile, S::kTile, kThreads>(kept, pair_at(p, walk.b, walk.head, walk.own, j0),
                                                 p.S, threadIdx.x);
    __syncthreads();

    float scores[S::kRows][S::kRows];
    multiply<S>(q, k, scores);
#pragma unroll
    for (int r = 0; r < S::kRows; ++r)
#pragma unroll
      for (int c = 0; c < S::kRows; ++c) scores[r][c] *= p.scale;
    if (!step.whole) {
#pragma unroll
      for (int r = 0; r < S::kRows; ++r)
#pragma unroll
        for (int c = 0; c < S::kRows; ++c) {
          const int column = c * kSide + across();
          if (!mask.sees(first_row + r, j0 + column, segment[r], segments[column]))
            scores[r][c] = -INFINITY;
        }
    }
#pragma unroll
    for (int r = 0; r < S::kRows; ++r) {
      float best = top[r];
#pragma unroll
      for (int c = 0; c < S::kRows; ++c) best = fmaxf(best, scores[r][c]);
      best = warp_max<kSide>(best);
      // While all keys are masked any finite base gives zeros.
      const float base = best == -INFINITY ? 0.0f : best, shrink = expf(top[r] - base);
      top[r] = best;
      sum[r] *= shrink;
#pragma unroll
      for (int x = 0; x < S::kColumns; ++x) out[r][x] *= shrink;
#pragma unroll
      for (int c = 0; c < S::kRows; ++c) {
        scores[r][c] = expf(scores[r][c] - base);
        sum[r] += scores[r][c];
      }
    }
    if (p.key) {
#pragma unroll
      for (int r = 0; r < S::kRows; ++r)
#pragma unroll
        for (int c = 0; c < S::kRows; ++c) {
          const int row = down() * S::kRows + r, column = c * kSide + across();
          const unsigned bits = kept[(row * S::kTile + column) / 8];
          if ((bits >> column % 8 & 1) == 0) scores[r][c] = 0.0f;
        }
    }
    share_scores<S>(probabilities, scores);
    accumulate<S>(probabilities, v, out);
  }

#pragma unroll
  for (int r = 0; r < S::kRows; ++r) {
    const int i = first_row + r;
    const float total = warp_sum<kSide>(sum[r]);
    if (i >= p.T) continue;
    store_row<S>(p, static_cast<T*>(result.out) + out_at(p, walk.b, i, walk.head), out[r],
                 total == 0.0f ? 0.0f : p.keep_scale / total);
    if (across() == 0)
      result.lse[row_at(p, walk.b, walk.head, i)] = total == 0.0f ? 0.0f : top[r] + logf(total);
  }
}

// The gradients of the rows that block `index` owns: those of keys and values, or those of queries.
// Written for keys: scores stand transposed, `other` are queries. For queries the sides change.
template <typename S, typename T, bool kKeys>
__device__ __forceinline__ void backward_block(const AttentionProblem& p,
                                               const AttentionGradient& gradient, unsigned index) {
  extern __shared__ __align__(16) float shared[];
  float *const own = shared, *const own_pair = own + S::kOperand;  // k and v, or q and dout
  float *const other = own_pair + S::kOperand, *const other_pair = other + S::kOperand;
  float* const scores = other_pair + S::kOperand;
  float *const other_lse = scores + S::kScores, *const other_delta = other_lse + S::kTile;
  int* const other_segments = reinterpret_cast<int*>(other_delta + S::kTile);
  auto* const kept = reinterpret_cast<unsigned char*>(other_segments + S::kTile);
  const Walk<S::kTile, kKeys> walk(p, index);
  const Mask& mask = walk.mask;
  const Dropout dropout(p);
  const T *const queries = static_cast<const T*>(p.q), *const kv = static_cast<const T*>(p.kv);
  const T* const dout = static_cast<const T*>(gradient.dout);
  const Int out_row = Int{p.H} * p.K;
  const int first_row = walk.own + down() * S::kRows;

  const auto load_queries = [&](float* q, float* d_out, int h, int i) {
    load_tile<S>(p, q, queries + q_at(p, walk.b, i, h), p.q_row, p.T - i);
    load_tile<S>(p, d_out, dout + out_at(p, walk.b, i, h), out_row, p.T - i);
  };
  const auto load_keys = [&](float* k, float* v, int g, int j) {
    load_tile<S>(p, k, kv + kv_at(p, walk.b, j, g), p.kv_row, mask.end - j);
    load_tile<S>(p, v, kv + kv_at(p, walk.b, j, p.G + g), p.kv_row, mask.end - j);
  };
  if (kKeys)
    load_keys(own, own_pair, walk.head, walk.own);
  else
    load_queries(own, own_pair, walk.head, walk.own);

  float sums[S::kRows][S::kColumns] = {}, sums_pair[S::kRows][S::kColumns] = {};
  float lse[S::kRows] = {}, delta[S::kRows] = {};
  int segment[S::kRows];
#pragma unroll
  for (int r = 0; r < S::kRows; ++r) {
    segment[r] = mask.segment(first_row + r);
    if (kKeys || first_row + r >= p.T) continue;
    lse[r] = gradient.lse[row_at(p, walk.b, walk.head, first_row + r)];
    delta[r] = gradient.delta[row_at(p, walk.b, walk.head, first_row + r)];
  }

  for (Step step = walk.find(0); step.at < walk.limit; step = walk.find(step.at + 1)) {
    const int h = walk.query_head(step.at), x0 = walk.other(step.at);
    __syncthreads();
    if (kKeys)
      load_queries(other, other_pair, h, x0);
    else
      load_keys(other, other_pair, walk.key_head(), x0);
    if (threadIdx.x < S::kTile) {
      const int x = x0 + threadIdx.x;
      other_segments[threadIdx.x] = mask.segment(x);
      if (kKeys) {
        other_lse[threadIdx.x] = x < p.T ? gradient.lse[row_at(p, walk.b, h, x)] : 0.0f;
        other_delta[threadIdx.x] = x < p.T ? gradient.delta[row_at(p, walk.b, h, x)] : 0.0f;
      }
    }
    if (p.key)
      dropout.fill<S::kTile, S::kTile, kThreads>(
          kept, pair_at(p, walk.b, h, walk.query(step.at), walk.key(step.at)), p.S, threadIdx.x);
    __syncthreads();

    float probability[S::kRows][S::kRows], upper[S::kRows][S::kRows];
    multiply<S>(own, other, probability);
    multiply<S>(own_pair, other_pair, upper);
#pragma unroll
    for (int r = 0; r < S::kRows; ++r)
#pragma unroll
      for (int c = 0; c < S::kRows; ++c)
        probability[r][c] =
            probability[r][c] * p.scale - (kKeys ? other_lse[c * kSide + across()] : lse[r]);
    if (!step.whole) {
#pragma unroll
      for (int r = 0; r < S::kRows; ++r)
#pragma unroll
        for (int c = 0; c < S::kRows; ++c) {
          const int t = first_row + r, column = c * kSide + across(), x = x0 + column;
          if (!mask.sees(kKeys ? x : t, kKeys ? t : x, segment[r], other_segments[column]))
            probability[r][c] = -INFINITY;
        }
    }
#pragma unroll
    for (int r = 0; r < S::kRows; ++r)
#pragma unroll
      for (int c = 0; c < S::kRows; ++c) {
        const int row = down() * S::kRows + r, column = c * kSide + across();
        const float value = expf(probability[r][c]);
        const float row_delta = kKeys ? other_delta[column] : delta[r];
        float keep = 1.0f;
        if (p.key) {
          const int query = kKeys ? column : row, key = kKeys ? row : column;
          const unsigned bits = kept[(query * S::kTile + key) / 8];
          keep = (bits >> key % 8 & 1) != 0 ? p.keep_scale : 0.0f;
        }
        probability[r][c] = value * keep;
        upper[r][c] = value * (upper[r][c] * keep - row_delta);
      }
    if (kKeys) {
      share_scores<S>(scores, probability);
      accumulate<S>(scores, other_pair, sums_pair);
    }
    share_scores<S>(scores, upper);
    accumulate<S>(scores, other, sums);
  }

#pragma unroll
  for (int r = 0; r < S::kRows; ++r) {
    const int t = first_row + r;
    if (t >= (kKeys ? p.S : p.T)) continue;
    T* const to = kKeys ? static_cast<T*>(gradient.dkv) + kv_at(p, walk.b, t, walk.head)
                        : static_cast<T*>(gradient.dq) + q_at(p, walk.b, t, walk.head);
    store_row<S>(p, to, sums[r], p.scale);
    if (kKeys) store_row<S>(p, to + Int{p.G} * p.K, sums_pair[r], 1.0f);
  }
}

// Both kinds of blocks in one launch, so that few rows still fill the GPU.
template <typename S, typename T>
__global__ void __launch_bounds__(kThreads, 2)
    backward_kernel(const __grid_constant__ AttentionProblem p, AttentionGradient gradient,
                    unsigned key_blocks) {
  if (blockIdx.x < key_blocks)
    backward_block<S, T, true>(p, gradient, blockIdx.x);
  else
    backward_block<S, T, false>(p, gradient, blockIdx.x - key_blocks);
}

constexpr int kDeltaLanes = 8;  // threads that share a row

template <typename T>
__global__ void __launch_bounds__(kThreads)
    delta_kernel(const __grid_constant__ AttentionProblem p, AttentionGradient gradient) {
  const Int row = Int{blockIdx.x} * (kThreads / kDeltaLanes) + threadIdx.x / kDeltaLanes;
  const int lane = static_cast<int>(threadIdx.x) % kDeltaLanes;
  const bool inside = row < Int{p.B} * p.T * p.H;
  const T* const x = static_cast<const T*>(gradient.out) + row * p.K;
  const T* const y = static_cast<const T*>(gradient.dout) + row * p.K;
  float sum = 0.0f;
  if (inside && in_packs<T>(p)) {
    constexpr int kCount = Pack<T>::kCount;
    for (int d = lane * kCount; d < p.K; d += kDeltaLanes * kCount) {
      const Pack<T> a = load_pack(x + d), b = load_pack(y + d);
#pragma unroll
      for (int i = 0; i < kCount; ++i) sum = fmaf(a.value[i], b.value[i], sum);
    }
  } else if (inside) {
    for (int d = lane; d < p.K; d += kDeltaLanes) sum = fmaf(to_float(x[d]), to_float(y[d]), sum);
  }
#pragma unroll
  for (int step = kDeltaLanes / 2; step > 0; step /= 2)
    sum += __shfl_xor_sync(kAllLanes, sum, step);
  if (!inside || lane != 0) return;
  const int h = static_cast<int>(row % p.H), t = static_cast<int>(row / p.H % p.T);
  gradient.delta[row_at(p, static_cast<int>(row / p.H / p.T), h, t)] = sum;
}

// Calls use(Tiling, number of its type) with what fits the problem: the narrowest head width, and
// for floats short tiles where long ones would leave multiprocessors idle.
template <typename Use>
void with_tiling(const AttentionProblem& p, Use use) {
  const auto of_type = [&](auto number) {
    constexpr bool kFloats = sizeof(number) == sizeof(float);
    if (p.K > 128) return use(Tiling<256, 16>(), number);
    if (p.K > 64) return use(Tiling<128, 32>(), number);
    if constexpr (kFloats) {
      const bool many = int64_t{p.B} * p.H * pieces(p.T, 64) >= kEnoughBlocks;
      if (many) return p.K > 32 ? use(Tiling<64, 64>(), number) : use(Tiling<32, 64>(), number);
    }
    return p.K > 32 ? use(Tiling<64, 32>(), number) : use(Tiling<32, 32>(), number);
  };
  with_type(p.dtype, [&]<typename T>(T*) { of_type(T()); });
}

}  // namespace

int attention_tiled_shared(const AttentionProblem& p, AttentionPass pass) {
  int bytes = 0;
  with_tiling(p, [&](auto tiling, auto) {
    using S = decltype(tiling);
    bytes = pass == AttentionPass::forward ? S::kForwardBytes : S::kBackwardBytes;
  });
  return bytes;
}

cudaError_t attention_tiled_allow(const AttentionProblem& p, AttentionPass pass) {
  const int bytes = attention_tiled_shared(p, pass);
  cudaError_t status = cudaSuccess;
  with_tiling(p, [&](auto tiling, auto number) {
    using S = decltype(tiling);
    using T = decltype(number);
    constexpr auto kAttribute = cudaFuncAttributeMaxDynamicSharedMemorySize;
    status = pass == AttentionPass::forward
                 ? cudaFuncSetAttribute(forward_kernel<S, T>, kAttribute, bytes)
                 : cudaFuncSetAttribute(backward_kernel<S, T>, kAttribute, bytes);
  });
  return status;
}

void attention_tiled(const AttentionProblem& p, const AttentionResult& result,
                     cudaStream_t stream) {
  if (p.B == 0 || p.T == 0) return;
  with_tiling(p, [&](auto tiling, auto number) {
    using S = decltype(tiling);
    const unsigned blocks = static_cast<unsigned>(p.B * p.H * pieces(p.T, S::kTile));
    forward_kernel<S, decltype(number)><<<blocks, kThreads, S::kForwardBytes, stream>>>(p, result);
  });
}

void attention_tiled_gradient(const AttentionProblem& p, const AttentionGradient& gradient,
                              cudaStream_t stream) {
  attention_delta(p, gradient, stream);
  with_tiling(p, [&](auto tiling, auto number) {
    using S = decltype(tiling);
    const auto key_blocks = static_cast<unsigned>(p.B * p.G * pieces(p.S, S::kTile));
    const auto blocks = key_blocks + static_cast<unsigned>(p.B * p.H * pieces(p.T, S::kTile));
    if (blocks == 0) return;
    backward_kernel<S, decltype(number)>
        <<<blocks, kThreads, S::kBackwardBytes, stream>>>(p, gradient, key_blocks);
  });
}

void attention_delta(const AttentionProblem& p, const AttentionGradient& gradient,
                     cudaStream_t stream) {
  const int64_t rows = int64_t{p.B} * p.T * p.H;
  if (rows == 0) return;
  constexpr int kRows = kThreads / kDeltaLanes;
  const auto blocks = static_cast<unsigned>((rows + kRows - 1) / kRows);
  with_type(p.dtype,
            [&]<typename T>(T*) { delta_kernel<T><<<blocks, kThreads, 0, stream>>>(p, gradient); });
}

}  // namespace millrace::cuda
