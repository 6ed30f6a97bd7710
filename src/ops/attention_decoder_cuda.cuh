// Device code that attention_decoder and its gradient share. Products of the few rows of a batch
// with a matrix that stays in the second-level cache: a block has 8 columns, for which the matrix
// is brought into its order beforehand. Attention: a block has a slice of a sequence's places.
#pragma once
#include <algorithm>
#include <initializer_list>

#include "cuda/async_copy.cuh"
#include "cuda/device.cuh"
#include "cuda/with_type.cuh"
#include "ops/attention_decoder_cuda.h"

namespace millrace::cuda::decoder {

constexpr int kThreads = 256, kWarps = kThreads / kWarp;
constexpr int kColumns = 8;                  // of a panel
constexpr int kDepth = 1024;                 // of a product that is in shared memory at a time
constexpr int kManyRows = 16, kFewRows = 4;  // of a product
constexpr int kTogether = 4;                 // places that a warp takes at a time

template <typename T>
__device__ __forceinline__ void put(const DecoderResult& to, Int at, float number) {
  if (to.full)
    static_cast<float*>(to.data)[at] = number;
  else
    static_cast<T*>(to.data)[at] = from_float<T>(number);
}

// Most of the time goes here. For halves exp and a quotient, both fast, exact to about 1e-7:
// tanh.approx would be half the work, but its 2^-11 is too coarse for 1 - tanh^2 and grows from
// step to step.
template <typename T>
__device__ __forceinline__ float field_tanh(float x) {
  return 1.0f - __fdividef(2.0f, 1.0f + __expf(2.0f * x));
}
template <>
__device__ __forceinline__ float field_tanh<float>(float x) {
  return tanhf(x);
}

// tanh and its slope, without what 1 - tanh^2 loses: with r = 1 / (1 + e^2|x|) they are 1 - 2 r,
// with the sign of x, and 4 r (1 - r).
struct Squashed {
  float y, slope;
};
template <typename T>
__device__ __forceinline__ Squashed squash(float x) {
  const float r = __fdividef(1.0f, 1.0f + __expf(2.0f * fabsf(x)));
  return {copysignf(1.0f - 2.0f * r, x), 4.0f * r * (1.0f - r)};
}
template <>
__device__ __forceinline__ Squashed squash<float>(float x) {
  const float r = 1.0f / (1.0f + expf(2.0f * fabsf(x)));
  return {copysignf(1.0f - 2.0f * r, x), 4.0f * r * (1.0f - r)};
}

// kWide numbers that stand together: a pack, or one where sizes are no multiples of that.
template <typename T, int kWide>
__device__ __forceinline__ void load_numbers(const T* from, float (&to)[kWide]) {
  if constexpr (kWide == 1) {
    to[0] = to_float(*from);
  } else {
    const Pack<T> pack = load_pack(from);
#pragma unroll
    for (int i = 0; i < kWide; ++i) to[i] = pack.value[i];
  }
}

__device__ __forceinline__ int places_of(const DecoderShape& s, const int* lengths, int b) {
  return min(max(lengths[b / s.beams], 0), s.S);
}

// --- products of a few rows

// What a panel's column is a column of.
enum class PanelOrder {
  columns,     // 8 columns of [depth, columns]
  transposed,  // 8 rows of [columns, depth]
  gates,       // the four gates of two units, of [depth, 4 units]
};

template <typename T, PanelOrder kOrder>
__global__ void __launch_bounds__(kThreads)
    pack_kernel(const T* from, T* to, int depth, int columns, Int numbers) {
  const Int at = (Int)blockIdx.x * kThreads + threadIdx.x;
  if (at >= numbers) return;
  const int c = at % kColumns, k = at / kColumns % depth, panel = at / kColumns / depth;
  T number = from_float<T>(0.0f);
  if constexpr (kOrder == PanelOrder::gates) {
    const int units = columns / 4, unit = panel * 2 + c / 4;
    if (unit < units) number = from[(Int)k * columns + c % 4 * units + unit];
  } else {
    const int column = panel * kColumns + c;
    if (column < columns)
      number = kOrder == PanelOrder::columns ? from[(Int)k * columns + column]
                                             : from[(Int)column * depth + k];
  }
  to[at] = number;
}

__device__ __forceinline__ void copy_by_block(void* shared, const void* from, int bytes) {
  for (int at = 16 * threadIdx.x; at < bytes; at += 16 * kThreads)
    copy_async<16>(static_cast<char*>(shared) + at, static_cast<const char*>(from) + at);
}
__device__ __forceinline__ void wait_for_block() {
  wait_all_copies();
  __syncthreads();
}

__device__ __forceinline__ float2 two_numbers(const float* from) {
  return *reinterpret_cast<const float2*>(from);
}
__device__ __forceinline__ float2 two_numbers(const __nv_bfloat16* from) {
  return __bfloat1622float2(*reinterpret_cast<const __nv_bfloat162*>(from));
}
__device__ __forceinline__ float2 two_numbers(const __half* from) {
  return __half22float2(*reinterpret_cast<const __half2*>(from));
}

// The row and the column of the product that a thread gets; the first 8 kRows threads get one.
template <int kRows>
struct Mine {
  int row = threadIdx.x / kColumns % (kRows / 4) * 4 + threadIdx.x / (2 * kRows);
  int column = threadIdx.x % kColumns;
  bool any = threadIdx.x < kColumns * kRows;
};

// The sum over k of state[k][row] panel[k][column]. A thread adds up every kSlices-th k for 4 rows
// and 2 columns.
template <typename T, int kRows>
__device__ float panel_product(const float* state, const T* panel, int depth, char* shared) {
  constexpr int kQuads = kRows / 4, kSlices = kThreads / (4 * kQuads);
  const int pair = threadIdx.x % 4, quad = threadIdx.x / 4 % kQuads,
            slice = threadIdx.x / (4 * kQuads);
  float2 sum[4] = {};
  for (int k0 = 0; k0 < depth; k0 += kDepth) {
    const int n = min(kDepth, depth - k0), state_bytes = n * kRows * (int)sizeof(float);
    const float4* rows = reinterpret_cast<const float4*>(shared);
    const T* columns = reinterpret_cast<const T*>(shared + state_bytes);
    copy_by_block(shared, state + (Int)k0 * kRows, state_bytes);
    copy_by_block(shared + state_bytes, panel + (Int)k0 * kColumns, n * kColumns * (int)sizeof(T));
    wait_for_block();
#pragma unroll 4
    for (int k = slice; k < n; k += kSlices) {
      const float4 left = rows[k * kQuads + quad];
      const float2 right = two_numbers(columns + k * kColumns + 2 * pair);
      const float four[4] = {left.x, left.y, left.z, left.w};
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        sum[i].x = fmaf(four[i], right.x, sum[i].x);
        sum[i].y = fmaf(four[i], right.y, sum[i].y);
      }
    }
    __syncthreads();
  }
  // [slice][i][quad][column]
  float2* sums = reinterpret_cast<float2*>(shared);
#pragma unroll
  for (int i = 0; i < 4; ++i) sums[((slice * 4 + i) * kQuads + quad) * 4 + pair] = sum[i];
  __syncthreads();
  float total = 0;
  if (threadIdx.x < kColumns * kRows)
#pragma unroll 8
    for (int i = 0; i < kSlices; ++i)
      total += reinterpret_cast<const float*>(shared)[i * kColumns * kRows + threadIdx.x];
  return total;
}

