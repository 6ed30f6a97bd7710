// The sequences that training reads from records: each record as it is, or cut into chunks of at
// most max_length. Kept on disk beside the tokens, sorted by length, 16 bytes each: batches of
// similar length and packed rows are chosen by rank, and memory does not grow with the data.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "data/bucketing.h"
#include "data/checked_file.h"
#include "data/dataset.h"
#include "data/kept.h"

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
  bool operator==(const LengthSummary&) const = default;
};

struct SequenceSummary {
  LengthSummary before, after;  // records, sequences
  int64_t split = 0;            // records that were cut into several
  int64_t cut = 0;              // pairs that lost tokens
  int64_t too_short = 0;        // records without anything to predict
  // Records by length: bar i counts lengths up to (i + 1) * bar_width, the last one all above.
  int64_t bar_width = 1;
  std::vector<int64_t> bars;
  bool operator==(const SequenceSummary&) const = default;
};

// Of things with these lengths that are not cut: by length, how many.
SequenceSummary summary_of_lengths(const std::map<int64_t, int64_t>& counts);

// meta.json of an index. Error when it is not what was written, or contradicts itself.
struct SequenceIndexInfo {
  std::string key;
  int64_t size = 0;
  std::map<int64_t, int64_t> lengths = {};  // by places, how many
  SequenceSummary summary = {};
};
SequenceIndexInfo read_sequence_index_header(std::string_view text, const fs::path& name);
std::string sequence_index_header_text(const SequenceIndexInfo& info);

// What the sequences of a split are cut from.
struct SequenceBounds {
  int64_t tokens = 0, max_length = 0;
  bool has_start = false;  // the tokenizer has a start token
};
// An entry of sequences.bin. Error when it does not lie inside the tokens or does not take `places`
// in a row.
constexpr size_t kSequenceBytes = 16;
using SequenceBytes = std::array<std::byte, kSequenceBytes>;
SequenceBytes encode_sequence(const Sequence& sequence);
Sequence decode_sequence(const SequenceBytes& bytes, int64_t places, const SequenceBounds& bounds,
                         const fs::path& name);

class SequenceIndex {
 public:
  SequenceIndex(const fs::path& folder, const std::string& key, const SequenceBounds& bounds);
  int64_t size() const { return info_.size; }
  const LengthHistogram& lengths() const { return lengths_; }  // in places
  const SequenceSummary& summary() const { return info_.summary; }
  Sequence at(int64_t rank) const;

 private:
  SequenceIndexInfo info_;
  SequenceBounds bounds_;
  LengthHistogram lengths_;
  std::vector<int64_t> ends_;  // by length: sequences that are no longer
  std::unique_ptr<CheckedFile> entries_;
};

using KeptSequences = Kept<SequenceIndex>;

// Finds the index beside the tokens of a split, or makes it: two passes over the records and more.
// The observer must outlive it, as it must the data set.
std::unique_ptr<KeptSequences> open_sequence_index(const Dataset& data, SplitName split,
                                                   const SequenceOptions& options,
                                                   DataObserver& observer);

}  // namespace millrace
