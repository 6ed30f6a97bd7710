// Shapes for batches of pairs: every pair has a length on either side, and a batch room for the
// longest of both. Cells cut the plane of lengths so that little of that room stays empty.
#pragma once
#include <cstddef>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

namespace millrace {

using PairCounts = std::map<std::pair<int64_t, int64_t>, int64_t>;  // source, target: how many

// Pairs that are at most so long on either side.
struct PairCell {
  int64_t source = 0, target = 0, count = 0;
  bool fits_into(const PairCell& other) const {
    return source <= other.source && target <= other.target;
  }
  bool operator==(const PairCell&) const = default;
};

struct PairCellSettings {
  double padding = 0.025;   // the share of places without a token that is good enough
  int64_t least = 1;        // pairs that a cell must have, or its batches would not be full
  int64_t most_cells = 64;  // every cell is one more shape to plan and compile
};

class PairCells {
 public:
  // Cell after cell is cut in two, along either side, where that saves most.
  PairCells(const PairCounts& counts, const PairCellSettings& settings);
  // None stands behind one that it would fit into.
  const std::vector<PairCell>& cells() const { return cells_; }
  // Which one a pair of these lengths, that was counted, is of.
  size_t cell_of(int64_t source, int64_t target) const;

 private:
  struct Cut {
    bool by_source = true;
    int64_t at = 0;            // up to this length: `low`
    size_t low = 0, high = 0;  // cuts, or cells above kCell
  };
  static constexpr size_t kCell = size_t{1} << 32;
  std::vector<PairCell> cells_;
  std::vector<Cut> cuts_;
};

}  // namespace millrace