// --- launches

inline int64_t pieces(int64_t n, int64_t size) { return (n + size - 1) / size; }
inline unsigned blocks(int64_t n, int64_t size) { return static_cast<unsigned>(pieces(n, size)); }

inline int product_shared_bytes(int rows, int depth, int64_t number_bytes) {
  const int64_t inside = std::min(depth, kDepth) * (rows * 4 + kColumns * number_bytes);
  return static_cast<int>(std::max<int64_t>(inside, kThreads * 8 * sizeof(float)));
}

template <typename T, PanelOrder kOrder>
void pack(const void* from, void* to, int64_t depth, int64_t columns, cudaStream_t stream) {
  const int64_t numbers = kOrder == PanelOrder::gates ? pieces(columns / 4, 2) * depth * kColumns
                                                      : decoder_panel_numbers(depth, columns);
  pack_kernel<T, kOrder><<<blocks(numbers, kThreads), kThreads, 0, stream>>>(
      static_cast<const T*>(from), static_cast<T*>(to), static_cast<int>(depth),
      static_cast<int>(columns), numbers);
}

template <typename T>
bool in_packs(const DecoderShape& s) {
  return s.A % Pack<T>::kCount == 0 && s.M % Pack<T>::kCount == 0;
}

// Lets kernels have as much shared memory as they may ask for.
inline cudaError_t allow_shared(std::initializer_list<const void*> kernels) {
  for (const void* kernel : kernels) {
    const cudaError_t status = cudaFuncSetAttribute(
        kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kDecoderMaxShared);
    if (status != cudaSuccess) return status;
  }
  return cudaSuccess;
}
template <typename Kernel>
const void* address(Kernel* kernel) {
  return reinterpret_cast<const void*>(kernel);
}

}  // namespace millrace::cuda::decoder
