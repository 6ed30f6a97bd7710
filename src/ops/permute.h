// The dimensions of a permute node as its kernels walk them: those that stay neighbours are one.
#pragma once
#include <array>

#include "graph/op.h"

namespace millrace {

// The output's dimensions, outermost first: size, and the distance between neighbours in the input.
// Sizes are 2 or more.
struct PermutedAxes {
  int rank = 0;
  std::array<int64_t, Shape::kMaxRank> size{}, from{};
};
PermutedAxes merged_axes(const Shape& in, const Shape& order);

}  // namespace millrace
