// The vector functions against libm in double, over floats spread evenly through their bit patterns
// (so every binade is visited, the subnormal ones too), and densely where training works. Bounds
// are in ulps of the exact value where the function is accurate relatively, else in absolute terms
// with their formula; each is the measured maximum rounded up.
#include "cpu/vector_math.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

namespace millrace::cpu {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity(),
                kNan = std::numeric_limits<float>::quiet_NaN();
constexpr double kEps = 0x1p-24;  // half an ulp of 1: the rounding unit

const std::vector<float>& points() {
  static const std::vector<float> list = [] {
    std::vector<float> x{0.0f, -0.0f};
    for (uint64_t bits = 0; bits < uint64_t{1} << 32; bits += 8191) {
      const auto f = std::bit_cast<float>(static_cast<uint32_t>(bits));
      if (std::isfinite(f)) x.push_back(f);
    }
    for (int i = -400'000; i <= 400'000; ++i)
      x.push_back(static_cast<float>(i) * 2.5e-4f);  // [-100, 100]
    // Where the forms change: both sides of each threshold, a few hundred floats deep.
    for (float edge :
         {86.99f, 88.7228f, 0.625f, 1.0f, 2.0f, 1.41421356f, 0.70710678f, 1.17549435e-38f})
      for (float sign : {1.0f, -1.0f}) {
        float up = sign * edge, down = up;
        for (int i = 0; i < 300; ++i) {
          x.push_back(up = std::nextafter(up, kInf));
          x.push_back(down = std::nextafter(down, -kInf));
        }
      }
    return x;
  }();
  return list;
}

// |got - exact| in units of the last place of a float of exact's size, subnormals included.
double ulps(float got, double exact) {
  if (std::isnan(got)) return std::numeric_limits<double>::infinity();
  const int exponent = std::max(std::ilogb(exact == 0 ? 1e-45 : exact), -126);
  return std::fabs(static_cast<double>(got) - exact) / std::ldexp(1.0, exponent - 23);
}

// The largest of `error(x)` over the points in [low, high], and where.
template <typename Error>
std::pair<double, float> worst(double low, double high, Error error) {
  std::pair<double, float> most{0, 0};
  for (float x : points()) {
    if (!(x >= low && x <= high)) continue;
    const double e = error(x);
    if (!(e <= most.first)) most = {e, x};
  }
  return most;
}

#define EXPECT_WITHIN(low, high, bound, expression)                                          \
  do {                                                                                       \
    const auto [error, at] = worst(low, high, [](float x) -> double { return expression; }); \
    EXPECT_TRUE(error <= (bound)) << error << " at " << at;                                  \
  } while (false)

double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }
double gelu(double x) { return 0.5 * x * std::erfc(-x * std::sqrt(0.5)); }
double gelu_grad(double x) {
  return 0.5 * std::erfc(-x * std::sqrt(0.5)) + x * std::exp(-0.5 * x * x) * 0.39894228040143267794;
}
double gelu_tanh_inner(double x) { return 0.79788456080286535588 * (x + 0.044715 * x * x * x); }
double gelu_tanh(double x) { return x * sigmoid(2 * gelu_tanh_inner(x)); }
double gelu_tanh_grad(double x) {
  const double s = sigmoid(2 * gelu_tanh_inner(x));
  return s + 2 * x * s * (1 - s) * 0.79788456080286535588 * (1 + 0.134145 * x * x);
}

TEST(VectorMath, Exp) {
  EXPECT_WITHIN(-86.98, 88.7228, 2, ulps(vexp(x), std::exp(static_cast<double>(x))));
  // Below, the exact value is under 1.7e-38 and the result soon 0.
  EXPECT_WITHIN(-3.5e38, -86.98, 1.7e-38,
                std::fabs(static_cast<double>(vexp(x)) - std::exp(static_cast<double>(x))));
  EXPECT_EQ(vexp(0.0f), 1.0f);
  EXPECT_EQ(vexp(89.0f), kInf);
  EXPECT_EQ(vexp(kInf), kInf);
  EXPECT_EQ(vexp(-kInf), 0.0f);
}

TEST(VectorMath, Log) {
  EXPECT_WITHIN(1e-45, 3.5e38, 1, ulps(vlog(x), std::log(static_cast<double>(x))));
  EXPECT_EQ(vlog(1.0f), 0.0f);
  EXPECT_EQ(vlog(0.0f), -kInf);
  EXPECT_EQ(vlog(-0.0f), -kInf);
  EXPECT_EQ(vlog(kInf), kInf);
  EXPECT_TRUE(std::isnan(vlog(-1.0f)));
  EXPECT_TRUE(std::isnan(vlog(-1e-45f)));
  EXPECT_TRUE(std::isnan(vlog(-kInf)));
}

