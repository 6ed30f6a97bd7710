// Vector forms of the scalar functions, as plain float code that the compiler vectorises for the
// instruction set a file is compiled for. No branches, no calls, no tables.
// exp: Cody-Waite reduction and the Cephes polynomial, error below 2 ulp on the finite range.
#pragma once
#include <bit>
#include <cmath>
#include <cstdint>

namespace millrace::cpu {

// e^r for |r| <= ln2 / 2. For a float and, in the kernels, for a vector of them.
template <typename Float>
inline Float exp_near_zero(Float r) {
  Float p = 1.9875691500e-4f * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  return p * (r * r) + (r + 1.0f);
}

// 2^n e^r with x = n ln2 + r; 0 below -86.99, +inf above 88.72, NaN for NaN. For a float and, in
// the kernels, for a vector of them.
template <typename Float, typename Integer>
inline Float exp_of(Float x) {
  const Float low = Float{} - 87.0f, high = Float{} + 88.8f;
  x = low > x ? low : x;
  x = high < x ? high : x;
  // Rounds to nearest: the low bits of the sum are the integer n.
  const Float shifted = x * 1.44269504088896341f + 12582912.0f, n = shifted - 12582912.0f;
  const Float r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
  const Float p = exp_near_zero(r);
  // Times 2^(n-1), then by 2: the exponent field of the power is 0, so the power too, at n = -126,
  // and at 128 the product overflows by itself.
  const Integer power = (std::bit_cast<Integer>(shifted) + (126 - 0x4B400000)) << 23;
  return p * std::bit_cast<Float>(power) * 2.0f;
}
inline float vexp(float x) { return exp_of<float, int32_t>(x); }

inline float vsigmoid(float x) { return 1.0f / (1.0f + vexp(-x)); }

// tanh(x) = 1 - 2 / (e^2x + 1), by its series where that cancels.
inline float vtanh(float x) {
  const float a = std::fabs(x);
  const float big = 1.0f - 2.0f / (vexp(2.0f * a) + 1.0f);
  const float z = x * x;
  // Odd Taylor/minimax polynomial on |x| < 0.625 (Cephes tanhf).
  float p = -5.70498872745e-3f;
  p = p * z + 2.06390887954e-2f;
  p = p * z - 5.37397155531e-2f;
  p = p * z + 1.33314422036e-1f;
  p = p * z - 3.33332819422e-1f;
  const float small = p * z * a + a;
  const float y = a < 0.625f ? small : big;
  return std::copysign(y, x);
}

// log by frexp and the Cephes polynomial; log(0) = -inf, negative gives NaN.
inline float vlog(float x) {
  const float scaled = x < 1.17549435e-38f ? x * 8388608.0f : x;  // subnormals up by 2^23
  const int32_t bits = std::bit_cast<int32_t>(scaled);
  int32_t e = ((bits >> 23) & 0xff) - 126 - (x < 1.17549435e-38f ? 23 : 0);
  float m = std::bit_cast<float>((bits & 0x007fffff) | 0x3f000000);  // [0.5, 1)
  const bool low = m < 0.707106781186547524f;
  e = low ? e - 1 : e;
  m = (low ? m + m : m) - 1.0f;
  const float z = m * m, fe = static_cast<float>(e);
  float p = 7.0376836292e-2f;
  p = p * m - 1.1514610310e-1f;
  p = p * m + 1.1676998740e-1f;
  p = p * m - 1.2420140846e-1f;
  p = p * m + 1.4249322787e-1f;
  p = p * m - 1.6668057665e-1f;
  p = p * m + 2.0000714765e-1f;
  p = p * m - 2.4999993993e-1f;
  p = p * m + 3.3333331174e-1f;
  const float y = (m * z * p + fe * -2.12194440e-4f - 0.5f * z) + m + fe * 0.693359375f;
  return x != x || x < 0.0f ? NAN : (x == 0.0f ? -INFINITY : (x > 3.4028235e38f ? x : y));
}

// erf by Abramowitz & Stegun's relation to erfc with a Cephes-style split: odd polynomial below 1,
// 1 - e^(-x^2) P(1/x) above.
inline float verf(float x) {
  const float a = std::fabs(x), z = x * x;
  float p = 7.853861353153693e-5f;
  p = p * z - 8.010193625184903e-4f;
  p = p * z + 5.188327685732524e-3f;
  p = p * z - 2.685381193529856e-2f;
  p = p * z + 1.128358514861418e-1f;
  p = p * z - 3.761262582423300e-1f;
  p = p * z + 1.128379165726710e+0f;
  const float small = x * p;
  const float q = a < 1.0f ? 1.0f : 1.0f / a, w = q * q;
  // erfc(a) e^(a^2) for 1 <= a < 2, and for a >= 2, as polynomials in 1/a^2 (Cephes ndtrf).
  float u = 2.326819970068386e-2f;
  u = u * w - 1.387039388740657e-1f;
  u = u * w + 3.687424674597105e-1f;
  u = u * w - 5.824733027278666e-1f;
  u = u * w + 6.210004621745983e-1f;
  u = u * w - 4.944515323274145e-1f;
  u = u * w + 3.404879937665872e-1f;
  u = u * w - 2.741127028184656e-1f;
  u = u * w + 5.638259427386472e-1f;
  float v = -1.047766399936249e+1f;
  v = v * w + 1.297719955372516e+1f;
  v = v * w - 7.495518717768503e+0f;
  v = v * w + 2.921019019210786e+0f;
  v = v * w - 1.015265279202700e+0f;
  v = v * w + 4.218463358204948e-1f;
  v = v * w - 2.820767439740514e-1f;
  v = v * w + 5.641895067754075e-1f;
  const float tail = vexp(-z) * q * (a < 2.0f ? u : v);
  const float big = std::copysign(1.0f - tail, x);
  return a < 1.0f ? small : big;
}

inline float vsilu(float x) { return x * vsigmoid(x); }
inline float vsilu_grad(float x) {
  const float s = vsigmoid(x);
  return s * (1.0f + x * (1.0f - s));
}
inline float vgelu(float x) { return 0.5f * x * (1.0f + verf(x * 0.70710678118654752440f)); }
inline float vgelu_grad(float x) {
  return 0.5f * (1.0f + verf(x * 0.70710678118654752440f)) +
         x * 0.39894228040143267794f * vexp(-0.5f * x * x);
}
// 0.5 x (1 + tanh u) is x / (1 + e^-2u), with u = sqrt(2/pi) (x + 0.044715 x^3).
inline float vgelu_tanh_exp(float x) {
  return vexp(x * (-1.59576912160573f - 0.0713548162726003f * (x * x)));
}
inline float vgelu_tanh(float x) { return x / (1.0f + vgelu_tanh_exp(x)); }
inline float vgelu_tanh_grad(float x) {
  const float e = vgelu_tanh_exp(x), s = 1.0f / (1.0f + e);
  const float rest = s < 0.5f ? 1.0f - s : e * s;  // 1 - s; e may be infinite where s is 0
  return s + x * s * rest * (1.59576912160573f + 0.214064448817801f * (x * x));
}

}  // namespace millrace::cpu
