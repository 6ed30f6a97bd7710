#define MR_ISA avx2
#include "cpu/small_gemm.h"

#include <gtest/gtest.h>

#include <vector>

namespace millrace::cpu::MR_ISA {
namespace {

// Small integers: every product and sum is exact, so results must be equal.
std::vector<float> integers(int64_t n, int64_t seed) {
  std::vector<float> values(static_cast<size_t>(n));
  for (size_t i = 0; i < values.size(); ++i)
    values[i] = static_cast<float>((static_cast<int64_t>(i) * 7 + seed) % 11 - 5);
  return values;
}

template <Left kLeft>
void compare(int64_t rows, int64_t columns, int64_t depth, bool accumulate) {
  const int64_t wide = padded(columns), begin = rows / 3, skip = depth / 4;
  const int64_t stride = kLeft == Left::rows ? depth + 1 : rows + 2;
  const auto a = integers(std::max(rows, depth) * stride + rows + depth, 1);
  const auto b = integers(depth * wide, 2);
  const auto start = integers(rows * wide, 3);
  auto c = start;
  // The last row of a band decides: a triangle, as under a causal mask.
  auto part = [&](int64_t, int64_t last) {
    return GemmPart{std::min(last, columns), skip, std::max(skip, depth - last % 3)};
  };
  small_gemm<kLeft>(begin, rows, a.data(), stride, b.data(), wide, c.data(), wide, accumulate,
                    part);
  for (int64_t m = 0; m < rows; ++m) {
    const int64_t last = std::min(rows, begin + (m - begin) / kTileRows * kTileRows + kTileRows);
    const GemmPart p = part(0, last);
    for (int64_t n = 0; n < wide; ++n) {
      const auto at = static_cast<size_t>(m * wide + n);
      float want = start[at];
      if (m >= begin && n < padded(p.column_end)) {
        want = accumulate ? want : 0.0f;
        for (int64_t k = p.depth_begin; k < p.depth_end; ++k) {
          const int64_t left = kLeft == Left::rows ? m * stride + k : k * stride + m;
          want += a[static_cast<size_t>(left)] * b[static_cast<size_t>(k * wide + n)];
        }
      }
      ASSERT_EQ(c[at], want) << rows << "x" << columns << "x" << depth << " at " << m << "," << n;
    }
  }
}

TEST(SmallGemm, MatchesLoops) {
  for (int64_t rows : {1, 2, 5, 6, 7, 11, 16, 23})
    for (int64_t columns : {1, 8, 9, 16, 24, 31})
      for (int64_t depth : {1, 2, 3, 8, 13})
        for (bool accumulate : {false, true}) {
          compare<Left::rows>(rows, columns, depth, accumulate);
          compare<Left::columns>(rows, columns, depth, accumulate);
        }
}

TEST(SmallGemm, CopiesPadWithZeros) {
  for (int64_t rows : {1, 3, 8, 13, 16})
    for (int64_t width : {1, 5, 8, 12, 17}) {
      const int64_t stride = width + 3, tall = padded(rows), wide = padded(width);
      const auto from = integers(rows * stride, 4);
      std::vector<float> copy(static_cast<size_t>(rows * wide), -1.0f);
      std::vector<float> transposed(static_cast<size_t>(width * tall), -1.0f);
      copy_rows(rows, width, from.data(), stride, copy.data(), wide, 2.0f);
      copy_transposed(rows, width, from.data(), stride, transposed.data(), tall, 2.0f);
      auto want = [&](int64_t r, int64_t d) {
        return r < rows && d < width ? 2 * from[static_cast<size_t>(r * stride + d)] : 0.0f;
      };
      for (int64_t r = 0; r < rows; ++r)
        for (int64_t d = 0; d < wide; ++d)
          ASSERT_EQ(copy[static_cast<size_t>(r * wide + d)], want(r, d));
      for (int64_t d = 0; d < width; ++d)
        for (int64_t r = 0; r < tall; ++r)
          ASSERT_EQ(transposed[static_cast<size_t>(d * tall + r)], want(r, d));
    }
}

}  // namespace
}  // namespace millrace::cpu::MR_ISA
