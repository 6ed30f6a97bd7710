// The pairs that a model reads whose source and target stand apart: where each begins and how long
// its sides are, 16 bytes each, on disk beside the tokens. Sorted by the cell of their lengths
// (pair_cells.h), so that batches are chosen by rank, and memory does not grow with the data.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "data/checked_file.h"
#include "data/dataset.h"
#include "data/kept.h"
#include "data/pair_cells.h"
#include "data/sequence_index.h"

namespace millrace {

struct PairOptions {
  int64_t max_source = 128, max_target = 128;  // tokens that are read; the rest is cut off
  int64_t least = 1;                           // of a cell
};

// Tokens of a split: `source` from `begin` on, of which the first max_source are read; behind them
// the target, of which `target` are read.
struct Pair {
  int64_t begin = 0;
  int32_t source = 0, target = 0;
};

struct PairSummary {
  LengthSummary source, target;              // before anything is cut
  int64_t cut_sources = 0, cut_targets = 0;  // how many lost tokens
  int64_t useful = 0;                        // tokens that are read
  bool operator==(const PairSummary&) const = default;
};

// meta.json of an index. Error when it is not what was written, or contradicts itself.
struct PairIndexInfo {
  std::string key;
  std::vector<PairCell> cells = {};
  PairSummary summary = {};
};
PairIndexInfo read_pair_index_header(std::string_view text, const fs::path& name);
std::string pair_index_header_text(const PairIndexInfo& info);

// An entry of pairs.bin. Error when it does not lie inside `tokens` or does not fit its cell.
constexpr size_t kPairBytes = 16;
using PairBytes = std::array<std::byte, kPairBytes>;
PairBytes encode_pair(const Pair& pair);
Pair decode_pair(const PairBytes& bytes, const PairCell& cell, int64_t max_source, int64_t tokens,
                 const fs::path& name);

class PairIndex {
 public:
  PairIndex(const fs::path& folder, const std::string& key, const PairOptions& options,
            int64_t tokens);
  int64_t size() const { return ends_.empty() ? 0 : ends_.back(); }
  const std::vector<PairCell>& cells() const { return info_.cells; }
  const PairSummary& summary() const { return info_.summary; }
  Pair at(int64_t rank) const;

 private:
  PairIndexInfo info_;
  PairOptions options_;
  int64_t tokens_;
  std::vector<int64_t> ends_;  // by cell: pairs of it and those before
  std::unique_ptr<CheckedFile> entries_;
};

using KeptPairs = Kept<PairIndex>;

// Finds the index beside the tokens of a split, or makes it: two passes over the records and more.
// The observer must outlive it, as it must the data set.
std::unique_ptr<KeptPairs> open_pair_index(const Dataset& data, SplitName split,
                                           const PairOptions& options, DataObserver& observer);

}  // namespace millrace
