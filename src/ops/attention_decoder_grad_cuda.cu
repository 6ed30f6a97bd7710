// The gradient of attention_decoder: five launches for every step, which do what is sequential, and
// one pass over all steps for the gradients of the keys and of what they are weighed with. tanh is
// computed again in both: kept for all steps it would fill the memory.
#include "ops/attention_decoder_cuda.cuh"

namespace millrace::cuda {
namespace {

using namespace decoder;

// Of the pass over all steps.
constexpr int kKeyThreads = 128, kKeyPlaces = 8, kKeySteps = 32;

__global__ void __launch_bounds__(kThreads) cover_kernel(const DecoderBackward p) {
  const Int places = (Int)p.B * p.S, at = (Int)blockIdx.x * kThreads + threadIdx.x;
  if (at >= places) return;
  float covered = 0;
  p.dcovered[at] = 0;
  for (int t = 0; t < p.T; ++t) {
    p.covered[t * places + at] = covered;
    covered += p.attention[t * places + at];
  }
}

// h and context of the step before, next to each other; and the attention, sequence by sequence.
template <typename T>
__global__ void __launch_bounds__(kThreads) copies_kernel(const DecoderBackward p) {
  const Int at = (Int)blockIdx.x * kThreads + threadIdx.x;
  const int wide = p.H + p.M;
  if (at < (Int)p.T * p.B * wide) {
    const int k = at % wide, b = at / wide % p.B;
    const Int row = at / wide - p.B;  // of the step before
    float number = 0;
    if (row < 0)
      number = k < p.H ? p.h0[(Int)b * p.H + k] : 0.0f;
    else
      number = k < p.H ? to_float(static_cast<const T*>(p.h)[row * p.H + k])
                       : to_float(static_cast<const T*>(p.context)[row * p.M + k - p.H]);
    static_cast<T*>(p.before)[at] = from_float<T>(number);
  }
  if (at < (Int)p.T * p.B * p.S) {
    const int s = at % p.S, b = at / p.S % p.B, t = at / p.S / p.B;
    static_cast<T*>(p.attention_copy)[((Int)b * p.T + t) * p.S + s] =
        from_float<T>(p.attention[at]);
  }
}

// Grid: panels of h and context, chunks of rows. What step t + 1 asks of h and the context of step
// t, and what is asked from outside. Step -1 is that of h0, which has no context.
template <typename T, int kRows>
__global__ void __launch_bounds__(kThreads) next_kernel(const DecoderBackward p, int t) {
  extern __shared__ float4 shared[];
  const Mine<kRows> mine;
  const int b = blockIdx.y * kRows + mine.row, n = blockIdx.x * kColumns + mine.column, m = n - p.H;
  const bool real = mine.any && b < p.B && n < p.H + p.M;
  const Int row = (Int)t * p.B + b;
  float given = 0;
  if (real && t >= 0 && m < 0 && p.dh_given) given = p.dh_given[row * p.H + n];
  if (real && t >= 0 && m >= 0 && p.dcontext_given) given = p.dcontext_given[row * p.M + m];
  const int depth = t + 1 < p.T ? 4 * p.H : 0;
  const float number = given + panel_product<T, kRows>(p.dz + (Int)blockIdx.y * 4 * p.H * kRows,
                                                       static_cast<const T*>(p.w_panels) +
                                                           (Int)blockIdx.x * 4 * p.H * kColumns,
                                                       depth, reinterpret_cast<char*>(shared));
  if (!real) return;
  if (m < 0) {
    (t < 0 ? p.dh0 : p.dh)[(Int)b * p.H + n] = number;
  } else if (t >= 0) {
    p.dcontext[(Int)b * p.M + m] = number;
    static_cast<T*>(p.dcontext_all)[((Int)b * p.T + t) * p.M + m] = from_float<T>(number);
  }
}

// Grid: splits, sequences. The gradient of the attention, before the softmax.
template <typename T, int kWide>
__global__ void __launch_bounds__(kThreads) weights_kernel(const DecoderBackward p, int t) {
  extern __shared__ float4 shared[];
  __shared__ float reduced[kWarp];
  const int b = blockIdx.y, first = blockIdx.x * p.slice, M = p.M;
  const int count = min(places_of(p, p.lengths, b) - first, p.slice);
  if (count <= 0) return;
  float* const dcontext = reinterpret_cast<float*>(shared);  // [M]
  for (int m = threadIdx.x; m < M; m += kThreads) dcontext[m] = p.dcontext[(Int)b * M + m];
  __syncthreads();
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const Int place = (Int)b * p.S + first, step = ((Int)t * p.B + b) * p.S + first;
  const T* __restrict__ memory = static_cast<const T*>(p.memory) + place * M;
  float dot = 0;
  for (int s = warp * kTogether; s < count; s += kWarps * kTogether) {
    float sum[kTogether] = {};
    for (int m = lane * kWide; m < M; m += kWarp * kWide) {
      float number[kTogether][kWide] = {};
#pragma unroll
      for (int j = 0; j < kTogether; ++j)
        if (s + j < count) load_numbers<T, kWide>(memory + (Int)(s + j) * M + m, number[j]);
#pragma unroll
      for (int i = 0; i < kWide; ++i)
#pragma unroll
        for (int j = 0; j < kTogether; ++j) sum[j] = fmaf(number[j][i], dcontext[m + i], sum[j]);
    }
    float own = 0;
#pragma unroll
    for (int j = 0; j < kTogether; ++j) {
      const float all = warp_sum(sum[j]);
      if (lane == j) own = all;
    }
    const int mine = s + lane;  // a lane to each place
    if (lane >= kTogether || mine >= count) continue;
    const float a = p.attention[step + mine];
    if (p.da_given) own += p.da_given[step + mine];
    if (p.coverage) own += p.dcovered[place + mine];
    if (p.doverlap && a < p.covered[step + mine]) own += p.doverlap[(Int)t * p.B + b];
    p.da[place + mine] = own;
    dot = fmaf(a, own, dot);
  }
  __syncwarp();
  dot = block_sum(dot, reduced);
  if (threadIdx.x == 0) p.dots[b * p.splits + blockIdx.x] = dot;
}

// Grid: splits, sequences. Through the softmax to the scores, then through tanh, computed again, to
// a share of dq and to the coverage.
template <typename T, int kWide, bool kCoverage>
__global__ void __launch_bounds__(kThreads) scores_kernel(const DecoderBackward p, int t) {
  extern __shared__ float4 shared[];
  const int b = blockIdx.y, first = blockIdx.x * p.slice, A = p.A;
  const int places = places_of(p, p.lengths, b), count = min(places - first, p.slice);
  if (count <= 0) return;
  const int used = (places + p.slice - 1) / p.slice;
  float* const part = reinterpret_cast<float*>(shared);  // [kWarps][kWarp * kWide]
  float* const de = part + kThreads * kWide;             // [slice]
  float *const covered = de + p.slice, *const dcovered = covered + p.slice;
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const Int row = (Int)t * p.B + b, place = (Int)b * p.S + first, step = row * p.S + first;
  const float dot = warp_sum(lane < used ? p.dots[b * p.splits + lane] : 0.0f);
  for (int s = threadIdx.x; s < count; s += kThreads) {
    const float a = p.attention[step + s];
    de[s] = a * (p.da[place + s] - dot);
    p.de[step + s] = de[s];
    if (!kCoverage) continue;
    covered[s] = p.covered[step + s];
    dcovered[s] = p.doverlap && !(a < covered[s]) ? p.doverlap[row] : 0.0f;
  }
  __syncthreads();
  const T* __restrict__ keys = static_cast<const T*>(p.keys) + place * A;
  for (int a0 = 0; a0 < A; a0 += kWarp * kWide) {
    const int a = a0 + lane * kWide;
    const bool real = a < A;
    float q[kWide], v[kWide], wc[kWide], sum[kWide] = {};
#pragma unroll
    for (int i = 0; i < kWide; ++i) {
      q[i] = real ? p.q[row * A + a + i] : 0.0f;
      v[i] = real ? p.v[a + i] : 0.0f;
      wc[i] = real && kCoverage ? p.wc[a + i] : 0.0f;
    }
#pragma unroll 2
    for (int s = warp; s < count; s += kWarps) {
      float key[kWide] = {}, asked = 0;
      if (real) load_numbers<T, kWide>(keys + (Int)s * A + a, key);
      const float d = de[s], cover = kCoverage ? covered[s] : 0.0f;
#pragma unroll
      for (int i = 0; i < kWide; ++i) {
        float u = key[i] + q[i];
        if (kCoverage) u = fmaf(cover, wc[i], u);
        const float du = d * v[i] * squash<T>(u).slope;
        sum[i] += du;
        if (kCoverage) asked = fmaf(du, wc[i], asked);
      }
      if (!kCoverage) continue;
      asked = warp_sum(asked);
      if (lane == 0) dcovered[s] += asked;  // a place is one warp's alone
    }
#pragma unroll
    for (int i = 0; i < kWide; ++i) part[(warp * kWarp + lane) * kWide + i] = sum[i];
    __syncthreads();
    for (int n = threadIdx.x; n < kWarp * kWide; n += kThreads) {
      float total = 0;
#pragma unroll
      for (int w = 0; w < kWarps; ++w) total += part[w * kWarp * kWide + n];
      if (a0 + n < A) p.shares[((Int)b * p.splits + blockIdx.x) * A + a0 + n] = total;
    }
    __syncthreads();
  }
  if constexpr (kCoverage)
    for (int s = threadIdx.x; s < count; s += kThreads) p.dcovered[place + s] += dcovered[s];
}

// Grid: columns of dq, sequences.
template <typename T>
__global__ void __launch_bounds__(kThreads) query_sum_kernel(const DecoderBackward p, int t) {
  const int a = blockIdx.x * kThreads + threadIdx.x, b = blockIdx.y;
  if (a >= p.A) return;
  const int used = (places_of(p, p.lengths, b) + p.slice - 1) / p.slice;
  const float* shares = p.shares + (Int)b * p.splits * p.A + a;
  float sum = 0;
#pragma unroll 8
  for (int split = 0; split < used; ++split) sum += shares[(Int)split * p.A];
  p.dq[((Int)(b / p.rows) * p.A + a) * p.rows + b % p.rows] = sum;
  static_cast<T*>(p.dq_all)[((Int)t * p.B + b) * p.A + a] = from_float<T>(sum);
}

// Grid: panels of units, chunks of rows. The query's part of dh, then through the cell to dz. dc is
// kept where dc0 will be.
template <typename T, int kRows>
__global__ void __launch_bounds__(kThreads) cell_kernel(const DecoderBackward p, int t) {
  extern __shared__ float4 shared[];
  const Mine<kRows> mine;
  const int b = blockIdx.y * kRows + mine.row, j = blockIdx.x * kColumns + mine.column, H = p.H;
  const bool real = mine.any && b < p.B && j < H;
  const Int row = (Int)t * p.B + b, at = (Int)b * H + j;
  float gate[4] = {}, y = 0, old = 0, dc = 0, dh = 0;
  if (real) {
    const T* gates = static_cast<const T*>(p.gates) + row * 4 * H + j;
#pragma unroll
    for (int k = 0; k < 4; ++k) gate[k] = to_float(gates[k * H]);
    y = tanhf(p.cells[row * H + j]);
    old = t ? p.cells[(row - p.B) * H + j] : p.c0[at];
    dc = p.dc0[at];
    dh = p.dh[at];
  }
  dh +=
      panel_product<T, kRows>(p.dq + (Int)blockIdx.y * p.A * kRows,
                              static_cast<const T*>(p.wq_panels) + (Int)blockIdx.x * p.A * kColumns,
                              p.A, reinterpret_cast<char*>(shared));
  if (!real) return;
  const float i = gate[0], f = gate[1], g = gate[2], o = gate[3];
  dc = fmaf(dh * o, fmaf(-y, y, 1.0f), dc);
  p.dc0[at] = dc * f;
  const float dz[4] = {dc * g * i * (1.0f - i), dc * old * f * (1.0f - f),
                       dc * i * fmaf(-g, g, 1.0f), dh * y * o * (1.0f - o)};
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    const Int to = row * 4 * H + k * H + j;
    p.dz[((Int)blockIdx.y * 4 * H + k * H + j) * kRows + mine.row] = dz[k];
    put<T>(p.dx, to, dz[k]);
    if (p.dz_all != p.dx.data) static_cast<T*>(p.dz_all)[to] = from_float<T>(dz[k]);
  }
}

// Grid: blocks of places, columns, sequences. dkeys, and shares of dv and dwc, in a pass over all
// steps that keeps its sums.
template <typename T, bool kCoverage>
__global__ void __launch_bounds__(kKeyThreads) keys_kernel(const DecoderBackward p) {
  __shared__ float4 de[kKeySteps][kKeyPlaces / 4], covered[kKeySteps][kKeyPlaces / 4];
  const int b = blockIdx.z, first = blockIdx.x * kKeyPlaces, A = p.A;
  const int a = blockIdx.y * kKeyThreads + threadIdx.x, places = places_of(p, p.lengths, b);
  const bool real = a < A;
  const Int place = (Int)b * p.S + first;
  const float v = real ? p.v[a] : 0.0f, wc = real && kCoverage ? p.wc[a] : 0.0f;
  float key[kKeyPlaces] = {}, dk[kKeyPlaces] = {}, dv = 0, dwc = 0;
  if (real)
#pragma unroll
    for (int s = 0; s < kKeyPlaces; ++s)
      if (first + s < places) key[s] = to_float(static_cast<const T*>(p.keys)[(place + s) * A + a]);
  for (int t0 = 0; first < places && t0 < p.T; t0 += kKeySteps) {
    const int steps = min(kKeySteps, p.T - t0);
    __syncthreads();
    for (int i = threadIdx.x; i < steps * kKeyPlaces; i += kKeyThreads) {
      const int s = first + i % kKeyPlaces;
      const Int at = ((Int)(t0 + i / kKeyPlaces) * p.B + b) * p.S + s;
      reinterpret_cast<float*>(de)[i] = s < places ? p.de[at] : 0.0f;
      if (kCoverage) reinterpret_cast<float*>(covered)[i] = s < places ? p.covered[at] : 0.0f;
    }
    __syncthreads();
    if (!real) continue;
    const float* __restrict__ queries = p.q + ((Int)t0 * p.B + b) * A + a;
#pragma unroll 2
    for (int t = 0; t < steps; ++t) {
      const float q = queries[(Int)t * p.B * A];
#pragma unroll
      for (int four = 0; four < kKeyPlaces / 4; ++four) {
        const float4 d4 = de[t][four], c4 = kCoverage ? covered[t][four] : float4{};
        const float d[4] = {d4.x, d4.y, d4.z, d4.w}, cover[4] = {c4.x, c4.y, c4.z, c4.w};
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          float u = key[4 * four + i] + q;
          if (kCoverage) u = fmaf(cover[i], wc, u);
          const Squashed at = squash<T>(u);
          const float slope = d[i] * at.slope;
          dk[4 * four + i] += slope;
          dv = fmaf(d[i], at.y, dv);
          if (kCoverage) dwc = fmaf(cover[i], slope, dwc);
        }
      }
    }
  }
  if (!real) return;
#pragma unroll
  for (int s = 0; s < kKeyPlaces; ++s)
    if (first + s < p.S) put<T>(p.dkeys, (place + s) * A + a, v * dk[s]);
  const Int share = ((Int)b * gridDim.x + blockIdx.x) * A + a;
  p.dv_shares[share] = dv;
  if (kCoverage) p.dwc_shares[share] = v * dwc;
}

