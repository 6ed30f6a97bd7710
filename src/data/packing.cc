#include "data/packing.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "core/error.h"
#include "core/rng.h"

namespace millrace {
namespace {

// Streams of Permutation: sequences of length l have l. Stream 0 has the seed for a key, which is
// left to the order within rows.
constexpr uint64_t kRowStream = ~uint64_t{0};

// `lengths` has equal ones side by side; `see(length, times)` for each.
template <typename See>
void for_each_run(const std::vector<int32_t>& lengths, const See& see) {
  for (auto at = lengths.begin(); at != lengths.end();) {
    const auto end = std::find_if(at, lengths.end(), [&](int32_t l) { return l != *at; });
    see(*at, end - at);
    at = end;
  }
}

// Fills one row after another, each beginning with the longest sequence left, so that what is hard
// to place goes first and the short ones are kept for last.
class RowFiller {
 public:
  RowFiller(const LengthHistogram& lengths, int64_t row_length, int64_t most_per_row)
      : row_length_(row_length),
        most_per_row_(static_cast<size_t>(most_per_row)),
        left_(lengths.count),
        longest_(left_.size()),
        tried_(static_cast<size_t>(row_length) + 1) {
    for (size_t l = 1; l < left_.size(); ++l) longest_[l] = left_[l] > 0 ? l : l - 1;
  }

  // Rows that are all alike, as many as can be had of them; none at the end.
  PackPattern next() {
    const size_t longest = left_.empty() ? 0 : longest_up_to(left_.size() - 1);
    if (longest == 0) return {};
    best_space_ = static_cast<size_t>(row_length_);
    steps_ = 0;
    add(longest, static_cast<size_t>(row_length_));
    for (const size_t space : touched_) tried_[space] = 0;
    touched_.clear();
    return take();
  }

 private:
  // Looks for the lengths, none above `limit`, that leave least of `space` empty behind what is in
  // the row already; longer ones are tried first. What can be made of a space does not depend on
  // what stands before it (but for sequences that run out, which is rare), so that no space is
  // filled twice with the same choices. True: no need to look on.
  bool fill(size_t limit, size_t space) {
    bool done = space == 0;
    if (!done && row_.size() < most_per_row_ && limit > tried_[space]) {
      const size_t tried = std::exchange(tried_[space], limit);
      if (tried == 0) touched_.push_back(space);
      for (size_t l = longest_up_to(std::min(limit, space)); l > tried && !done;
           l = longest_up_to(l - 1)) {
        if (left_[l] > 0) done = add(l, space);
      }
    }
    if (space < best_space_) {
      best_space_ = space;
      best_ = row_;
    }
    return done;
  }

  bool add(size_t length, size_t space) {
    // Rows that can be filled are found in far fewer; the others must not take for ever.
    constexpr int kMostSteps = 2000;
    row_.push_back(static_cast<int32_t>(length));
    --left_[length];
    const bool done = fill(length, space - length) || ++steps_ > kMostSteps;
    ++left_[length];
    row_.pop_back();
    return done;
  }

  // The more rows are alike the fewer patterns there are: each takes at least half of one of its
  // lengths away, and all of it but for less than fills one more row.
  PackPattern take() {
    PackPattern pattern{best_, std::numeric_limits<int64_t>::max()};
    for_each_run(best_, [&](int32_t length, int64_t times) {
      pattern.rows = std::min(pattern.rows, left_[static_cast<size_t>(length)] / times);
    });
    for_each_run(best_, [&](int32_t length, int64_t times) {
      const auto l = static_cast<size_t>(length);
      left_[l] -= times * pattern.rows;
      if (left_[l] == 0) longest_[l] = l - 1;
    });
    return pattern;
  }

  // The longest length up to `limit` of which there are sequences left; 0: none.
  size_t longest_up_to(size_t limit) {
    limit = std::min(limit, longest_.size() - 1);
    while (longest_[limit] != limit) {
      longest_[limit] = longest_[longest_[limit]];  // the way is shorter next time
      limit = longest_[limit];
    }
    return limit;
  }

