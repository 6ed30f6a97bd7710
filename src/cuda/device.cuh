// What device code shares. No header is needed besides the 16-bit types: this text is also given to
// NVRTC, which knows no standard library.
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>

namespace millrace::cuda {

using Int = long long;

constexpr int kWarp = 32;
constexpr unsigned kAllLanes = 0xffffffffu;

// --- numbers: stored as float, __nv_bfloat16 or __half, computed with as float

__device__ __forceinline__ float to_float(float x) { return x; }
__device__ __forceinline__ float to_float(__nv_bfloat16 x) { return __bfloat162float(x); }
__device__ __forceinline__ float to_float(__half x) { return __half2float(x); }
template <typename T>
__device__ __forceinline__ T from_float(float x);
template <>
__device__ __forceinline__ float from_float<float>(float x) {
  return x;
}
template <>
__device__ __forceinline__ __nv_bfloat16 from_float<__nv_bfloat16>(float x) {
  return __float2bfloat16_rn(x);
}
template <>
__device__ __forceinline__ __half from_float<__half>(float x) {
  return __float2half_rn(x);
}

// --- 16 bytes at a time. `p` must be aligned to 16 bytes: buffers of a plan are (to 64).

// Two neighbours in a word, the first in its low half: an instruction each, or one for both, where
// the compiler takes halves apart and puts them together one by one.
template <typename T>
__device__ __forceinline__ float2 floats_of(unsigned word);
template <>
__device__ __forceinline__ float2 floats_of<__nv_bfloat16>(unsigned word) {
  return make_float2(__uint_as_float(word << 16), __uint_as_float(word & 0xffff0000u));
}
template <>
__device__ __forceinline__ float2 floats_of<__half>(unsigned word) {
  float2 two;
  asm("{ .reg .b16 low, high; mov.b32 {low, high}, %2; cvt.f32.f16 %0, low; cvt.f32.f16 %1, high; }"
      : "=f"(two.x), "=f"(two.y)
      : "r"(word));
  return two;
}
template <typename T>
__device__ __forceinline__ unsigned word_of(float low, float high);
template <>
__device__ __forceinline__ unsigned word_of<__nv_bfloat16>(float low, float high) {
  unsigned word;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
  return word;
}
template <>
__device__ __forceinline__ unsigned word_of<__half>(float low, float high) {
  unsigned word;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
  return word;
}
template <typename T>
__device__ __forceinline__ void unpack(const uint4& bits, float (&value)[16 / sizeof(T)]) {
  const unsigned word[4] = {bits.x, bits.y, bits.z, bits.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if constexpr (sizeof(T) == 4) {
      value[i] = __uint_as_float(word[i]);
    } else {
      const float2 two = floats_of<T>(word[i]);
      value[2 * i] = two.x;
      value[2 * i + 1] = two.y;
    }
  }
}
template <typename T>
__device__ __forceinline__ uint4 packed(const float (&value)[16 / sizeof(T)]) {
  unsigned word[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if constexpr (sizeof(T) == 4)
      word[i] = __float_as_uint(value[i]);
    else
      word[i] = word_of<T>(value[2 * i], value[2 * i + 1]);
  }
  return make_uint4(word[0], word[1], word[2], word[3]);
}

template <typename T>
struct Pack {
  static constexpr int kCount = 16 / sizeof(T);
  float value[kCount];
};
template <typename T>
__device__ __forceinline__ Pack<T> load_pack(const T* p) {
  Pack<T> pack;
  unpack<T>(*reinterpret_cast<const uint4*>(p), pack.value);
  return pack;
}
template <typename T>
__device__ __forceinline__ void store_pack(T* p, const Pack<T>& pack) {
  *reinterpret_cast<uint4*>(p) = packed<T>(pack.value);
}

// --- exponentials of differences of numbers that are stored as T: for halves by the quick
// instruction, whose relative error |x| 2^-24 + 2^-22 is far below theirs

constexpr float kLog2OfE = 1.4426950408889634f;

__device__ __forceinline__ float quick_exp2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
template <typename T>
__device__ __forceinline__ float exp_for(float x) {
  if constexpr (sizeof(T) == 4)
    return expf(x);
  else
    return quick_exp2(x * kLog2OfE);
}
// e^(x - from) for many x: two instructions each.
template <typename T>
class ExpFrom {
 public:
  __device__ __forceinline__ explicit ExpFrom(float from)
      : from_(sizeof(T) == 4 ? from : from * kLog2OfE) {}
  __device__ __forceinline__ float operator()(float x) const {
    if constexpr (sizeof(T) == 4)
      return expf(x - from_);
    else
      return quick_exp2(fmaf(x, kLog2OfE, -from_));
  }

