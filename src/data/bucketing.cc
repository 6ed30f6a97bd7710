#include "data/bucketing.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "core/error.h"

namespace millrace {
namespace {

// Streams of Permutation: bucket b has b + 1.
constexpr uint64_t kBatchStream = ~uint64_t{0};

// A length at which a bucket may end, and how many sequences are no longer than it.
struct End {
  int64_t length;
  int64_t sequences;
};

// The lengths that occur. More of them than 4096 are thinned out to those that end a run of lengths
// which agree in their 9 leading bits: a bucket then ends within 0.4 % of where it should, and
// there are at most 256 ends for each doubling of the length.
std::vector<End> possible_ends(const LengthHistogram& lengths) {
  constexpr size_t kMostEnds = 4096;
  constexpr int kLeadingBits = 9;
  std::vector<End> ends;
  int64_t sequences = 0;
  for (size_t length = 1; length < lengths.count.size(); ++length) {
    MR_CHECK(lengths.count[length] >= 0, "{} sequences", lengths.count[length]);
    if (lengths.count[length] == 0) continue;
    sequences += lengths.count[length];
    ends.push_back({static_cast<int64_t>(length), sequences});
  }
  if (ends.size() <= kMostEnds) return ends;
  std::vector<End> kept;
  for (size_t i = 0; i < ends.size(); ++i) {
    if (i + 1 < ends.size()) {
      const auto here = static_cast<uint64_t>(ends[i].length);
      const auto next = static_cast<uint64_t>(ends[i + 1].length);
      const int dropped_bits = std::max(0, static_cast<int>(std::bit_width(next)) - kLeadingBits);
      if ((here ^ next) >> dropped_bits == 0) continue;
    }
    kept.push_back(ends[i]);
  }
  return kept;
}

// Cuts the lengths into at most k buckets with the fewest places, exactly, for k = 1, 2, 3 and so
// on: the best cut into k is a best cut of some beginning into k - 1, and one bucket for the rest.
// Where that last bucket begins only moves up as its end does (the cost is a Monge array), so that
// halving the range of ends halves the range of beginnings: O(n log n) for each k.
class Cuts {
 public:
  explicit Cuts(const std::vector<End>& ends) : ends_(ends), places_(ends.size() + 1) {
    for (size_t end = 1; end < places_.size(); ++end) places_[end] = cost(0, end);
    begins_.emplace_back(places_.size());
  }

  void allow_one_more() {
    before_ = places_;
    begins_.emplace_back(places_.size());
    solve(1, ends_.size(), 0, ends_.size() - 1);
  }

  // The lengths at which the buckets end, each with the number of sequences up to it.
  std::vector<End> best() const {
    std::vector<End> cut;
    size_t end = ends_.size();
    for (size_t k = begins_.size(); end > 0; --k) {
      cut.push_back(ends_[end - 1]);
      end = begins_[k - 1][end];
    }
    std::reverse(cut.begin(), cut.end());
    return cut;
  }

 private:
  // One bucket for the lengths [begin, end).
  int64_t cost(size_t begin, size_t end) const {
    const int64_t below = begin == 0 ? 0 : ends_[begin - 1].sequences;
    return ends_[end - 1].length * (ends_[end - 1].sequences - below);
  }

  void solve(size_t low, size_t high, size_t low_begin, size_t high_begin) {
    if (low > high) return;
    const size_t end = low + (high - low) / 2;
    size_t best = low_begin;
    int64_t fewest = before_[best] + cost(best, end);
    for (size_t begin = low_begin + 1; begin <= std::min(high_begin, end - 1); ++begin) {
      const int64_t places = before_[begin] + cost(begin, end);
      if (places < fewest) {
        fewest = places;
        best = begin;
      }
    }
    places_[end] = fewest;
    begins_.back()[end] = static_cast<uint32_t>(best);
    solve(low, end - 1, low_begin, best);
    solve(end + 1, high, best, high_begin);
  }

