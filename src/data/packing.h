// Several sequences in one row, so that next to nothing is padding. It is lengths that are packed,
// not sequences (the idea of Krell et al., "Efficient sequence packing without
// cross-contamination", 2021): a few thousand patterns of lengths stand for any number of rows, and
// which sequences fill them is a pure function of (seed, epoch, index of the row); see
// permutation.h.
#pragma once
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "data/bucketing.h"
#include "data/permutation.h"

namespace millrace {

// `rows` rows, each with sequences of these lengths.
struct PackPattern {
  std::vector<int32_t> lengths;  // longest first
  int64_t rows = 0;
  bool operator==(const PackPattern&) const = default;
};

// Uses every sequence once. No length may be above row_length; no row holds more than most_per_row
// sequences, which may be up to kMostPerRow.
inline constexpr int64_t kMostPerRow = 4096;
std::vector<PackPattern> pack_lengths(const LengthHistogram& lengths, int64_t row_length,
                                      int64_t most_per_row);

class PackedOrder {
 public:
  // Without a seed rows, and what is in them, come in the order of the patterns, for validation.
  PackedOrder(const LengthHistogram& lengths, int64_t row_length, int64_t most_per_row,
              std::optional<uint64_t> seed);

  int64_t rows_per_epoch() const { return row_order_.size(); }
  // The ranks of the sequences in row `index` of `epoch`, in the order in which they stand there.
  // An epoch holds every sequence once.
  void ranks(int64_t index, int64_t epoch, std::vector<int64_t>& ranks) const;

  // In an epoch: tokens, how long the sequence is in which such a token stands on the mean, and
  // places for them.
  int64_t useful() const { return useful_; }
  double sequence_length() const { return sequence_length_; }
  int64_t places() const { return rows_per_epoch() * row_length_; }
  size_t patterns() const { return patterns_.size(); }

 private:
  struct Sequences {
    int64_t first_rank;
    Permutation order;
  };
  // `times` sequences of one length in each row of a pattern; `first` of them are in earlier ones.
  struct Part {
    size_t length;
    int64_t times;
    int64_t first;
  };
  struct Pattern {
    int64_t first_row;
    size_t first_part, end_part;
  };

  int64_t row_length_;
  std::optional<uint64_t> seed_;
  std::vector<Sequences> sequences_;  // by length
  std::vector<Part> parts_;
  std::vector<Pattern> patterns_;
  Permutation row_order_;
  int64_t useful_ = 0;
  double sequence_length_ = 0;
};

}  // namespace millrace
