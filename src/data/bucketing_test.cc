#include "data/bucketing.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <limits>
#include <set>

#include "core/rng.h"

namespace millrace {
namespace {

using Ranks = std::vector<int64_t>;

struct TestBatch {
  size_t bucket;
  Ranks ranks;
  auto operator<=>(const TestBatch&) const = default;
};

std::vector<TestBatch> epoch_of(const BucketOrder& order, int64_t epoch) {
  std::vector<TestBatch> batches(static_cast<size_t>(order.batches_per_epoch()));
  for (size_t i = 0; i < batches.size(); ++i) {
    batches[i].bucket = order.bucket_of(static_cast<int64_t>(i), epoch);
    order.ranks(static_cast<int64_t>(i), epoch, batches[i].ranks);
  }
  return batches;
}

// The length of each rank.
std::vector<int64_t> lengths_of(const LengthHistogram& histogram) {
  std::vector<int64_t> lengths;
  for (size_t l = 0; l < histogram.count.size(); ++l) {
    lengths.insert(lengths.end(), static_cast<size_t>(histogram.count[l]), static_cast<int64_t>(l));
  }
  return lengths;
}

// Up to `longest` tokens, some lengths missing, few or many sequences of the others.
LengthHistogram random_histogram(RandomStream& random, uint64_t longest) {
  LengthHistogram histogram;
  histogram.count.resize(2 + random.below(longest));
  const uint64_t most = uint64_t{1} << random.below(9);
  for (size_t l = 1; l < histogram.count.size(); ++l) {
    if (random.below(3) > 0) histogram.count[l] = static_cast<int64_t>(random.below(most + 1));
  }
  return histogram;
}

// Everything that must hold of an epoch.
void check_epoch(const LengthHistogram& histogram, const BucketOrder& order, int64_t epoch) {
  const std::vector<int64_t> lengths = lengths_of(histogram);
  std::vector<int> seen(lengths.size());
  std::vector<int64_t> batches_of(order.buckets().size());
  int64_t useful = 0, places = 0, incomplete = 0;
  for (const auto& [bucket, ranks] : epoch_of(order, epoch)) {
    const auto& [length, rows, batches, source] = order.buckets().at(bucket);
    ++batches_of[bucket];
    ASSERT_EQ(static_cast<int64_t>(ranks.size()), rows);
    places += rows * length;
    const auto end = std::find(ranks.begin(), ranks.end(), -1);
    ASSERT_NE(end, ranks.begin());
    if (end != ranks.end()) {
      ++incomplete;
      ASSERT_EQ(bucket + 1, order.buckets().size());
      ASSERT_EQ(std::count(end, ranks.end(), -1), ranks.end() - end);
    }
    for (auto at = ranks.begin(); at != end; ++at) {
      ++seen.at(static_cast<size_t>(*at));
      ASSERT_LE(lengths[static_cast<size_t>(*at)], length);
      useful += lengths[static_cast<size_t>(*at)];
    }
  }
  EXPECT_LE(incomplete, 1);
  EXPECT_TRUE(std::all_of(seen.begin(), seen.end(), [](int times) { return times == 1; }));
  for (size_t b = 0; b < batches_of.size(); ++b) {
    EXPECT_EQ(batches_of[b], order.buckets()[b].batches);
  }
  EXPECT_EQ(order.useful(), useful);
  EXPECT_EQ(order.places(), places);
}

TEST(BucketOrder, EverySequenceOncePerEpoch) {
  RandomStream random(1, RandomUse::test);
  for (int trial = 0; trial < 300; ++trial) {
    const LengthHistogram histogram = random_histogram(random, 60);
    const BucketSettings settings{
        .batch_size = 1 + static_cast<int64_t>(random.below(20)),
        .batch_tokens = random.below(2) == 0 ? 0 : 1 + static_cast<int64_t>(random.below(400)),
        .padding = random.uniform() / 10,
        .most_buckets = 1 + static_cast<int64_t>(random.below(12))};
    const BucketOrder order(histogram, settings, random.next_u64());
    EXPECT_LE(static_cast<int64_t>(order.buckets().size()), settings.most_buckets);
    for (const Bucket& bucket : order.buckets()) {
      EXPECT_GE(bucket.batches, 1);  // one that fills no batch is no bucket
      EXPECT_EQ(bucket.rows, settings.batch_tokens > 0
                                 ? std::max<int64_t>(1, settings.batch_tokens / bucket.length)
                                 : settings.batch_size);
    }
    for (const int64_t epoch : {int64_t{0}, int64_t{7}, int64_t{1} << 33}) {
      ASSERT_NO_FATAL_FAILURE(check_epoch(histogram, order, epoch)) << "trial " << trial;
    }
    ASSERT_NO_FATAL_FAILURE(check_epoch(histogram, {histogram, settings, {}}, 0));
  }
}

TEST(BucketOrder, KeepsItsOrder) {
  // A run that is resumed with a newer program must go on in its old order.
  const LengthHistogram histogram{{0, 0, 5, 4, 0, 0, 3, 4}};
  const BucketOrder order(histogram, {.batch_size = 3, .padding = 0.1}, 42);
  EXPECT_EQ(order.buckets(), (std::vector<Bucket>{{2, 3, 1}, {3, 3, 2}, {6, 3, 1}, {7, 3, 2}}));
  EXPECT_EQ(epoch_of(order, 0), (std::vector<TestBatch>{{2, {11, 9, 10}},
                                                        {1, {7, 6, 8}},
                                                        {3, {12, -1, -1}},
                                                        {3, {14, 15, 13}},
                                                        {0, {0, 4, 3}},
                                                        {1, {2, 5, 1}}}));
  EXPECT_EQ(epoch_of(order, 1), (std::vector<TestBatch>{{3, {12, -1, -1}},
                                                        {3, {13, 14, 15}},
                                                        {2, {11, 9, 10}},
                                                        {0, {3, 0, 1}},
                                                        {1, {5, 4, 7}},
                                                        {1, {8, 6, 2}}}));
}

TEST(BucketOrder, EpochsAndSeedsDifferAndOtherSequencesMoveUp) {
  const LengthHistogram histogram{{0, 0, 0, 101, 0, 0, 0, 0, 203}};
  const BucketSettings settings{.batch_size = 8};
  const BucketOrder order(histogram, settings, 1), other(histogram, settings, 2);
  ASSERT_EQ(order.buckets(), (std::vector<Bucket>{{3, 8, 12}, {8, 8, 26}}));
  std::set<std::vector<TestBatch>> epochs;
  std::set<std::set<int64_t>> moved_up;
  for (int64_t epoch = 0; epoch < 20; ++epoch) {
    std::vector<TestBatch> batches = epoch_of(order, epoch);
    std::set<int64_t> moved;
    for (const auto& [bucket, ranks] : batches) {
      for (const int64_t rank : ranks) {
        if (bucket == 1 && rank >= 0 && rank < 101) moved.insert(rank);
      }
    }
    EXPECT_EQ(moved.size(), 5u);  // 101 - 12 * 8
    moved_up.insert(moved);
    epochs.insert(std::move(batches));
  }
  epochs.insert(epoch_of(other, 0));
  EXPECT_EQ(epochs.size(), 21u);
  EXPECT_EQ(moved_up.size(), 20u);
  // Batches of both buckets are mixed: the first half of an epoch has 6 of the 12 on average.
  int64_t early = 0;
  for (int64_t epoch = 0; epoch < 100; ++epoch) {
    for (int64_t i = 0; i < 19; ++i) early += order.bucket_of(i, epoch) == 0;
  }
  // Hypergeometric: 100 * 12 * 1/2, variance 100 * 12 * 1/4 * 26/37.
  EXPECT_NEAR(static_cast<double>(early), 600, 5 * 14.6);
}

TEST(BucketOrder, WithoutSeedInOrderOfRanks) {
  const LengthHistogram histogram{{0, 0, 0, 101, 0, 0, 0, 0, 203}};
  const BucketOrder order(histogram, {.batch_size = 8}, {});
  int64_t next = 0;
  for (const auto& [bucket, ranks] : epoch_of(order, 3)) {
    for (const int64_t rank : ranks) {
      EXPECT_EQ(rank, next < 304 ? next : -1);
      ++next;
    }
  }
  EXPECT_EQ(next, 304);  // 38 batches of 8: none is incomplete
}

TEST(BucketOrder, FewestPlacesOfAllCuts) {
  // Batches of one row: nothing moves up, so that places are those of the cut alone.
  RandomStream random(2, RandomUse::test);
  for (int trial = 0; trial < 200; ++trial) {
    const LengthHistogram histogram = random_histogram(random, 11);
    const std::vector<int64_t> lengths = lengths_of(histogram);
    if (lengths.empty()) continue;
    const auto longest = static_cast<unsigned>(lengths.back());
    std::vector<int64_t> fewest(longest + 1, std::numeric_limits<int64_t>::max());
    for (unsigned cut = 0; cut < 1u << (longest - 1); ++cut) {  // bit l - 1: a bucket ends at l
      const unsigned ends = cut | 1u << (longest - 1);
      int64_t places = 0;
      for (const int64_t length : lengths) {
        places += length + std::countr_zero(ends >> (length - 1));
      }
      for (auto k = static_cast<size_t>(std::popcount(ends)); k <= longest; ++k) {
        fewest[k] = std::min(fewest[k], places);
      }
    }
    for (size_t most = 1; most <= longest; ++most) {
      const BucketOrder order(histogram, {.padding = 0, .most_buckets = static_cast<int64_t>(most)},
                              1);
      EXPECT_EQ(order.places(), fewest[most]) << "trial " << trial;
      // No fewer buckets would do.
      EXPECT_LT(order.places(), fewest[order.buckets().size() - 1]);
      const double padding = static_cast<double>(order.places() - order.useful()) /
                             static_cast<double>(order.places());
      // What was reached, but for rounding, is reached again.
      const BucketOrder wanted(histogram, {.padding = padding + 1e-9}, 1);
      EXPECT_EQ(wanted.buckets().size(), order.buckets().size());
    }
  }
}

TEST(BucketOrder, ManyLengthsAreThinnedOutWithLittleLoss) {
  // 100,000 lengths, one sequence each, 8 buckets: the best cut is into equal parts, and its
  // padding is a half part for each sequence.
  LengthHistogram histogram;
  histogram.count.assign(100'001, 1);
  histogram.count[0] = 0;
  const BucketOrder order(histogram, {.padding = 0, .most_buckets = 8}, 1);
  const double least = 100'000 * (12'500 - 1) / 2.0;
  EXPECT_NEAR(static_cast<double>(order.places() - order.useful()), least, 0.0001 * least);
}

TEST(BucketOrder, SmallestData) {
  for (const std::optional<uint64_t> seed :
       {std::optional<uint64_t>(1), std::optional<uint64_t>()}) {
    EXPECT_EQ(BucketOrder({}, {}, seed).batches_per_epoch(), 0);
    EXPECT_EQ(BucketOrder({{0, 0, 0}}, {}, seed).batches_per_epoch(), 0);
    EXPECT_EQ(BucketOrder({}, {}, seed).places(), 0);
    const BucketOrder one({{0, 0, 0, 1}}, {.batch_size = 2}, seed);
    EXPECT_EQ(epoch_of(one, 5), (std::vector<TestBatch>{{0, {0, -1}}}));
    EXPECT_EQ(one.useful(), 3);
    EXPECT_EQ(one.places(), 6);
  }
}

TEST(BucketOrder, LargeData) {
  const LengthHistogram histogram{{0, int64_t{1} << 39, 0, 0, (int64_t{1} << 39) - 5}};
  const BucketOrder order(histogram, {.batch_size = 7, .batch_tokens = 12}, 1);
  const int64_t all = (int64_t{1} << 40) - 5;
  std::set<int64_t> seen;
  Ranks ranks;
  for (int64_t i = 0; i < 1000; ++i) {
    order.ranks(order.batches_per_epoch() - 1 - i, 1, ranks);
    for (const int64_t rank : ranks) {
      if (rank == -1) continue;
      ASSERT_GE(rank, 0);
      ASSERT_LT(rank, all);
      ASSERT_TRUE(seen.insert(rank).second);
    }
  }
}

TEST(BucketOrderDeathTest, Bugs) {
  EXPECT_DEATH(BucketOrder({{1}}, {}, 1), "1 sequences without a token");
  EXPECT_DEATH(BucketOrder({{0, -1}}, {}, 1), "-1 sequences");
  EXPECT_DEATH(BucketOrder({{0, 1}}, {.batch_size = 0}, 1), "batches of 0 rows");
  const BucketOrder order({{0, 1}}, {}, 1);
  EXPECT_DEATH(order.bucket_of(1, 0), "batch 1 of 1");
}

}  // namespace
}  // namespace millrace
