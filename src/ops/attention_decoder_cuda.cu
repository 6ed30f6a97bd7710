// attention_decoder: four launches for every step, each spread over the whole device. Gates with
// their cell, the query, scores with their share of the context, and what puts the slices of a
// sequence together: each slice has a maximum and a sum of its own (arXiv 2205.14135).
#include "ops/attention_decoder_cuda.cuh"

namespace millrace::cuda {
namespace {

using namespace decoder;

constexpr int kMaxSplits = kWarp;  // a lane to each
constexpr int kBlocks = 264;       // worth splitting to reach: two to a multiprocessor
constexpr int kJoinColumns = 64;

// Both states: h0 and the context that there is, zeros.
__global__ void __launch_bounds__(kThreads) start_kernel(const DecoderForward p) {
  const Int at = (Int)blockIdx.x * kThreads + threadIdx.x;
  const Int numbers = (Int)p.chunks * (p.H + p.M) * p.rows;
  if (at < (Int)p.B * p.S && p.coverage) p.covered[at] = p.covered0 ? p.covered0[at] : 0.0f;
  if (at >= numbers) return;
  const int row = at % p.rows, k = at / p.rows % (p.H + p.M), chunk = at / p.rows / (p.H + p.M);
  const int b = chunk * p.rows + row;
  float first = 0;
  if (b < p.B && k < p.H)
    first = p.h0[(Int)b * p.H + k];
  else if (b < p.B && p.context0)
    first = p.context0[(Int)b * p.M + k - p.H];
  p.state[at] = first;
  p.state[numbers + at] = 0;
}

// Grid: panels of two units, chunks of rows.
template <typename T, int kRows>
__global__ void __launch_bounds__(kThreads) gates_kernel(const DecoderForward p, int t) {
  extern __shared__ float4 shared[];
  const int depth = p.H + p.M;
  const Int state = (Int)blockIdx.y * depth * kRows, numbers = (Int)p.chunks * depth * kRows;
  const Mine<kRows> mine;
  const int b = blockIdx.y * kRows + mine.row, gate = mine.column % 4,
            unit = blockIdx.x * 2 + mine.column / 4;
  const bool real = mine.any && b < p.B && unit < p.H;
  const Int row = (Int)t * p.B + b, at = row * 4 * p.H + gate * p.H + unit;
  // Asked for early, to be there when the product is.
  const float x = real ? to_float(static_cast<const T*>(p.x)[at]) : 0.0f;
  float cell = 0;
  if (real) cell = t ? p.cells[(row - p.B) * p.H + unit] : p.c0[(Int)b * p.H + unit];
  const float z = x + panel_product<T, kRows>(
                          p.state + t % 2 * numbers + state,
                          static_cast<const T*>(p.w_panels) + (Int)blockIdx.x * depth * kColumns,
                          depth, reinterpret_cast<char*>(shared));
  if (!mine.any) return;  // whole warps
  const float own = gate == 2 ? tanhf(z) : fn_sigmoid(z);
  const int first = threadIdx.x % kWarp & ~3;
  const float i = __shfl_sync(kAllLanes, own, first), f = __shfl_sync(kAllLanes, own, first + 1),
              g = __shfl_sync(kAllLanes, own, first + 2),
              o = __shfl_sync(kAllLanes, own, first + 3);
  if (!real) return;
  put<T>(p.gates, at, own);
  if (gate != 0) return;
  cell = f * cell + i * g;
  const float h = o * tanhf(cell);
  p.cells[row * p.H + unit] = cell;
  put<T>(p.h, row * p.H + unit, h);
  p.state[(t + 1) % 2 * numbers + state + (Int)unit * kRows + mine.row] = h;
}

// Grid: panels of the attention units, chunks of rows.
template <typename T, int kRows>
__global__ void __launch_bounds__(kThreads) query_kernel(const DecoderForward p, int t) {
  extern __shared__ float4 shared[];
  const int depth = p.H + p.M;
  const float* state = p.state + ((t + 1) % 2 * p.chunks + (Int)blockIdx.y) * depth * kRows;
  const float q = panel_product<T, kRows>(
      state, static_cast<const T*>(p.wq_panels) + (Int)blockIdx.x * p.H * kColumns, p.H,
      reinterpret_cast<char*>(shared));
  const Mine<kRows> mine;
  const int b = blockIdx.y * kRows + mine.row, a = blockIdx.x * kColumns + mine.column;
  if (mine.any && b < p.B && a < p.A) p.q[(Int)b * p.A + a] = q;
}

// Grid: splits, sequences. Scores of a slice, their exponentials, and the memory's sum with these.
template <typename T, int kWide, bool kCoverage>
__global__ void __launch_bounds__(kThreads) attend_kernel(const DecoderForward p) {
  extern __shared__ float4 shared[];
  __shared__ float reduced[kWarp];
  const int b = blockIdx.y, first = blockIdx.x * p.slice, A = p.A, M = p.M;
  const int count = min(places_of(p, p.lengths, b) - first, p.slice);
  if (count <= 0) return;
  float* const part = reinterpret_cast<float*>(shared);          // [groups][M]
  float* const q = part + max(kThreads * kWide, M);              // [A]
  float *const v = q + A, *const wc = v + A, *const e = wc + A;  // [A], [A], [slice]
  for (int a = threadIdx.x; a < A; a += kThreads) {
    q[a] = p.q[(Int)b * A + a];
    v[a] = p.v[a];
    if (kCoverage) wc[a] = p.wc[a];
  }
  __syncthreads();
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const Int place = (Int)b * p.S + first, of_memory = (Int)(b / p.beams) * p.S + first;
  const T* __restrict__ keys = static_cast<const T*>(p.keys) + of_memory * A;
  for (int s = warp * kTogether; s < count; s += kWarps * kTogether) {
    float sum[kTogether] = {}, covered[kTogether] = {};
    if (kCoverage)
#pragma unroll
      for (int j = 0; j < kTogether; ++j)
        if (s + j < count) covered[j] = p.covered[place + s + j];
    for (int a = lane * kWide; a < A; a += kWarp * kWide) {
      float key[kTogether][kWide] = {};
#pragma unroll
      for (int j = 0; j < kTogether; ++j)
        if (s + j < count) load_numbers<T, kWide>(keys + (Int)(s + j) * A + a, key[j]);
#pragma unroll
      for (int i = 0; i < kWide; ++i)
#pragma unroll
        for (int j = 0; j < kTogether; ++j) {
          float u = key[j][i] + q[a + i];
          if (kCoverage) u = fmaf(covered[j], wc[a + i], u);
          sum[j] = fmaf(v[a + i], field_tanh<T>(u), sum[j]);
        }
    }
#pragma unroll
    for (int j = 0; j < kTogether; ++j) {
      const float score = warp_sum(sum[j]);
      if (lane != j || s + j >= count) continue;
      e[s + j] = score;
      p.scores[place + s + j] = score;
    }
  }
  __syncthreads();
  float top = -INFINITY, sum = 0;
  for (int s = threadIdx.x; s < count; s += kThreads) top = fmaxf(top, e[s]);
  top = block_max(top, reduced);
  for (int s = threadIdx.x; s < count; s += kThreads) {
    e[s] = expf(e[s] - top);
    sum += e[s];
  }
  sum = block_sum(sum, reduced);  // and e is complete
  const int split = b * p.splits + blockIdx.x;
  if (threadIdx.x == 0) {
    p.tops[split] = top;
    p.sums[split] = sum;
  }
  const T* __restrict__ memory = static_cast<const T*>(p.memory) + of_memory * M;
  const int wide = M / kWide, groups = max(1, kThreads / wide);
  for (int unit = threadIdx.x; unit < groups * wide; unit += kThreads) {
    const int group = unit / wide, m = unit % wide * kWide;
    float total[kWide] = {};
#pragma unroll 4
    for (int s = group; s < count; s += groups) {
      float number[kWide];
      load_numbers<T, kWide>(memory + (Int)s * M + m, number);
#pragma unroll
      for (int i = 0; i < kWide; ++i) total[i] = fmaf(e[s], number[i], total[i]);
    }
#pragma unroll
    for (int i = 0; i < kWide; ++i) part[group * M + m + i] = total[i];
  }
  __syncthreads();
  for (int m = threadIdx.x; m < M; m += kThreads) {
    float total = 0;
    for (int group = 0; group < groups; ++group) total += part[group * M + m];
    p.shares[(Int)split * M + m] = total;
  }
}

// Grid: parts of the context and one block for the attention, sequences.
template <typename T>
__global__ void __launch_bounds__(kThreads) join_kernel(const DecoderForward p, int t) {
  __shared__ float factor[kMaxSplits], part[kThreads], reduced[kWarp], top_sum[2];
  const int b = blockIdx.y, places = places_of(p, p.lengths, b);
  const int used = (places + p.slice - 1) / p.slice;
  const Int row = (Int)t * p.B + b;
  if (threadIdx.x < kWarp) {
    const int lane = threadIdx.x;
    const bool mine = lane < used;
    const float own = mine ? p.tops[b * p.splits + lane] : -INFINITY, top = warp_max(own);
    const float shrink = mine ? expf(own - top) : 0.0f;
    const float sum = warp_sum(mine ? shrink * p.sums[b * p.splits + lane] : 0.0f);
    factor[lane] = mine ? shrink / sum : 0.0f;
    if (lane == 0) {
      top_sum[0] = top;
      top_sum[1] = sum;
    }
  }
  __syncthreads();
  if (blockIdx.x + 1 < gridDim.x) {
    const int m = blockIdx.x * kJoinColumns + threadIdx.x % kJoinColumns;
    float sum = 0;
    if (m < p.M)
#pragma unroll 4
      for (int split = threadIdx.x / kJoinColumns; split < used; split += kThreads / kJoinColumns)
        sum = fmaf(factor[split], p.shares[((Int)b * p.splits + split) * p.M + m], sum);
    part[threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.x >= kJoinColumns || m >= p.M) return;
    float context = 0;
    for (int i = threadIdx.x; i < kThreads; i += kJoinColumns) context += part[i];
    put<T>(p.context, row * p.M + m, context);
    const Int chunk = (t + 1) % 2 * p.chunks + b / p.rows;
    p.state[(chunk * (p.H + p.M) + p.H + m) * p.rows + b % p.rows] = context;
    return;
  }
  float overlap = 0;
  for (int s = threadIdx.x; s < p.S; s += kThreads) {
    const Int place = (Int)b * p.S + s;
    const float a = s < places ? expf(p.scores[place] - top_sum[0]) / top_sum[1] : 0.0f;
    p.attention[row * p.S + s] = a;
    if (!p.coverage) continue;
    const float covered = p.covered[place];
    overlap += fminf(a, covered);
    p.covered[place] = covered + a;
  }
  if (!p.coverage) return;
  overlap = block_sum(overlap, reduced);
  if (threadIdx.x == 0) p.overlap[row] = overlap;
}

int attend_shared_bytes(const DecoderShape& s, int wide) {
  return 4 * (std::max(kThreads * wide, s.M) + 3 * s.A + s.slice);
}

template <typename T, int kRows>
void forward(const DecoderForward& p, cudaStream_t stream) {
  const int depth = p.H + p.M, wide = in_packs<T>(p) ? Pack<T>::kCount : 1;
  pack<T, PanelOrder::gates>(p.w, p.w_panels, depth, 4 * int64_t{p.H}, stream);
  pack<T, PanelOrder::columns>(p.wq, p.wq_panels, p.H, p.A, stream);
  const int64_t states = int64_t{p.chunks} * depth * kRows, places = int64_t{p.B} * p.S;
  start_kernel<<<blocks(std::max(states, places), kThreads), kThreads, 0, stream>>>(p);
  const auto chunks = static_cast<unsigned>(p.chunks), rows = static_cast<unsigned>(p.B);
  const dim3 gates(blocks(p.H, 2), chunks), queries(blocks(p.A, kColumns), chunks),
      slices(static_cast<unsigned>(p.splits), rows), join(blocks(p.M, kJoinColumns) + 1, rows);
  const auto attend = wide > 1
                          ? (p.coverage ? attend_kernel<T, Pack<T>::kCount, true>
                                        : attend_kernel<T, Pack<T>::kCount, false>)
                          : (p.coverage ? attend_kernel<T, 1, true> : attend_kernel<T, 1, false>);
  for (int t = 0; t < p.T; ++t) {
    gates_kernel<T, kRows>
        <<<gates, kThreads, product_shared_bytes(kRows, depth, sizeof(T)), stream>>>(p, t);
    query_kernel<T, kRows>
        <<<queries, kThreads, product_shared_bytes(kRows, p.H, sizeof(T)), stream>>>(p, t);
    attend<<<slices, kThreads, attend_shared_bytes(p, wide), stream>>>(p);
    join_kernel<T><<<join, kThreads, 0, stream>>>(p, t);
  }
}

}  // namespace

void cut_decoder(DecoderShape& s) {
  s.rows = s.B > kFewRows ? kManyRows : kFewRows;
  s.chunks = (s.B + s.rows - 1) / s.rows;
  const int most = std::clamp(kBlocks / std::max(1, s.B), 1, kMaxSplits);
  s.slice = std::max(kWarps, (s.S + most - 1) / most);
  s.splits = std::max(1, (s.S + s.slice - 1) / s.slice);
}

int64_t decoder_panel_numbers(int64_t depth, int64_t columns) {
  return pieces(columns, kColumns) * depth * kColumns;
}
int64_t decoder_gate_panel_numbers(const DecoderShape& s) {
  return pieces(s.H, 2) * (s.H + s.M) * kColumns;
}

int64_t decoder_shared_bytes(const DecoderShape& s) {
  return attend_shared_bytes(s, static_cast<int>(16 / dtype_bytes(s.dtype)));
}

cudaError_t allow_decoder(DType dtype) {
  return with_type(dtype, []<typename T>(T*) {
    constexpr int kWide = Pack<T>::kCount;
    return allow_shared({address(gates_kernel<T, kFewRows>), address(gates_kernel<T, kManyRows>),
                         address(query_kernel<T, kFewRows>), address(query_kernel<T, kManyRows>),
                         address(attend_kernel<T, 1, false>), address(attend_kernel<T, 1, true>),
                         address(attend_kernel<T, kWide, false>),
                         address(attend_kernel<T, kWide, true>)});
  });
}

void launch_decoder(const DecoderForward& p, cudaStream_t stream) {
  with_type(p.dtype, [&]<typename T>(T*) {
    p.rows == kFewRows ? forward<T, kFewRows>(p, stream) : forward<T, kManyRows>(p, stream);
  });
}

}  // namespace millrace::cuda