// Grid: 32 columns each. to[column] = the sum over the rows.
__global__ void __launch_bounds__(kThreads)
    column_sums_kernel(const float* __restrict__ from, float* to, Int rows, int columns) {
  __shared__ float part[kThreads];
  const int column = blockIdx.x * kWarp + threadIdx.x % kWarp;
  float sum = 0;
  if (column < columns)
#pragma unroll 8
    for (Int r = threadIdx.x / kWarp; r < rows; r += kWarps) sum += from[r * columns + column];
  part[threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.x >= kWarp || column >= columns) return;
  for (int i = threadIdx.x + kWarp; i < kThreads; i += kWarp) sum += part[i];
  to[column] = sum;
}

int scores_shared_bytes(const DecoderShape& s, int wide) {
  return 4 * (kThreads * wide + 3 * s.slice);
}

template <typename T>
void setup(const DecoderBackward& p, cudaStream_t stream) {
  pack<T, PanelOrder::transposed>(p.w, p.w_panels, 4 * int64_t{p.H}, p.H + p.M, stream);
  pack<T, PanelOrder::transposed>(p.wq, p.wq_panels, p.A, p.H, stream);
  const int64_t rows = int64_t{p.T} * p.B;
  copies_kernel<T><<<blocks(rows * std::max(p.H + p.M, p.S), kThreads), kThreads, 0, stream>>>(p);
  if (p.coverage && p.S > 0)
    cover_kernel<<<blocks(int64_t{p.B} * p.S, kThreads), kThreads, 0, stream>>>(p);
  cudaMemsetAsync(p.dc0, 0, sizeof(float) * static_cast<size_t>(p.B) * static_cast<size_t>(p.H),
                  stream);
}

