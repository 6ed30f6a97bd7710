// The scalar functions of the expression language, written for plainness: the reference that the
// vector forms are tested against. GELU: Hendrycks & Gimpel, arXiv 1606.08415. SiLU: Elfwing et
// al., 1702.03118.
#pragma once
#include <cmath>
#include <cstdint>

#include "core/rng.h"
#include "graph/expression.h"

namespace millrace {

// Dropout: draws are 16 bits wide, eight to a Philox block, so p is honoured to 1/65536. `key` is
// the random key of the step (four 32-bit words: seed low, seed high, step, micro-batch).
inline uint32_t keep_threshold(double p) { return static_cast<uint32_t>(std::lround(p * 65536.0)); }
inline double keep_scale(double p) {
  return 65536.0 / (65536.0 - static_cast<double>(keep_threshold(p)));
}
inline Philox keep_block(const int32_t* key, int64_t stream, int64_t block) {
  const uint64_t seed = static_cast<uint32_t>(key[0]) | uint64_t{static_cast<uint32_t>(key[1])}
                                                            << 32;
  return philox(
      seed ^ (uint64_t{static_cast<uint32_t>(key[3])} << 40),
      {static_cast<uint32_t>(block),
       static_cast<uint32_t>(block >> 32) ^ static_cast<uint32_t>(RandomUse::dropout) << 24,
       static_cast<uint32_t>(stream), static_cast<uint32_t>(key[2])});
}
inline bool keep_element(const int32_t* key, int64_t stream, int64_t element, uint32_t threshold) {
  const Philox block = keep_block(key, stream, element >> 3);
  const uint32_t word = block[static_cast<size_t>((element & 7) >> 1)];
  return ((element & 1 ? word >> 16 : word & 0xffff)) >= threshold;
}

template <typename T>
T sigmoid(T x) {
  return T(1) / (T(1) + std::exp(-x));
}

template <typename T>
T scalar_function(Function f, T x, T y) {
  constexpr T kSqrtHalf = T(0.70710678118654752440), kInvSqrt2Pi = T(0.39894228040143267794);
  constexpr T kSqrt2OverPi = T(0.79788456080286535588), kCubic = T(0.044715);
  switch (f) {
    case Function::add:
      return x + y;
    case Function::sub:
      return x - y;
    case Function::mul:
      return x * y;
    case Function::div:
      return x / y;
    // NaN goes through max, min and relu, whichever side it is on.
    case Function::max:
      return x > y || x != x ? x : y;
    case Function::min:
      return x < y || x != x ? x : y;
    case Function::neg:
      return -x;
    case Function::exp:
      return std::exp(x);
    case Function::log:
      return std::log(x);
    case Function::sqrt:
      return std::sqrt(x);
    case Function::tanh:
      return std::tanh(x);
    case Function::sigmoid:
      return sigmoid(x);
    case Function::step:
      return x > T(0) ? T(1) : T(0);
    case Function::relu:
      return x < T(0) ? T(0) : x;
    case Function::silu:
      return x * sigmoid(x);
    case Function::silu_grad: {
      const T s = sigmoid(x);
      return s * (T(1) + x * (T(1) - s));
    }
    case Function::gelu:
      return T(0.5) * x * (T(1) + std::erf(x * kSqrtHalf));
    case Function::gelu_grad:
      return T(0.5) * (T(1) + std::erf(x * kSqrtHalf)) +
             x * kInvSqrt2Pi * std::exp(T(-0.5) * x * x);
    case Function::gelu_tanh:
      return T(0.5) * x * (T(1) + std::tanh(kSqrt2OverPi * (x + kCubic * x * x * x)));
    case Function::gelu_tanh_grad: {
      const T t = std::tanh(kSqrt2OverPi * (x + kCubic * x * x * x));
      return T(0.5) * (T(1) + t) +
             T(0.5) * x * (T(1) - t * t) * kSqrt2OverPi * (T(1) + T(3) * kCubic * x * x);
    }
    case Function::constant:
    case Function::keep:
      break;
  }
  MR_CHECK(false, "function {} has no plain value", function_name(f));
  return T(0);
}

}  // namespace millrace
