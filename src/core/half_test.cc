#include "core/half.h"

#include <gtest/gtest.h>

namespace millrace {
namespace {

// Every 16-bit number comes back as itself, and what lies between two goes to the nearer one, to
// the even one from the middle.
TEST(HalfTest, RoundsToNearestEven) {
  for (const DType t : {DType::bf16, DType::f16}) {
    const uint16_t infinity = float_to_half(t, INFINITY);
    for (uint32_t i = 0; i < 0x8000; ++i) {
      const auto bits = static_cast<uint16_t>(i);
      const float x = half_to_float(t, bits);
      if (std::isnan(x)) {
        EXPECT_TRUE(std::isnan(half_to_float(t, float_to_half(t, x))));
        continue;
      }
      ASSERT_EQ(float_to_half(t, x), bits);
      ASSERT_EQ(float_to_half(t, -x), bits | 0x8000);
      if (bits + 1 >= infinity) continue;
      const float next = half_to_float(t, static_cast<uint16_t>(bits + 1)),
                  middle = x + (next - x) / 2;
      ASSERT_EQ(float_to_half(t, middle), bits & 1 ? bits + 1 : bits) << i;
      ASSERT_EQ(float_to_half(t, std::nextafter(middle, x)), bits);
      ASSERT_EQ(float_to_half(t, std::nextafter(middle, next)), bits + 1);
    }
  }
  EXPECT_EQ(f16_to_float(float_to_f16(65519.0f)), 65504.0f);
  EXPECT_TRUE(std::isinf(f16_to_float(float_to_f16(65520.0f))));
  EXPECT_TRUE(std::isinf(bf16_to_float(float_to_bf16(3.4e38f))));
}

}  // namespace
}  // namespace millrace