  int64_t row_length_;
  size_t most_per_row_;
  std::vector<int64_t> left_;    // sequences, by length
  std::vector<size_t> longest_;  // by length: itself, or a shorter one to look at instead
  std::vector<size_t> tried_;    // by space: lengths up to this one have been tried in it
  std::vector<size_t> touched_;  // the spaces with such a length
  std::vector<int32_t> row_, best_;
  size_t best_space_ = 0;
  int steps_ = 0;
};

}  // namespace

std::vector<PackPattern> pack_lengths(const LengthHistogram& lengths, int64_t row_length,
                                      int64_t most_per_row) {
  MR_CHECK(row_length >= 1 && row_length <= std::numeric_limits<int32_t>::max() &&
               most_per_row >= 1 && most_per_row <= kMostPerRow,
           "rows of {} places for {} sequences", row_length, most_per_row);
  for (size_t length = 0; length < lengths.count.size(); ++length) {
    const int64_t count = lengths.count[length];
    const bool fits = length >= 1 && static_cast<int64_t>(length) <= row_length;
    MR_CHECK(count == 0 || (count > 0 && fits), "{} sequences of {} tokens in rows of {}", count,
             length, row_length);
  }
  RowFiller filler(lengths, row_length, most_per_row);
  std::vector<PackPattern> patterns;
  for (PackPattern pattern = filler.next(); pattern.rows > 0; pattern = filler.next()) {
    patterns.push_back(std::move(pattern));
  }
  return patterns;
}

PackedOrder::PackedOrder(const LengthHistogram& lengths, int64_t row_length, int64_t most_per_row,
                         std::optional<uint64_t> seed)
    : row_length_(row_length), seed_(seed), row_order_(0, 0, 0) {
  const std::vector<PackPattern> patterns = pack_lengths(lengths, row_length, most_per_row);
  int64_t first_rank = 0;
  double squares = 0;
  for (size_t length = 0; length < lengths.count.size(); ++length) {
    const int64_t count = lengths.count[length];
    sequences_.push_back({first_rank, Permutation(count, seed.value_or(0), length)});
    first_rank += count;
    useful_ += static_cast<int64_t>(length) * count;
    squares += static_cast<double>(length) * static_cast<double>(length) * static_cast<double>(count);
  }
  if (useful_ > 0) sequence_length_ = squares / static_cast<double>(useful_);
  MR_CHECK(static_cast<double>(first_rank) * static_cast<double>(row_length) < 0x1p62,
           "{} sequences in rows of {}", first_rank, row_length);
  int64_t rows = 0;
  std::vector<int64_t> used(lengths.count.size());
  for (const PackPattern& pattern : patterns) {
    const size_t first_part = parts_.size();
    for_each_run(pattern.lengths, [&](int32_t length, int64_t times) {
      int64_t& first = used[static_cast<size_t>(length)];
      parts_.push_back({static_cast<size_t>(length), times, first});
      first += times * pattern.rows;
    });
    patterns_.push_back({rows, first_part, parts_.size()});
    rows += pattern.rows;
  }
  row_order_ = Permutation(rows, seed.value_or(0), kRowStream);
}

void PackedOrder::ranks(int64_t index, int64_t epoch, std::vector<int64_t>& ranks) const {
  MR_CHECK(index >= 0 && index < rows_per_epoch(), "row {} of {}", index, rows_per_epoch());
  const int64_t row = seed_ ? row_order_.at(index, epoch) : index;
  const Pattern& pattern = *(std::upper_bound(patterns_.begin(), patterns_.end(), row,
                                              [](int64_t number, const Pattern& other) {
                                                return number < other.first_row;
                                              }) -
                             1);
  ranks.clear();
  for (size_t p = pattern.first_part; p < pattern.end_part; ++p) {
    const Part& part = parts_[p];
    const Sequences& sequences = sequences_[part.length];
    const int64_t first = part.first + (row - pattern.first_row) * part.times;
    for (int64_t i = first; i < first + part.times; ++i) {
      ranks.push_back(sequences.first_rank + (seed_ ? sequences.order.at(i, epoch) : i));
    }
  }
  if (!seed_) return;
  // Longest first would teach a model that texts get shorter along a row.
  RandomStream random(*seed_, RandomUse::sampler,
                      static_cast<uint64_t>(epoch) * static_cast<uint64_t>(rows_per_epoch()) +
                          static_cast<uint64_t>(index));
  for (size_t i = ranks.size(); i > 1; --i) std::swap(ranks[i - 1], ranks[random.below(i)]);
}

}  // namespace millrace
