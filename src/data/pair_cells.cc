#include "data/pair_cells.h"

#include <algorithm>
#include <numeric>

#include "core/error.h"

namespace millrace {
namespace {

struct Point {
  int64_t source, target, count;
};

struct Part {
  std::vector<Point> points;
  PairCell cell;
  // The best cut of it; no gain: none.
  bool by_source = true;
  int64_t at = 0, gain = 0;
  size_t parent = 0;  // the cut that leads here
  bool low = false;
};

int64_t places(const PairCell& cell) { return cell.count * (cell.source + cell.target); }

void grow(PairCell& cell, const Point& p) {
  cell.source = std::max(cell.source, p.source);
  cell.target = std::max(cell.target, p.target);
  cell.count += p.count;
}

void find_cut(Part& part, int64_t least) {
  std::vector<PairCell> above(part.points.size() + 1);
  for (const bool by_source : {true, false}) {
    auto length = [&](const Point& p) { return by_source ? p.source : p.target; };
    std::sort(part.points.begin(), part.points.end(),
              [&](const Point& a, const Point& b) { return length(a) < length(b); });
    for (size_t i = part.points.size(); i-- > 0;) {
      above[i] = above[i + 1];
      grow(above[i], part.points[i]);
    }
    PairCell below;
    for (size_t i = 0; i + 1 < part.points.size(); ++i) {
      grow(below, part.points[i]);
      if (length(part.points[i]) == length(part.points[i + 1])) continue;
      if (below.count < least || above[i + 1].count < least) continue;
      const int64_t gain = places(part.cell) - places(below) - places(above[i + 1]);
      if (gain <= part.gain) continue;
      part.by_source = by_source;
      part.at = length(part.points[i]);
      part.gain = gain;
    }
  }
}

Part part_of(std::vector<Point> points, int64_t least, size_t parent, bool low) {
  Part part{.points = std::move(points), .cell = {}, .parent = parent, .low = low};
  for (const Point& p : part.points) grow(part.cell, p);
  find_cut(part, least);
  return part;
}

}  // namespace

PairCells::PairCells(const PairCounts& counts, const PairCellSettings& settings) {
  if (counts.empty()) return;
  std::vector<Point> all;
  int64_t useful = 0;
  for (const auto& [lengths, count] : counts) {
    MR_CHECK(lengths.first >= 1 && lengths.second >= 1 && count >= 1, "{} pairs of {} and {}",
             count, lengths.first, lengths.second);
    all.push_back({lengths.first, lengths.second, count});
    useful += count * (lengths.first + lengths.second);
  }
  std::vector<Part> parts;
  parts.push_back(part_of(std::move(all), settings.least, 0, false));
  int64_t taken = places(parts[0].cell);
  while (std::ssize(parts) < settings.most_cells &&
         static_cast<double>(taken - useful) > settings.padding * static_cast<double>(taken)) {
    const auto best = std::max_element(
        parts.begin(), parts.end(), [](const Part& a, const Part& b) { return a.gain < b.gain; });
    // Below a thousandth it is not worth another plan.
    if (best->gain * 1000 < taken) break;
    taken -= best->gain;
    Part part = std::move(*best);
    parts.erase(best);
    const auto middle = std::partition(part.points.begin(), part.points.end(), [&](const Point& p) {
      return (part.by_source ? p.source : p.target) <= part.at;
    });
    const size_t cut = cuts_.size();
    if (cut > 0) (part.low ? cuts_[part.parent].low : cuts_[part.parent].high) = cut;
    cuts_.push_back({part.by_source, part.at, 0, 0});
    parts.push_back(part_of({part.points.begin(), middle}, settings.least, cut, true));
    parts.push_back(part_of({middle, part.points.end()}, settings.least, cut, false));
  }
  // One that fits into another has the smaller sum, or is equal.
  std::stable_sort(parts.begin(), parts.end(), [](const Part& a, const Part& b) {
    return a.cell.source + a.cell.target < b.cell.source + b.cell.target;
  });
  for (size_t i = 0; i < parts.size(); ++i) {
    cells_.push_back(parts[i].cell);
    if (!cuts_.empty())
      (parts[i].low ? cuts_[parts[i].parent].low : cuts_[parts[i].parent].high) = kCell + i;
  }
}

size_t PairCells::cell_of(int64_t source, int64_t target) const {
  if (cuts_.empty()) return 0;
  size_t at = 0;
  while (at < kCell) {
    const Cut& cut = cuts_[at];
    at = (cut.by_source ? source : target) <= cut.at ? cut.low : cut.high;
  }
  return at - kCell;
}

}  // namespace millrace
