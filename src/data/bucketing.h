// Batches of sequences, or pairs, of similar length: rows are padded to the length of their bucket
// only. Which sequences a batch holds is a pure function of (seed, epoch, index of the batch); see
// permutation.h.
#pragma once
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "data/pair_cells.h"
#include "data/permutation.h"

namespace millrace {

// All that an order knows of the data. Sequences go by their rank: they are sorted by length, so
// those of length l are count[l] consecutive ranks, behind those of all shorter ones.
struct LengthHistogram {
  std::vector<int64_t> count;  // by length; none has length 0
};

struct BucketSettings {
  int64_t batch_size = 1;  // rows of a batch
  // Above 0, instead: as many rows as have that many places, at least 1. Of pairs both sides count.
  int64_t batch_tokens = 0;
  double padding = 0.025;     // the share of places without a token that is good enough
  int64_t most_buckets = 64;  // every bucket is one more shape to plan and compile
};

struct Bucket {
  int64_t length = 0;   // of its rows; of pairs the target's
  int64_t rows = 0;     // of a batch
  int64_t batches = 0;  // in an epoch; none: all its pairs are in batches of other buckets
  int64_t source = 0;   // of pairs
  bool operator==(const Bucket&) const = default;
};

class BucketOrder {
 public:
  // The fewest buckets that leave no more padding than wanted, or, where no number of them does,
  // those that leave least. Without a seed batches and their rows come in the order of ranks, for
  // validation.
  BucketOrder(const LengthHistogram& lengths, const BucketSettings& settings,
              std::optional<uint64_t> seed);

  // Of pairs, cell by cell; `useful` tokens are in them. Ranks go by the order of the cells.
  BucketOrder(std::span<const PairCell> cells, int64_t useful, const BucketSettings& settings,
              std::optional<uint64_t> seed);

  const std::vector<Bucket>& buckets() const { return buckets_; }  // shortest first
  int64_t batches_per_epoch() const { return batch_order_.size(); }

  // Which bucket the batch at `index` of `epoch` is of, and the ranks in its rows. An epoch holds
  // every sequence once; one batch of the longest bucket, or of each cell that fits into no other,
  // may have empty rows, -1, at its end.
  size_t bucket_of(int64_t index, int64_t epoch) const;
  void ranks(int64_t index, int64_t epoch, std::vector<int64_t>& ranks) const;

  // In an epoch: tokens, and places for them.
  int64_t useful() const { return useful_; }
  int64_t places() const { return places_; }

 private:
  // What a bucket draws its rows from: its own sequences, and before them those that filled no
  // batch of a bucket below. So the number of batches is the same in every epoch, while which
  // sequences move up is a matter of the epoch's order.
  struct Carried {
    size_t from;  // the bucket below
    int64_t count;
  };
  struct Pool {
    int64_t first_batch;  // how many batches the buckets below have
    std::vector<Carried> carried;
    int64_t first_rank;  // of its own sequences
    Permutation order;
  };
  void add_pool(std::vector<Carried> carried, int64_t first_rank, int64_t own, int64_t batches,
                uint64_t seed);
  struct Batch {
    size_t bucket;
    int64_t number;  // within the bucket
  };
  Batch batch_at(int64_t index, int64_t epoch) const;
  int64_t rank_at(size_t bucket, int64_t place, int64_t epoch) const;

  bool shuffled_;
  std::vector<Bucket> buckets_;
  std::vector<Pool> pools_;
  Permutation batch_order_;
  int64_t useful_ = 0, places_ = 0;
};

}  // namespace millrace
