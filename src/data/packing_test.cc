#include "data/packing.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "core/rng.h"

namespace millrace {
namespace {

using Ranks = std::vector<int64_t>;

std::vector<Ranks> epoch_of(const PackedOrder& order, int64_t epoch) {
  std::vector<Ranks> rows(static_cast<size_t>(order.rows_per_epoch()));
  for (size_t i = 0; i < rows.size(); ++i) order.ranks(static_cast<int64_t>(i), epoch, rows[i]);
  return rows;
}

// The length of each rank.
std::vector<int64_t> lengths_of(const LengthHistogram& histogram) {
  std::vector<int64_t> lengths;
  for (size_t l = 0; l < histogram.count.size(); ++l) {
    lengths.insert(lengths.end(), static_cast<size_t>(histogram.count[l]), static_cast<int64_t>(l));
  }
  return lengths;
}

// Everything that must hold of an epoch.
void check_epoch(const LengthHistogram& histogram, int64_t row_length, int64_t most_per_row,
                 const PackedOrder& order, int64_t epoch) {
  const std::vector<int64_t> lengths = lengths_of(histogram);
  std::vector<int> seen(lengths.size());
  int64_t useful = 0;
  double squares = 0;
  for (const Ranks& ranks : epoch_of(order, epoch)) {
    ASSERT_FALSE(ranks.empty());
    ASSERT_LE(static_cast<int64_t>(ranks.size()), most_per_row);
    int64_t tokens = 0;
    for (const int64_t rank : ranks) {
      ++seen.at(static_cast<size_t>(rank));
      const int64_t length = lengths[static_cast<size_t>(rank)];
      tokens += length;
      squares += static_cast<double>(length * length);
    }
    ASSERT_LE(tokens, row_length);
    useful += tokens;
  }
  EXPECT_TRUE(std::all_of(seen.begin(), seen.end(), [](int times) { return times == 1; }));
  EXPECT_EQ(order.useful(), useful);
  EXPECT_DOUBLE_EQ(order.sequence_length(), useful > 0 ? squares / static_cast<double>(useful) : 0);
  EXPECT_EQ(order.places(), order.rows_per_epoch() * row_length);
}

// Sequences whose length has this mean and a normal logarithm; longer ones are cut.
LengthHistogram log_normal(double mean, double sigma, int64_t longest, int64_t sequences) {
  RandomStream random(5, RandomUse::test);
  LengthHistogram histogram;
  histogram.count.resize(static_cast<size_t>(longest) + 1);
  const double middle = std::log(mean) - sigma * sigma / 2;
  for (int64_t i = 0; i < sequences; ++i) {
    const auto length = std::llround(std::exp(middle + sigma * random.normal()));
    ++histogram.count[static_cast<size_t>(std::clamp<int64_t>(length, 1, longest))];
  }
  return histogram;
}

double useful_share(const LengthHistogram& histogram, int64_t row_length) {
  const PackedOrder order(histogram, row_length, 256, 1);
  return static_cast<double>(order.useful()) / static_cast<double>(order.places());
}

TEST(PackedOrder, EverySequenceOncePerEpoch) {
  RandomStream random(1, RandomUse::test);
  for (int trial = 0; trial < 300; ++trial) {
    const auto row_length = 1 + static_cast<int64_t>(random.below(80));
    const auto most_per_row = 1 + static_cast<int64_t>(random.below(trial % 2 == 0 ? 5 : 100));
    LengthHistogram histogram;
    histogram.count.resize(2 + random.below(static_cast<uint64_t>(row_length)));
    const uint64_t most = uint64_t{1} << random.below(9);
    for (size_t l = 1; l < histogram.count.size(); ++l) {
      if (random.below(3) > 0) histogram.count[l] = static_cast<int64_t>(random.below(most + 1));
    }
    const PackedOrder order(histogram, row_length, most_per_row, random.next_u64());
    for (const int64_t epoch : {int64_t{0}, int64_t{7}, int64_t{1} << 33}) {
      ASSERT_NO_FATAL_FAILURE(check_epoch(histogram, row_length, most_per_row, order, epoch))
          << "trial " << trial;
    }
    ASSERT_NO_FATAL_FAILURE(check_epoch(histogram, row_length, most_per_row,
                                        {histogram, row_length, most_per_row, {}}, 0));
  }
}

TEST(PackedOrder, KeepsItsOrder) {
  // A run that is resumed with a newer program must go on in its old order.
  const LengthHistogram histogram{{0, 0, 5, 4, 0, 0, 3, 2}};
  EXPECT_EQ(pack_lengths(histogram, 10, 256),
            (std::vector<PackPattern>{{{7, 3}, 2}, {{6, 2, 2}, 2}, {{6, 3}, 1}, {{3, 2}, 1}}));
  const PackedOrder order(histogram, 10, 256, 42);
  EXPECT_EQ(epoch_of(order, 0),
            (std::vector<Ranks>{{0, 1, 11}, {5, 13}, {2, 8}, {6, 9}, {7, 12}, {10, 4, 3}}));
  EXPECT_EQ(epoch_of(order, 1),
            (std::vector<Ranks>{{8, 3}, {11, 6}, {10, 1, 4}, {12, 7}, {13, 5}, {2, 0, 9}}));
  EXPECT_EQ(epoch_of(PackedOrder(histogram, 10, 256, {}), 1),
            (std::vector<Ranks>{{12, 5}, {13, 6}, {9, 0, 1}, {10, 2, 3}, {11, 7}, {8, 4}}));
}

TEST(PackedOrder, EpochsAndSeedsDiffer) {
  const LengthHistogram histogram = log_normal(30, 0.8, 128, 2000);
  const PackedOrder order(histogram, 128, 256, 1), other(histogram, 128, 256, 2);
  std::set<std::vector<Ranks>> epochs;
  for (int64_t epoch = 0; epoch < 20; ++epoch) epochs.insert(epoch_of(order, epoch));
  epochs.insert(epoch_of(other, 0));
  EXPECT_EQ(epochs.size(), 21u);
}

TEST(PackedOrder, LongOnesAreAnywhereInTheirRow) {
  // Rows of 6 + 2 + 2: where the 6 stands is even over three places, along an epoch and for one row
  // over the epochs.
  const LengthHistogram histogram{{0, 0, 6000, 0, 0, 0, 3000}};
  const PackedOrder order(histogram, 10, 256, 3);
  ASSERT_EQ(order.rows_per_epoch(), 3000);
  std::vector<int> along_epoch(3), over_epochs(3);
  Ranks ranks;
  for (int64_t i = 0; i < 3000; ++i) {
    order.ranks(i, 1, ranks);
    ASSERT_EQ(ranks.size(), 3u);
    for (size_t place = 0; place < 3; ++place) along_epoch[place] += ranks[place] >= 6000;
    order.ranks(1, i, ranks);
    ASSERT_EQ(ranks.size(), 3u);
    for (size_t place = 0; place < 3; ++place) over_epochs[place] += ranks[place] >= 6000;
  }
  // Standard deviation sqrt(3000 * 1/3 * 2/3) = 25.8.
  for (const int count : along_epoch) EXPECT_NEAR(count, 1000, 5 * 25.8);
  for (const int count : over_epochs) EXPECT_NEAR(count, 1000, 5 * 25.8);
}

TEST(PackLengths, WastesNextToNothing) {
  // One row may be all but empty, whoever packs: more than 1/1000 must not be lost.
  for (const double sigma : {0.4, 0.6, 0.8, 1.0}) {
    EXPECT_GT(useful_share(log_normal(30, sigma, 512, 100'000), 512), 0.999) << sigma;
    EXPECT_GT(useful_share(log_normal(36, sigma, 256, 100'000), 256), 0.999) << sigma;
  }
  EXPECT_GT(useful_share(log_normal(600, 1.0, 4096, 100'000), 4096), 0.999);
  // Three go into a row if the lengths are well chosen; the longest that fit, 180 and 180, would
  // leave 152 places empty.
  LengthHistogram narrow;
  narrow.count.resize(181);
  for (size_t l = 160; l <= 180; ++l) narrow.count[l] = 1000;
  EXPECT_GT(useful_share(narrow, 512), 0.99);
}

TEST(PackLengths, RowsThatCannotBeFullAreAsFewAsCanBe) {
  // Two of 65 do not fit into 128, and there is little that is short enough to go with them.
  LengthHistogram histogram;
  histogram.count.resize(101);
  histogram.count[65] = 1000;
  histogram.count[100] = 500;
  histogram.count[28] = 400;
  int64_t rows = 0;
  for (const PackPattern& pattern : pack_lengths(histogram, 128, 256)) rows += pattern.rows;
  EXPECT_EQ(rows, 1500);
}

TEST(PackLengths, PatternsAreFew) {
  // At most 1 + log2(sequences of it in a row), here 125, for each length, however many there are.
  LengthHistogram histogram;
  histogram.count.resize(1001);
  RandomStream random(1, RandomUse::test);
  for (size_t l = 8; l <= 1000; ++l) {
    histogram.count[l] = static_cast<int64_t>(random.below(int64_t{1} << 30));
  }
  EXPECT_LT(pack_lengths(histogram, 1000, 256).size(), 993u * (1 + 7));
}

TEST(PackLengths, EdgeCases) {
  using Patterns = std::vector<PackPattern>;
  EXPECT_EQ(pack_lengths({}, 10, 8), Patterns{});
  EXPECT_EQ(pack_lengths({{0, 0, 0}}, 10, 8), Patterns{});
  EXPECT_EQ(pack_lengths({{0, 0, 0, 1}}, 10, 8), (Patterns{{{3}, 1}}));
  EXPECT_EQ(pack_lengths({{0, 0, 0, 7}}, 10, 8), (Patterns{{{3, 3, 3}, 2}, {{3}, 1}}));
  EXPECT_EQ(pack_lengths({{0, 0, 0, 7}}, 10, 2), (Patterns{{{3, 3}, 3}, {{3}, 1}}));
  EXPECT_EQ(pack_lengths({{0, 0, 0, 7}}, 3, 8), (Patterns{{{3}, 7}}));
  EXPECT_EQ(pack_lengths({{0, 7}}, 1, 1), (Patterns{{{1}, 7}}));
  EXPECT_EQ(pack_lengths({{0, 3, 0, 0, 1}}, 6, 8), (Patterns{{{4, 1, 1}, 1}, {{1}, 1}}));
  const PackedOrder empty({}, 10, 8, 1);
  EXPECT_EQ(empty.rows_per_epoch(), 0);
  EXPECT_EQ(empty.useful(), 0);
  EXPECT_EQ(empty.patterns(), 0u);
}

TEST(PackLengths, ManySequencesOfOneTokenInALongRow) {
  const PackedOrder order({{0, 10'000}}, 1 << 20, kMostPerRow, 1);
  EXPECT_EQ(order.rows_per_epoch(), 3);  // 2 * 4096 and the rest
}

TEST(PackedOrderDeathTest, Bugs) {
  EXPECT_DEATH(pack_lengths({{1}}, 10, 8), "1 sequences of 0 tokens");
  EXPECT_DEATH(pack_lengths({{0, 0, 5}}, 1, 8), "5 sequences of 2 tokens in rows of 1");
  EXPECT_DEATH(pack_lengths({{0, -1}}, 1, 8), "-1 sequences");
  EXPECT_DEATH(PackedOrder({{1}}, 10, 8, 1), "1 sequences of 0 tokens");
  EXPECT_DEATH(pack_lengths({}, 10, 0), "rows of 10 places for 0 sequences");
  const PackedOrder order({{0, 1}}, 1, 1, 1);
  Ranks ranks;
  EXPECT_DEATH(order.ranks(1, 0, ranks), "row 1 of 1");
}

}  // namespace
}  // namespace millrace
