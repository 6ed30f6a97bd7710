// Rows of scores in whole vectors, for the softmax inside attention: maximum, exponential, sum and
// what is masked. Everything is in namespace MR_ISA: each instruction set gets its own copy.
#pragma once
#include <immintrin.h>

#include <bit>
#include <cstdint>
#include <limits>

#include "cpu/small_gemm.h"
#include "cpu/vector_math.h"

namespace millrace::cpu::MR_ISA {

typedef int32_t Integers __attribute__((vector_size(sizeof(Lanes))));
constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

// Folds the lanes of a vector into one value: halves, quarters, ...
template <typename F>
inline float across(Lanes v, const F& fold) {
  Integers lane;
  for (int l = 0; l < kLanes; ++l) lane[l] = l;
#pragma GCC unroll 4
  for (int half = kLanes / 2; half > 0; half /= 2) v = fold(v, __builtin_shuffle(v, lane ^ half));
  return v[0];
}

// The row functions work on whole vectors: n is a multiple of kLanes.
inline float row_max(const float* x, int64_t n, float start) {
  auto greater = [](Lanes a, Lanes b) { return a > b ? a : b; };
  Lanes top = Lanes{} + start;
  for (int64_t j = 0; j < n; j += kLanes) top = greater(load<Lanes>(x + j), top);
  return across(top, greater);
}

// Scores from n on to the end of their vector are no keys: -inf. n > 0.
inline void mask_tail(float* x, int64_t n) {
  Lanes lane;
  for (int64_t l = 0; l < kLanes; ++l) lane[l] = static_cast<float>(l);
  float* last = x + (n - 1) / kLanes * kLanes;
  const Lanes here = load<Lanes>(last);
  store(last, lane < static_cast<float>(n - (last - x)) ? here : Lanes{} + kMinusInfinity);
}

// 1 / x to an ulp, and x 2^n for whole n from -126 to 127.
inline float reciprocal(float x) { return 1.0f / x; }
inline float times_power(float x, float n) {
  // The low bits of the sum are the integer n.
  return x *
         std::bit_cast<float>((std::bit_cast<int32_t>(n + 12582912.0f) + (127 - 0x4B400000)) << 23);
}
#if defined(__AVX512F__)
inline Lanes reciprocal(Lanes x) {
  // 14 bits, which a step of Newton's doubles. (Forms with a mask: GCC 12 warns of the others.)
  const Lanes near = _mm512_maskz_rcp14_ps(0xffff, x);
  return near + near * (1.0f - x * near);
}
inline Lanes times_power(Lanes x, Lanes n) { return _mm512_maskz_scalef_ps(0xffff, x, n); }
#else
inline Lanes reciprocal(Lanes x) { return 1.0f / x; }
inline Lanes times_power(Lanes x, Lanes n) {
  return x * std::bit_cast<Lanes>((__builtin_convertvector(n, Integers) + 127) << 23);
}
#endif

inline Lanes exp_lanes(Lanes x) { return exp_of<Lanes, Integers>(x); }

// x = e^(x - top), returns the sum.
inline float row_exp(float* x, int64_t n, float top) {
  Lanes sums{};
  for (int64_t j = 0; j < n; j += kLanes) {
    const Lanes here = exp_lanes(load<Lanes>(x + j) - top);
    store(x + j, here);
    sums += here;
  }
  return across(sums, [](Lanes a, Lanes b) { return a + b; });
}

inline void multiply_row(float* x, int64_t n, float factor) {
  for (int64_t j = 0; j < n; j += kLanes) store(x + j, factor * load<Lanes>(x + j));
}
inline void multiply_row(float* x, int64_t n, const float* factor) {
  for (int64_t j = 0; j < n; j += kLanes)
    store(x + j, load<Lanes>(factor + j) * load<Lanes>(x + j));
}

}  // namespace millrace::cpu::MR_ISA
