#include "data/sampler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <set>

namespace millrace {
namespace {

std::vector<int64_t> epoch_of(const WindowSampler& sampler, int64_t epoch) {
  std::vector<int64_t> begins;
  for (int64_t i = 0; i < sampler.samples_per_epoch(); ++i) {
    begins.push_back(sampler.begin_of(epoch * sampler.samples_per_epoch() + i));
  }
  return begins;
}

TEST(WindowSampler, EpochHoldsEveryWindowOnce) {
  constexpr int64_t kT = 5;
  for (const int64_t windows : {1, 2, 3, 4, 5, 7, 15, 16, 17, 63, 64, 65, 1000, 4096, 4097}) {
    for (const int64_t spare : {int64_t{1}, kT}) {  // tokens left after the last window's inputs
      const WindowSampler sampler(windows * kT + spare, kT, 42, false);
      ASSERT_EQ(sampler.samples_per_epoch(), windows);
      for (const int64_t epoch : {int64_t{0}, int64_t{1}, int64_t{1} << 33}) {
        std::vector<int64_t> begins = epoch_of(sampler, epoch);
        std::sort(begins.begin(), begins.end());
        for (int64_t i = 0; i < windows; ++i) {
          ASSERT_EQ(begins[static_cast<size_t>(i)], i * kT) << windows << " windows";
        }
      }
    }
  }
}

TEST(WindowSampler, EpochsAndSeedsDiffer) {
  const WindowSampler sampler(1001, 1, 42, false), other(1001, 1, 43, false);
  std::set<std::vector<int64_t>> orders;
  for (int64_t epoch = 0; epoch < 8; ++epoch) orders.insert(epoch_of(sampler, epoch));
  orders.insert(epoch_of(other, 0));
  std::vector<int64_t> sorted(1000);
  std::iota(sorted.begin(), sorted.end(), 0);
  orders.insert(sorted);
  EXPECT_EQ(orders.size(), 10u);
}

TEST(WindowSampler, TinyEpochsTakeEveryOrder) {
  const WindowSampler sampler(4, 1, 1, false);
  std::map<std::vector<int64_t>, int> orders;
  for (int64_t epoch = 0; epoch < 600; ++epoch) ++orders[epoch_of(sampler, epoch)];
  EXPECT_EQ(orders.size(), 6u);
  // 100 of each are expected, with a standard deviation of sqrt(600 * 1/6 * 5/6) = 9.1.
  for (const auto& [order, count] : orders) EXPECT_NEAR(count, 100, 5 * 9.1);
}

TEST(WindowSampler, ShuffleLeavesNoTrend) {
  // The correlation of place and window of a random order of n has standard deviation 1/sqrt(n-1).
  constexpr int64_t kWindows = 10'000;
  const WindowSampler sampler(kWindows + 1, 1, 9, false);
  const std::vector<int64_t> begins = epoch_of(sampler, 0);
  const double mean = (kWindows - 1) / 2.0;
  double covariance = 0, variance = 0;
  for (int64_t i = 0; i < kWindows; ++i) {
    const double x = static_cast<double>(i) - mean;
    covariance += x * (static_cast<double>(begins[static_cast<size_t>(i)]) - mean);
    variance += x * x;
  }
  EXPECT_LT(std::abs(covariance / variance), 5 / std::sqrt(kWindows - 1.0));
}

TEST(WindowSampler, RandomBeginsAreEvenAndInBounds) {
  constexpr int64_t kTokens = 74, kT = 10, kBegins = kTokens - kT, kDraws = 64'000;
  const WindowSampler sampler(kTokens, kT, 3, true);
  EXPECT_EQ(sampler.samples_per_epoch(), 7);
  std::vector<int> counts(kBegins);
  for (int64_t i = 0; i < kDraws; ++i) ++counts.at(static_cast<size_t>(sampler.begin_of(i)));
  double chi_squared = 0;
  for (const int count : counts) chi_squared += std::pow(count - 1000.0, 2) / 1000.0;
  // 63 degrees of freedom: mean 63, standard deviation sqrt(126).
  EXPECT_NEAR(chi_squared, 63, 5 * std::sqrt(126.0));
}

TEST(WindowSampler, OnlyOneWindowFits) {
  for (const bool random : {false, true}) {
    const WindowSampler sampler(9, 8, 5, random);
    for (int64_t i = 0; i < 20; ++i) EXPECT_EQ(sampler.begin_of(i), 0);
  }
}

TEST(WindowSampler, IndependentOfBatchSplitAndOfHistory) {
  for (const bool random : {false, true}) {
    const WindowSampler sampler(10'001, 16, 7, random), resumed(10'001, 16, 7, random);
    std::vector<int64_t> batches_of_8, batches_of_32;
    for (int64_t step = 0; step < 400; ++step) {
      for (int64_t i = 0; i < 8; ++i) batches_of_8.push_back(sampler.begin_of(step * 8 + i));
    }
    for (int64_t step = 0; step < 100; ++step) {
      for (int64_t i = 0; i < 32; ++i) batches_of_32.push_back(sampler.begin_of(step * 32 + i));
    }
    EXPECT_EQ(batches_of_8, batches_of_32);
    EXPECT_EQ(resumed.begin_of(3000), batches_of_8[3000]);
  }
}

TEST(WindowSampler, LargeData) {
  const int64_t tokens = int64_t{1} << 45;
  for (const bool random : {false, true}) {
    const WindowSampler sampler(tokens, 128, 7, random);
    std::set<int64_t> begins;
    for (int64_t i = 0; i < 1000; ++i) {
      const int64_t begin = sampler.begin_of((int64_t{1} << 50) + i);
      ASSERT_GE(begin, 0);
      ASSERT_LE(begin + 128, tokens - 1);
      begins.insert(begin);
    }
    EXPECT_EQ(begins.size(), 1000u);  // 2^38 windows: a repeat has probability below 2^-19
  }
}

TEST(SequentialBegins, CoversFromTheStart) {
  using Begins = std::vector<int64_t>;
  EXPECT_EQ(sequential_begins(13, 4, 4, 0), (Begins{0, 4, 8}));  // 3 * 4 inputs and one more target
  EXPECT_EQ(sequential_begins(12, 4, 4, 0), (Begins{0, 4}));
  EXPECT_EQ(sequential_begins(13, 4, 4, 2), (Begins{0, 4}));
  EXPECT_EQ(sequential_begins(13, 4, 4, 9), (Begins{0, 4, 8}));
  EXPECT_EQ(sequential_begins(4, 4, 4, 0), Begins{});
  EXPECT_EQ(sequential_begins(0, 4, 4, 0), Begins{});
  EXPECT_EQ(sequential_begins(13, 4, 3, 0),
            (Begins{0, 3, 6}));  // overlapping windows; the next would need token 13
  EXPECT_EQ(sequential_begins(14, 4, 3, 0), (Begins{0, 3, 6, 9}));
}

TEST(FillBatch, TargetsAreTheNextTokens) {
  const std::vector<int32_t> data = {10, 11, 12, 13, 14, 15};
  const std::vector<int64_t> begins = {2, 0};
  std::vector<int32_t> tokens(6, -1), targets(6, -1);
  fill_batch(data, begins, 3, tokens.data(), targets.data());
  EXPECT_EQ(tokens, (std::vector<int32_t>{12, 13, 14, 10, 11, 12}));
  EXPECT_EQ(targets, (std::vector<int32_t>{13, 14, 15, 11, 12, 13}));
}

TEST(FillBatchDeathTest, WindowPastTheEnd) {
  const std::vector<int32_t> data = {10, 11, 12, 13};
  const std::vector<int64_t> begins = {1};
  int32_t tokens[3], targets[3];
  EXPECT_DEATH(fill_batch(data, begins, 3, tokens, targets), "window at 1 of 4 tokens");
}

}  // namespace
}  // namespace millrace