  const std::vector<End>& ends_;
  std::vector<int64_t> places_, before_;       // by end, for k and for k - 1 buckets
  std::vector<std::vector<uint32_t>> begins_;  // [k - 1][end]: where the last bucket begins
};

// Buckets as they come out once whole batches are made of them.
struct Filled {
  std::vector<Bucket> buckets;
  std::vector<int64_t> carried;     // into each, from the one below
  std::vector<int64_t> first_rank;  // of the sequences that are its own
  int64_t places = 0;
};

Filled fill(const std::vector<End>& cut, const BucketSettings& settings) {
  Filled filled;
  int64_t carried = 0, first_rank = 0;
  for (const End& end : cut) {
    const bool last = &end == &cut.back();
    const int64_t rows = settings.batch_tokens > 0
                             ? std::max<int64_t>(1, settings.batch_tokens / end.length)
                             : settings.batch_size;
    const int64_t pool = carried + end.sequences - first_rank;
    const int64_t batches = last ? (pool + rows - 1) / rows : pool / rows;
    if (batches == 0) continue;  // its sequences become the next bucket's own
    filled.buckets.push_back({end.length, rows, batches});
    filled.carried.push_back(carried);
    filled.first_rank.push_back(first_rank);
    filled.places += batches * rows * end.length;
    carried = pool - batches * rows;
    first_rank = end.sequences;
  }
  return filled;
}

}  // namespace

BucketOrder::BucketOrder(const LengthHistogram& lengths, const BucketSettings& settings,
                         std::optional<uint64_t> seed)
    : shuffled_(seed.has_value()), batch_order_(0, 0, 0) {
  MR_CHECK(settings.batch_size >= 1 && settings.batch_tokens >= 0 && settings.most_buckets >= 1 &&
               settings.padding >= 0,
           "batches of {} rows or {} tokens, {} buckets, padding {}", settings.batch_size,
           settings.batch_tokens, settings.most_buckets, settings.padding);
  MR_CHECK(lengths.count.empty() || lengths.count[0] == 0, "{} sequences without a token",
           lengths.count[0]);
  const std::vector<End> ends = possible_ends(lengths);
  if (ends.empty()) return;
  const int64_t most_rows = std::max(settings.batch_size, settings.batch_tokens);
  MR_CHECK(static_cast<double>(ends.back().sequences + most_rows) *
                   static_cast<double>(ends.back().length) <
               0x1p62,
           "{} sequences of up to {} tokens in batches of up to {} rows", ends.back().sequences,
           ends.back().length, most_rows);
  for (size_t length = 1; length < lengths.count.size(); ++length) {
    useful_ += static_cast<int64_t>(length) * lengths.count[length];
  }

  Cuts cuts(ends);
  auto good_enough = [&](const Filled& filled) {
    const int64_t padding = filled.places - useful_;
    return static_cast<double>(padding) <= settings.padding * static_cast<double>(filled.places);
  };
  // Sequences that move up make a difference, which can be large when there are few: so it is the
  // batches as they will be that are judged.
  Filled best = fill(cuts.best(), settings);
  const auto most = std::min(settings.most_buckets, static_cast<int64_t>(ends.size()));
  for (int64_t k = 2; k <= most && !good_enough(best); ++k) {
    cuts.allow_one_more();
    Filled filled = fill(cuts.best(), settings);
    if (filled.places < best.places) best = std::move(filled);
  }

  buckets_ = std::move(best.buckets);
  places_ = best.places;
  int64_t batches = 0;
  for (size_t b = 0; b < buckets_.size(); ++b) {
    const bool last = b + 1 == buckets_.size();
    const int64_t own =
        (last ? ends.back().sequences : best.first_rank[b + 1]) - best.first_rank[b];
    std::vector<Carried> carried;
    if (best.carried[b] > 0) carried.push_back({b - 1, best.carried[b]});
    add_pool(std::move(carried), best.first_rank[b], own, batches, seed.value_or(0));
    batches += buckets_[b].batches;
  }
  batch_order_ = Permutation(batches, seed.value_or(0), kBatchStream);
}

BucketOrder::BucketOrder(std::span<const PairCell> cells, int64_t useful,
                         const BucketSettings& settings, std::optional<uint64_t> seed)
    : shuffled_(seed.has_value()), batch_order_(0, 0, 0), useful_(useful) {
  std::vector<std::vector<Carried>> carried(cells.size());
  int64_t first_rank = 0, batches = 0;
  for (size_t c = 0; c < cells.size(); ++c) {
    const PairCell& cell = cells[c];
    const int64_t length = cell.source + cell.target;
    const int64_t rows = settings.batch_tokens > 0
                             ? std::max<int64_t>(1, settings.batch_tokens / length)
                             : settings.batch_size;
    int64_t pool = cell.count;
    for (const Carried& more : carried[c]) pool += more.count;
    // What fills no batch moves up to the smallest cell that has room for it.
    const auto up = std::find_if(cells.begin() + static_cast<std::ptrdiff_t>(c) + 1, cells.end(),
                                 [&](const PairCell& other) { return cell.fits_into(other); });
    const int64_t made = up == cells.end() ? (pool + rows - 1) / rows : pool / rows;
    buckets_.push_back({cell.target, rows, made, cell.source});
    add_pool(std::move(carried[c]), first_rank, cell.count, batches, seed.value_or(0));
    if (const int64_t left = pool - made * rows; left > 0)
      carried[static_cast<size_t>(up - cells.begin())].push_back({c, left});
    places_ += made * rows * length;
    batches += made;
    first_rank += cell.count;
  }
  batch_order_ = Permutation(batches, seed.value_or(0), kBatchStream);
}

void BucketOrder::add_pool(std::vector<Carried> carried, int64_t first_rank, int64_t own,
                           int64_t batches, uint64_t seed) {
  for (const Carried& more : carried) own += more.count;
  const uint64_t stream = pools_.size() + 1;
  pools_.push_back({batches, std::move(carried), first_rank, Permutation(own, seed, stream)});
}

BucketOrder::Batch BucketOrder::batch_at(int64_t index, int64_t epoch) const {
  MR_CHECK(index >= 0 && index < batches_per_epoch(), "batch {} of {}", index, batches_per_epoch());
  const int64_t batch = shuffled_ ? batch_order_.at(index, epoch) : index;
  const auto above =
      std::upper_bound(pools_.begin(), pools_.end(), batch,
                       [](int64_t number, const Pool& pool) { return number < pool.first_batch; });
  const auto bucket = static_cast<size_t>(above - pools_.begin()) - 1;
  return {bucket, batch - pools_[bucket].first_batch};
}

int64_t BucketOrder::rank_at(size_t bucket, int64_t place, int64_t epoch) const {
  for (;;) {
    const Pool& pool = pools_[bucket];
    int64_t value = shuffled_ ? pool.order.at(place, epoch) : place;
    auto from = pool.carried.begin();
    for (; from != pool.carried.end() && value >= from->count; ++from) value -= from->count;
    if (from == pool.carried.end()) return pool.first_rank + value;
    // It stands at the end of the pool below, behind the whole batches.
    bucket = from->from;
    place = pools_[bucket].order.size() - from->count + value;
  }
}

size_t BucketOrder::bucket_of(int64_t index, int64_t epoch) const {
  return batch_at(index, epoch).bucket;
}

void BucketOrder::ranks(int64_t index, int64_t epoch, std::vector<int64_t>& ranks) const {
  const Batch batch = batch_at(index, epoch);
  const int64_t rows = buckets_[batch.bucket].rows;
  const int64_t pool = pools_[batch.bucket].order.size();
  ranks.assign(static_cast<size_t>(rows), -1);
  for (int64_t row = 0; row < rows; ++row) {
    const int64_t place = batch.number * rows + row;
    if (place == pool) break;  // only where nothing moves up
    ranks[static_cast<size_t>(row)] = rank_at(batch.bucket, place, epoch);
  }
}

}  // namespace millrace
