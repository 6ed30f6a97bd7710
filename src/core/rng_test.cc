#include "core/rng.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <vector>

namespace millrace {
namespace {

// The known answers published with Random123 (kat_vectors, philox4x32 10).
TEST(RngTest, PhiloxKnownAnswers) {
  EXPECT_EQ(philox(0, {0, 0, 0, 0}), (Philox{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(philox(~uint64_t{0}, {0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}),
            (Philox{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(philox(0x299f31d0'a4093822, {0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}),
            (Philox{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(RngTest, StreamIsAFunctionOfItsName) {
  auto first = [](uint64_t seed, RandomUse use, uint64_t stream) {
    RandomStream random(seed, use, stream);
    std::vector<uint32_t> words(16);
    for (uint32_t& word : words) word = random.next_u32();
    return words;
  };
  const auto base = first(7, RandomUse::test, 0);
  EXPECT_EQ(base, first(7, RandomUse::test, 0));
  std::set<std::vector<uint32_t>> all = {base};
  all.insert(first(8, RandomUse::test, 0));
  all.insert(first(7 | uint64_t{1} << 32, RandomUse::test, 0));
  all.insert(first(7, RandomUse::init, 0));
  all.insert(first(7, RandomUse::test, 1));
  all.insert(first(7, RandomUse::test, uint64_t{1} << 32));
  EXPECT_EQ(all.size(), 6u);
}

TEST(RngTest, StreamReadsWholeBlocksInOrder) {
  RandomStream random(7, RandomUse::test, 5);
  const auto use = static_cast<uint32_t>(RandomUse::test);
  for (uint32_t block = 0; block < 3; ++block) {
    for (uint32_t word : philox(7, {block, 5, 0, use})) EXPECT_EQ(random.next_u32(), word);
  }
  RandomStream words(7, RandomUse::test), longs(7, RandomUse::test);
  const uint64_t high = words.next_u32(), low = words.next_u32();
  EXPECT_EQ(longs.next_u64(), high << 32 | low);
}

constexpr int kDraws = 1'000'000;
// All bounds below are 5 standard errors of the statistic named beside them: a right generator
// leaves them with odds under 1 in a million, and the seed is fixed, so it never does so by chance.
const double kFiveOverRoot = 5 / std::sqrt(static_cast<double>(kDraws));

TEST(RngTest, UniformMoments) {
  RandomStream random(1, RandomUse::test);
  double sum = 0, squares = 0, low = 1, high = 0;
  for (int i = 0; i < kDraws; ++i) {
    const double u = random.uniform();
    sum += u;
    squares += (u - 0.5) * (u - 0.5);
    low = std::min(low, u);
    high = std::max(high, u);
  }
  EXPECT_GE(low, 0.0);
  EXPECT_LT(high, 1.0);
  // P(min > 20/n) = e^-20.
  EXPECT_LT(low, 20.0 / kDraws);
  EXPECT_GT(high, 1 - 20.0 / kDraws);
  // Var u = 1/12; Var (u - 1/2)^2 = 1/80 - 1/144 = 1/180.
  EXPECT_NEAR(sum / kDraws, 0.5, kFiveOverRoot * std::sqrt(1 / 12.0));
  EXPECT_NEAR(squares / kDraws, 1 / 12.0, kFiveOverRoot * std::sqrt(1 / 180.0));
}

TEST(RngTest, UniformNeighboursAreUncorrelated) {
  RandomStream random(2, RandomUse::test);
  double sum = 0, before = random.uniform() - 0.5;
  for (int i = 0; i < kDraws; ++i) {
    const double now = random.uniform() - 0.5;
    sum += before * now;
    before = now;
  }
  // The product of two independent centred uniforms has standard deviation 1/12.
  EXPECT_NEAR(sum / kDraws, 0, kFiveOverRoot / 12);
}

TEST(RngTest, BelowIsUniform) {
  RandomStream random(3, RandomUse::test);
  std::vector<int> counts(10);
  for (int i = 0; i < kDraws; ++i) {
    const uint64_t value = random.below(10);
    ASSERT_LT(value, 10u);
    ++counts[value];
  }
  // A count is binomial with p = 1/10: standard deviation sqrt(0.09 n).
  for (int count : counts) EXPECT_NEAR(count, kDraws / 10, 5 * std::sqrt(0.09 * kDraws));
  EXPECT_EQ(random.below(1), 0u);
}

TEST(RngTest, NormalMoments) {
  RandomStream random(4, RandomUse::test);
  double sum = 0, squares = 0, cubes = 0, fourths = 0;
  int within = 0;
  for (int i = 0; i < kDraws; ++i) {
    const double x = random.normal();
    ASSERT_TRUE(std::isfinite(x));
    // 1 - uniform() >= 2^-53, so |x| <= sqrt(2 * 53 ln 2) = 8.58.
    ASSERT_LE(std::fabs(x), 8.58);
    sum += x;
    squares += x * x;
    cubes += x * x * x;
    fourths += x * x * x * x;
    within += std::fabs(x) < 1;
  }
  // Variances of x, x^2, x^3, x^4 for a standard normal: 1, 2, 15, 96.
  EXPECT_NEAR(sum / kDraws, 0, kFiveOverRoot);
  EXPECT_NEAR(squares / kDraws, 1, kFiveOverRoot * std::sqrt(2.0));
  EXPECT_NEAR(cubes / kDraws, 0, kFiveOverRoot * std::sqrt(15.0));
  EXPECT_NEAR(fourths / kDraws, 3, kFiveOverRoot * std::sqrt(96.0));
  const double p = std::erf(std::sqrt(0.5));  // P(|x| < 1)
  EXPECT_NEAR(static_cast<double>(within) / kDraws, p, kFiveOverRoot * std::sqrt(p * (1 - p)));
}

}  // namespace
}  // namespace millrace
