#include "data/permutation.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <set>
#include <vector>

namespace millrace {
namespace {

std::vector<int64_t> whole(const Permutation& permutation, int64_t epoch) {
  std::vector<int64_t> values;
  for (int64_t i = 0; i < permutation.size(); ++i) values.push_back(permutation.at(i, epoch));
  return values;
}

// How many standard deviations a chi-squared statistic lies above what chance gives (Wilson and
// Hilferty 1931: its cube root is nearly normal, even for few degrees of freedom).
double surprise(double chi_squared, double degrees) {
  const double variance = 2 / (9 * degrees);
  return (std::cbrt(chi_squared / degrees) - (1 - variance)) / std::sqrt(variance);
}

TEST(Permutation, EveryValueOnce) {
  auto check = [](int64_t size) {
    for (const uint64_t stream : {uint64_t{0}, uint64_t{1}, ~uint64_t{0}}) {
      for (const int64_t epoch : {int64_t{0}, int64_t{1}, int64_t{1} << 33}) {
        std::vector<int64_t> values = whole(Permutation(size, 42, stream), epoch);
        std::sort(values.begin(), values.end());
        for (int64_t i = 0; i < size; ++i) {
          ASSERT_EQ(values[static_cast<size_t>(i)], i) << "size " << size;
        }
      }
    }
  };
  for (int64_t size = 0; size <= 130; ++size) check(size);
  for (const int64_t size : {255, 256, 257, 1000, 1023, 1024, 1025, 4096, 4097, 10'000}) {
    check(size);
  }
}

TEST(Permutation, KeepsItsOrders) {
  using Values = std::vector<int64_t>;
  // Stream 0 is the order WindowSampler had before this class existed.
  EXPECT_EQ(whole(Permutation(10, 42, 0), 0), (Values{0, 9, 4, 3, 2, 5, 1, 8, 7, 6}));
  EXPECT_EQ(whole(Permutation(10, 42, 0), int64_t{1} << 33),
            (Values{4, 3, 0, 1, 9, 5, 2, 8, 7, 6}));
  EXPECT_EQ(whole(Permutation(10, 42, 1), 0), (Values{0, 7, 9, 8, 2, 5, 4, 6, 1, 3}));
  EXPECT_EQ(whole(Permutation(10, 42, ~uint64_t{0}), 3), (Values{3, 2, 9, 4, 0, 6, 8, 7, 5, 1}));
}

TEST(Permutation, EveryValueIsEverywhereEquallyOften) {
  // The counts of (index, value) over many random permutations of n: their covariances make
  // (n - 1) / epochs * sum (count - epochs / n)^2 chi-squared with (n - 1)^2 degrees of freedom.
  constexpr int64_t kEpochs = 4000;
  for (const int64_t size : {2, 3, 4, 5, 8, 16, 17, 40}) {
    for (const uint64_t stream : {0, 1}) {
      const Permutation permutation(size, 7, stream);
      std::vector<int> counts(static_cast<size_t>(size * size));
      for (int64_t epoch = 0; epoch < kEpochs; ++epoch) {
        for (int64_t i = 0; i < size; ++i) {
          ++counts[static_cast<size_t>(i * size + permutation.at(i, epoch))];
        }
      }
      const auto n = static_cast<double>(size);
      double squares = 0;
      for (const int count : counts) squares += std::pow(count - kEpochs / n, 2);
      EXPECT_LT(surprise((n - 1) / kEpochs * squares, (n - 1) * (n - 1)), 4)
          << "size " << size << ", stream " << stream;
    }
  }
}

TEST(Permutation, StreamsEpochsAndSeedsAreIndependent) {
  // Pairs of values of two orders at the same index must fill the square evenly.
  constexpr int64_t kSize = 9, kEpochs = 20'000;
  const Permutation first(kSize, 7, 3);
  auto expect_independent = [&](const char* what, const std::function<int64_t(int64_t)>& other) {
    std::vector<int> counts(kSize * kSize);
    for (int64_t epoch = 0; epoch < kEpochs; ++epoch) {
      ++counts[static_cast<size_t>(first.at(4, epoch) * kSize + other(epoch))];
    }
    constexpr double kEach = double{kEpochs} / (kSize * kSize);
    double chi_squared = 0;
    for (const int count : counts) chi_squared += std::pow(count - kEach, 2) / kEach;
    EXPECT_LT(surprise(chi_squared, kSize * kSize - 1), 4) << what;
  };
  const Permutation zero(kSize, 7, 0), next(kSize, 7, 4), far(kSize, 7, 3 + (uint64_t{1} << 32));
  const Permutation seed(kSize, 8, 3);
  expect_independent("stream 0", [&](int64_t epoch) { return zero.at(4, epoch); });
  expect_independent("stream 4", [&](int64_t epoch) { return next.at(4, epoch); });
  expect_independent("stream 3 + 2^32", [&](int64_t epoch) { return far.at(4, epoch); });
  expect_independent("another seed", [&](int64_t epoch) { return seed.at(4, epoch); });
  expect_independent("next epoch", [&](int64_t epoch) { return first.at(4, epoch + 1); });
  expect_independent("far epoch",
                     [&](int64_t epoch) { return first.at(4, epoch + (int64_t{1} << 32)); });
}

TEST(Permutation, LargeSizes) {
  for (const int64_t size : {int64_t{1} << 40, (int64_t{1} << 40) - 1, (int64_t{1} << 40) + 1}) {
    const Permutation permutation(size, 5, 1);
    std::set<int64_t> values;
    int64_t upper_half = 0;
    for (int64_t i = 0; i < 10'000; ++i) {
      const int64_t value = permutation.at(i, 0);
      ASSERT_GE(value, 0);
      ASSERT_LT(value, size);
      values.insert(value);
      upper_half += value >= size / 2;
    }
    EXPECT_EQ(values.size(), 10'000u);
    EXPECT_NEAR(static_cast<double>(upper_half), 5000, 5 * 50);  // standard deviation 50
  }
}

TEST(PermutationDeathTest, IndexOutside) {
  EXPECT_DEATH(Permutation(3, 1, 0).at(3, 0), "index 3 of 3");
  EXPECT_DEATH(Permutation(0, 1, 0).at(0, 0), "index 0 of 0");
  EXPECT_DEATH(Permutation(-1, 1, 0), "a permutation of -1");
}

}  // namespace
}  // namespace millrace
