#include "data/pair_cells.h"

#include <gtest/gtest.h>

#include "core/rng.h"
#include "data/bucketing.h"

namespace millrace {
namespace {

// Targets about as long as their sources, as in translation.
PairCounts random_pairs(RandomStream& random, int64_t count, int64_t longest) {
  PairCounts counts;
  for (int64_t i = 0; i < count; ++i) {
    const auto source = static_cast<int64_t>(1 + random.below(static_cast<uint64_t>(longest)));
    const auto target = std::max<int64_t>(1, source + static_cast<int64_t>(random.below(9)) - 4);
    ++counts[{source, target}];
  }
  return counts;
}

int64_t useful_of(const PairCounts& counts) {
  int64_t useful = 0;
  for (const auto& [lengths, count] : counts) useful += count * (lengths.first + lengths.second);
  return useful;
}

TEST(PairCells, EveryPairHasRoomInItsCell) {
  RandomStream random(1, RandomUse::test);
  for (int round = 0; round < 50; ++round) {
    const PairCounts counts = random_pairs(random, 1 + static_cast<int64_t>(random.below(400)), 40);
    const int64_t least = 1 + static_cast<int64_t>(random.below(20));
    const PairCells cells(counts, {.least = least});
    std::vector<PairCell> seen(cells.cells().size());
    for (const auto& [lengths, count] : counts) {
      PairCell& cell = seen.at(cells.cell_of(lengths.first, lengths.second));
      cell.source = std::max(cell.source, lengths.first);
      cell.target = std::max(cell.target, lengths.second);
      cell.count += count;
    }
    EXPECT_EQ(seen, cells.cells());  // no more room than the longest need
    for (size_t i = 0; i < seen.size(); ++i) {
      EXPECT_TRUE(seen.size() == 1 || seen[i].count >= least);
      for (size_t j = 0; j < i; ++j) EXPECT_FALSE(seen[i].fits_into(seen[j]));
    }
  }
}

TEST(PairCells, LittleRoomStaysEmpty) {
  RandomStream random(2, RandomUse::test);
  const PairCounts counts = random_pairs(random, 30'000, 60);
  const PairCells cells(counts, {.padding = 0.1, .least = 64});
  int64_t places = 0;
  for (const PairCell& cell : cells.cells()) places += cell.count * (cell.source + cell.target);
  EXPECT_LT(static_cast<double>(places), 1.12 * static_cast<double>(useful_of(counts)));
  EXPECT_LE(cells.cells().size(), 64u);
}

// Every pair once an epoch, in a row that has room for it.
TEST(PairCells, AnEpochHoldsEveryPairOnce) {
  RandomStream random(3, RandomUse::test);
  for (int round = 0; round < 40; ++round) {
    const PairCounts counts = random_pairs(random, 1 + static_cast<int64_t>(random.below(500)), 30);
    const PairCells cut(counts, {.least = 1 + static_cast<int64_t>(random.below(30))});
    const auto& cells = cut.cells();
    const bool budget = random.below(2) == 0;
    const BucketSettings settings{.batch_size = 1 + static_cast<int64_t>(random.below(20)),
                                  .batch_tokens = budget ? 200 : 0};
    const BucketOrder order(cells, useful_of(counts), settings,
                            round % 3 == 0 ? std::nullopt : std::optional<uint64_t>(7));
    std::vector<size_t> cell_of_rank;
    for (size_t c = 0; c < cells.size(); ++c)
      cell_of_rank.insert(cell_of_rank.end(), static_cast<size_t>(cells[c].count), c);
    for (const int64_t epoch : {0, 1}) {
      std::vector<int> seen(cell_of_rank.size());
      int64_t places = 0;
      std::vector<int64_t> ranks;
      for (int64_t i = 0; i < order.batches_per_epoch(); ++i) {
        const Bucket& bucket = order.buckets().at(order.bucket_of(i, epoch));
        order.ranks(i, epoch, ranks);
        ASSERT_EQ(std::ssize(ranks), bucket.rows);
        places += bucket.rows * (bucket.length + bucket.source);
        ASSERT_GE(ranks[0], 0);
        for (const int64_t rank : ranks) {
          if (rank < 0) continue;
          const PairCell& own = cells[cell_of_rank.at(static_cast<size_t>(rank))];
          EXPECT_LE(own.source, bucket.source);
          EXPECT_LE(own.target, bucket.length);
          EXPECT_EQ(++seen[static_cast<size_t>(rank)], 1);
        }
      }
      EXPECT_EQ(std::count(seen.begin(), seen.end(), 1), std::ssize(seen));
      EXPECT_EQ(places, order.places());
    }
  }
}

}  // namespace
}  // namespace millrace