 private:
  float from_;
};

// --- sums in a fixed order: the same bits every time

// Over groups of `kLanes` neighbours, a power of two.
template <int kLanes = kWarp>
__device__ __forceinline__ float warp_sum(float x) {
#pragma unroll
  for (int step = kLanes / 2; step > 0; step /= 2) x += __shfl_xor_sync(kAllLanes, x, step);
  return x;
}
template <int kLanes = kWarp>
__device__ __forceinline__ float warp_max(float x) {
#pragma unroll
  for (int step = kLanes / 2; step > 0; step /= 2)
    x = fmaxf(x, __shfl_xor_sync(kAllLanes, x, step));
  return x;
}
// Over all threads of a block of whole warps; every thread gets the result. `shared` has room for
// 32 floats and may be used again after the call.
__device__ __forceinline__ float block_sum(float x, float* shared) {
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp, warps = blockDim.x / kWarp;
  x = warp_sum(x);
  if (warps == 1) return x;
  if (lane == 0) shared[warp] = x;
  __syncthreads();
  x = warp_sum(lane < warps ? shared[lane] : 0.0f);
  __syncthreads();
  return x;
}
__device__ __forceinline__ float block_max(float x, float* shared) {
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp, warps = blockDim.x / kWarp;
  x = warp_max(x);
  if (warps == 1) return x;
  if (lane == 0) shared[warp] = x;
  __syncthreads();
  x = warp_max(lane < warps ? shared[lane] : -INFINITY);
  __syncthreads();
  return x;
}

// --- random numbers: Philox4x32-10 and the dropout draws of graph/scalar_functions.h, bit for bit

struct PhiloxBlock {
  unsigned word[4];
};
__device__ __forceinline__ PhiloxBlock philox(unsigned long long key, unsigned c0, unsigned c1,
                                              unsigned c2, unsigned c3) {
  unsigned k0 = (unsigned)key, k1 = (unsigned)(key >> 32);
#pragma unroll
  for (int round = 0; round < 10; ++round) {
    const unsigned high0 = __umulhi(0xD2511F53u, c0), low0 = 0xD2511F53u * c0;
    const unsigned high1 = __umulhi(0xCD9E8D57u, c2), low1 = 0xCD9E8D57u * c2;
    c0 = high1 ^ c1 ^ k0;
    c1 = low1;
    c2 = high0 ^ c3 ^ k1;
    c3 = low0;
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return {{c0, c1, c2, c3}};
}
constexpr unsigned kDropoutUse = 5;  // RandomUse::dropout

// The draws of elements 8 block … 8 block + 7: two to a word, the low half first.
__device__ __forceinline__ PhiloxBlock keep_block(const int* key, Int stream, Int block) {
  const unsigned long long seed = (unsigned)key[0] | (unsigned long long)(unsigned)key[1] << 32;
  return philox(seed ^ ((unsigned long long)(unsigned)key[3] << 40), (unsigned)block,
                (unsigned)(block >> 32) ^ kDropoutUse << 24, (unsigned)stream, (unsigned)key[2]);
}
__device__ __forceinline__ bool keep_in_block(const PhiloxBlock& block, int element,
                                              unsigned threshold) {
  const unsigned word = block.word[(element & 7) >> 1];
  return (element & 1 ? word >> 16 : word & 0xffffu) >= threshold;
}

// --- the functions of graph/function_list.inc, by name

__device__ __forceinline__ float fn_add(float x, float y) { return x + y; }
__device__ __forceinline__ float fn_sub(float x, float y) { return x - y; }
__device__ __forceinline__ float fn_mul(float x, float y) { return x * y; }
__device__ __forceinline__ float fn_div(float x, float y) { return x / y; }
// NaN goes through max, min and relu, whichever side it is on.
__device__ __forceinline__ float fn_max(float x, float y) { return x > y || x != x ? x : y; }
__device__ __forceinline__ float fn_min(float x, float y) { return x < y || x != x ? x : y; }
__device__ __forceinline__ float fn_neg(float x) { return -x; }
__device__ __forceinline__ float fn_exp(float x) { return expf(x); }
__device__ __forceinline__ float fn_log(float x) { return logf(x); }
__device__ __forceinline__ float fn_sqrt(float x) { return sqrtf(x); }
__device__ __forceinline__ float fn_tanh(float x) { return tanhf(x); }
__device__ __forceinline__ float fn_sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }
__device__ __forceinline__ float fn_step(float x) { return x > 0.0f ? 1.0f : 0.0f; }
__device__ __forceinline__ float fn_relu(float x) { return x < 0.0f ? 0.0f : x; }
__device__ __forceinline__ float fn_silu(float x) { return x * fn_sigmoid(x); }
__device__ __forceinline__ float fn_silu_grad(float x) {
  const float s = fn_sigmoid(x);
  return s * (1.0f + x * (1.0f - s));
}
__device__ __forceinline__ float fn_gelu(float x) {
  return 0.5f * x * (1.0f + erff(x * 0.70710678118654752440f));
}
__device__ __forceinline__ float fn_gelu_grad(float x) {
  return 0.5f * (1.0f + erff(x * 0.70710678118654752440f)) +
         x * 0.39894228040143267794f * expf(-0.5f * x * x);
}
__device__ __forceinline__ float fn_gelu_tanh(float x) {
  const float t = tanhf(0.79788456080286535588f * (x + 0.044715f * x * x * x));
  return 0.5f * x * (1.0f + t);
}
__device__ __forceinline__ float fn_gelu_tanh_grad(float x) {
  const float t = tanhf(0.79788456080286535588f * (x + 0.044715f * x * x * x));
  return 0.5f * (1.0f + t) +
         0.5f * x * (1.0f - t * t) * 0.79788456080286535588f * (1.0f + 0.134145f * x * x);
}

}  // namespace millrace::cuda