template <typename T, int kRows>
void steps(const DecoderBackward& p, cudaStream_t stream) {
  const int wide = in_packs<T>(p) ? Pack<T>::kCount : 1;
  const auto chunks = static_cast<unsigned>(p.chunks), rows = static_cast<unsigned>(p.B);
  const dim3 state(blocks(p.H + p.M, kColumns), chunks), units(blocks(p.H, kColumns), chunks),
      slices(static_cast<unsigned>(p.splits), rows), columns(blocks(p.A, kThreads), rows);
  const int next_bytes = product_shared_bytes(kRows, 4 * p.H, sizeof(T)),
            cell_bytes = product_shared_bytes(kRows, p.A, sizeof(T));
  const auto weights = wide > 1 ? weights_kernel<T, Pack<T>::kCount> : weights_kernel<T, 1>;
  const auto scores = wide > 1
                          ? (p.coverage ? scores_kernel<T, Pack<T>::kCount, true>
                                        : scores_kernel<T, Pack<T>::kCount, false>)
                          : (p.coverage ? scores_kernel<T, 1, true> : scores_kernel<T, 1, false>);
  for (int t = p.T - 1; t >= 0; --t) {
    next_kernel<T, kRows><<<state, kThreads, next_bytes, stream>>>(p, t);
    weights<<<slices, kThreads, 4 * p.M, stream>>>(p, t);
    scores<<<slices, kThreads, scores_shared_bytes(p, wide), stream>>>(p, t);
    query_sum_kernel<T><<<columns, kThreads, 0, stream>>>(p, t);
    cell_kernel<T, kRows><<<units, kThreads, cell_bytes, stream>>>(p, t);
  }
  next_kernel<T, kRows><<<units, kThreads, next_bytes, stream>>>(p, -1);
}