TEST(VectorMath, Tanh) {
  EXPECT_WITHIN(-3.5e38, 3.5e38, 2, ulps(vtanh(x), std::tanh(static_cast<double>(x))));
  EXPECT_EQ(vtanh(kInf), 1.0f);
  EXPECT_EQ(vtanh(-kInf), -1.0f);
  EXPECT_TRUE(std::signbit(vtanh(-0.0f)));
}

TEST(VectorMath, Sigmoid) {
  // e^-x overflows at -88.72; down to -87.3 the result is a normal number.
  EXPECT_WITHIN(-87.3, 3.5e38, 3.1, ulps(vsigmoid(x), sigmoid(x)));
  EXPECT_WITHIN(-3.5e38, -87.3, 1.3e-38, std::fabs(vsigmoid(x) - sigmoid(x)));
  EXPECT_EQ(vsigmoid(0.0f), 0.5f);
  EXPECT_EQ(vsigmoid(kInf), 1.0f);
  EXPECT_EQ(vsigmoid(-kInf), 0.0f);
}

TEST(VectorMath, Erf) {
  EXPECT_WITHIN(-3.5e38, 3.5e38, 3, ulps(verf(x), std::erf(static_cast<double>(x))));
  EXPECT_EQ(verf(kInf), 1.0f);
  EXPECT_EQ(verf(-kInf), -1.0f);
  EXPECT_EQ(verf(0.0f), 0.0f);
}

TEST(VectorMath, Silu) {
  EXPECT_WITHIN(-87.3, 3.5e38, 4, ulps(vsilu(x), x * sigmoid(x)));
  EXPECT_WITHIN(-3.5e38, -87.3, 1.2e-36, std::fabs(vsilu(x) - x * sigmoid(x)));
  // s (1 + x (1 - s)): 1 - s errs by an eps, and x multiplies it until s is 1, at 17.
  EXPECT_WITHIN(-87.3, 17.0, 3 * kEps,
                std::fabs(vsilu_grad(x) - sigmoid(x) * (1 + x * sigmoid(-x))) /
                    std::max(1.0, std::fabs(static_cast<double>(x))));
  EXPECT_WITHIN(17.5, 3.5e38, 17 * kEps,
                std::fabs(vsilu_grad(x) - sigmoid(x) * (1 + x * sigmoid(-x))));
}

TEST(VectorMath, Gelu) {
  // 1 + erf cancels for negative x: the error is that of erf near -1 times |x| / 2, and the value
  // there is below 2.2 e^(-x^2/2).
  EXPECT_WITHIN(-3.5e38, 3.5e38, 3 * kEps,
                std::fabs(vgelu(x) - gelu(x)) / std::max(1.0, std::fabs(static_cast<double>(x))));
  EXPECT_WITHIN(0.0, 3.5e38, 3, ulps(vgelu(x), gelu(x)));
  EXPECT_WITHIN(-3.5e38, 3.5e38, 4 * kEps, std::fabs(vgelu_grad(x) - gelu_grad(x)));
}

TEST(VectorMath, GeluTanh) {
  EXPECT_WITHIN(
      -3.5e38, 3.5e38, 3 * kEps,
      std::fabs(vgelu_tanh(x) - gelu_tanh(x)) / std::max(1.0, std::fabs(static_cast<double>(x))));
  EXPECT_WITHIN(0.0, 3.5e38, 3, ulps(vgelu_tanh(x), gelu_tanh(x)));
  // x^2 overflows beyond 1.8e19.
  EXPECT_WITHIN(-1e18, 1e18, 4 * kEps, std::fabs(vgelu_tanh_grad(x) - gelu_tanh_grad(x)));
}

TEST(VectorMath, NanStaysNan) {
  for (auto f : {vexp, vlog, vtanh, vsigmoid, verf, vsilu, vsilu_grad, vgelu, vgelu_grad,
                 vgelu_tanh, vgelu_tanh_grad}) {
    EXPECT_TRUE(std::isnan(f(kNan)));
    EXPECT_TRUE(std::isnan(f(-kNan)));
  }
}

}  // namespace
}  // namespace millrace::cpu
