// 16-bit floating-point numbers on the host: bfloat16 and IEEE binary16, as bits.
#pragma once
#include <bit>
#include <cmath>
#include <cstdint>

#include "core/dtype.h"

namespace millrace {

inline float f16_to_float(uint16_t half) {
  const uint32_t sign = static_cast<uint32_t>(half & 0x8000) << 16;
  const uint32_t exponent = half >> 10 & 0x1F, mantissa = half & 0x3FF;
  if (exponent == 0) {  // zero or subnormal: mantissa * 2^-24, exact in float
    const float magnitude = static_cast<float>(mantissa) * 0x1p-24f;
    return sign ? -magnitude : magnitude;
  }
  const uint32_t wide = exponent == 31 ? 255 : exponent + (127 - 15);
  return std::bit_cast<float>(sign | wide << 23 | mantissa << 13);
}

inline float bf16_to_float(uint16_t bfloat) {
  return std::bit_cast<float>(static_cast<uint32_t>(bfloat) << 16);
}

// Rounded to nearest, ties to even; NaN stays NaN.
inline uint16_t float_to_bf16(float x) {
  const auto bits = std::bit_cast<uint32_t>(x);
  if (x != x) return static_cast<uint16_t>(bits >> 16 | 0x40);
  return static_cast<uint16_t>((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}
inline uint16_t float_to_f16(float x) {
  const auto bits = std::bit_cast<uint32_t>(x);
  const auto sign = static_cast<uint16_t>(bits >> 16 & 0x8000);
  if (x != x) return sign | 0x7E00;
  const float magnitude = std::fabs(x);
  if (magnitude >= 65520.0f) return sign | 0x7C00;  // half way to the next power of two
  if (magnitude < 0x1p-14f)                         // subnormal: a multiple of 2^-24
    return static_cast<uint16_t>(sign | static_cast<uint16_t>(std::nearbyint(magnitude * 0x1p24f)));
  const uint32_t rounded = (bits & 0x7FFFFFFF) + 0xFFF + (bits >> 13 & 1);
  return static_cast<uint16_t>(sign | ((rounded >> 13) - ((127 - 15) << 10)));
}

inline float half_to_float(DType dtype, uint16_t bits) {
  return dtype == DType::bf16 ? bf16_to_float(bits) : f16_to_float(bits);
}
inline uint16_t float_to_half(DType dtype, float x) {
  return dtype == DType::bf16 ? float_to_bf16(x) : float_to_f16(x);
}

}  // namespace millrace