template <typename T>
void keys(const DecoderBackward& p, cudaStream_t stream) {
  if (p.S > 0) {
    const dim3 grid(blocks(p.S, kKeyPlaces), blocks(p.A, kKeyThreads), static_cast<unsigned>(p.B));
    const auto kernel = p.coverage ? keys_kernel<T, true> : keys_kernel<T, false>;
    kernel<<<grid, kKeyThreads, 0, stream>>>(p);
  }
  const Int shares = decoder_key_blocks(p);
  column_sums_kernel<<<blocks(p.A, kWarp), kThreads, 0, stream>>>(p.dv_shares, p.dv, shares, p.A);
  if (p.coverage)
    column_sums_kernel<<<blocks(p.A, kWarp), kThreads, 0, stream>>>(p.dwc_shares, p.dwc, shares,
                                                                    p.A);
}

}  // namespace

int64_t decoder_key_blocks(const DecoderShape& s) { return s.B * pieces(s.S, kKeyPlaces); }

int64_t decoder_gradient_shared_bytes(const DecoderShape& s) {
  return std::max(scores_shared_bytes(s, static_cast<int>(16 / dtype_bytes(s.dtype))), 4 * s.M);
}

cudaError_t allow_decoder_gradient(DType dtype) {
  return with_type(dtype, []<typename T>(T*) {
    constexpr int kWide = Pack<T>::kCount;
    return allow_shared({address(next_kernel<T, kFewRows>), address(next_kernel<T, kManyRows>),
                         address(cell_kernel<T, kFewRows>), address(cell_kernel<T, kManyRows>),
                         address(weights_kernel<T, 1>), address(weights_kernel<T, kWide>),
                         address(scores_kernel<T, 1, false>), address(scores_kernel<T, 1, true>),
                         address(scores_kernel<T, kWide, false>),
                         address(scores_kernel<T, kWide, true>)});
  });
}

void launch_decoder_setup(const DecoderBackward& p, cudaStream_t stream) {
  with_type(p.dtype, [&]<typename T>(T*) { setup<T>(p, stream); });
}

void launch_decoder_steps(const DecoderBackward& p, cudaStream_t stream) {
  with_type(p.dtype, [&]<typename T>(T*) {
    p.rows == kFewRows ? steps<T, kFewRows>(p, stream) : steps<T, kManyRows>(p, stream);
  });
}

void launch_decoder_keys(const DecoderBackward& p, cudaStream_t stream) {
  with_type(p.dtype, [&]<typename T>(T*) { keys<T>(p, stream); });
}

}  // namespace millrace::cuda
