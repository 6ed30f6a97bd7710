// The sequences that training reads from records: each record as it is, or cut into chunks of at
// most max_length. Kept on disk beside the tokens, sorted by length, 16 bytes each: batches of
// similar length and packed rows are chosen by rank, and memory does not grow with the data.
#pragma once
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "data/bucketing.h"
#include "data/checked_file.h"
#include "data/dataset.h"

namespace millrace {

struct SequenceOptions {
  int64_t max_length = 128;       // places of a sequence
  std::string chunking = "hard";  // or at the last `sentence` or `paragraph` end that fits
  int64_t overlap = 0;            // tokens of the chunk before that are read again, not scored
};

// Stored tokens [begin, begin + length) of a split. Each is the target of the one before it; what
// stands before the first is the start token when the sequence opens its record, else the token
// before `begin`. The first `context` targets are not scored: an overlap, or the source of a pair.
struct Sequence {
  int64_t begin = 0;
  int32_t length = 0, context = 0;
  bool opens = false;
};

struct LengthSummary {
  int64_t count = 0, sum = 0, least = 0, median = 0, p99 = 0, most = 0;
  double mean() const {
    return count > 0 ? static_cast<double>(sum) / static_cast<double>(count) : 0;
  }
};

struct SequenceSummary {
  LengthSummary before, after;  // records, sequences
  int64_t split = 0;            // records that were cut into several
  int64_t cut = 0;              // pairs that lost tokens
  int64_t too_short = 0;        // records without anything to predict
  // Records by length: bar i counts lengths up to (i + 1) * bar_width, the last one all above.
  int64_t bar_width = 1;
  std::vector<int64_t> bars;
};

// Of things with these lengths that are not cut: by length, how many.
SequenceSummary summary_of_lengths(const std::map<int64_t, int64_t>& counts);

class SequenceIndex {
 public:
  SequenceIndex(const fs::path& folder, const std::string& key);
  int64_t size() const { return size_; }
  const LengthHistogram& lengths() const { return lengths_; }  // in places
  const SequenceSummary& summary() const { return summary_; }
  Sequence at(int64_t rank) const;

 private:
  int64_t size_ = 0;
  LengthHistogram lengths_;
  SequenceSummary summary_;
  std::unique_ptr<CheckedFile> entries_;
};

// Finds the index beside the tokens of a split, or makes it: two passes over the records and more.
std::unique_ptr<SequenceIndex> open_sequence_index(const Dataset& data, SplitName split,
                                                   const SequenceOptions& options,
                                                   DataObserver& observer);

}  // namespace millrace
