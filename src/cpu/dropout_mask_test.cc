#define MR_ISA avx2
#include "cpu/dropout_mask.h"

#include <gtest/gtest.h>

#include <vector>

#include "graph/scalar_functions.h"

namespace millrace::cpu::MR_ISA {
namespace {

// Every alignment, lengths around a step, element numbers whose block needs more than 32 bits, key
// words with the top bit set.
TEST(DropoutMask, MatchesKeepElement) {
  const int32_t keys[][4] = {{1, 2, 3, 4}, {-1, -2, -3, -4}, {0, 0x7fffffff, 0, -2147483647 - 1}};
  const double p = 0.3;
  const auto factor = static_cast<float>(keep_scale(p));
  for (const auto& key : keys)
    for (int64_t stream : {int64_t{0}, int64_t{7}, int64_t{0xffffffff}})
      for (int64_t start : {int64_t{0}, (int64_t{1} << 35) - 40, int64_t{1} << 50})
        for (int64_t shift = 0; shift < 8; ++shift)
          for (int64_t n : {0, 1, 7, 8, 63, 64, 65, 200}) {
            std::vector<float> got(static_cast<size_t>(n) + 1, -1.0f);
            keep_factors(key, stream, start + shift, n, keep_threshold(p), factor, got.data());
            for (int64_t x = 0; x < n; ++x) {
              const bool kept = keep_element(key, stream, start + shift + x, keep_threshold(p));
              ASSERT_EQ(got[static_cast<size_t>(x)], kept ? factor : 0.0f) << x << " of " << n;
            }
            ASSERT_EQ(got.back(), -1.0f) << "wrote behind " << n;
          }
}

}  // namespace
}  // namespace millrace::cpu::MR_ISA
