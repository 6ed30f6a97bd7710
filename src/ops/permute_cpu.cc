// permute on the CPU. Dimensions that stay neighbours are merged first. When the innermost stays in
// place, runs are copied; otherwise it is a transpose, done in tiles so that both sides use whole
// cache lines. Ids are moved as if they were floats: bits are bits.
#include <algorithm>
#include <array>

#include "cpu/kernel.h"
#include "cpu/parallel.h"
#include "ops/permute.h"

namespace millrace::cpu::MR_ISA {
namespace {

constexpr int64_t kTile = 16;  // floats in a cache line

// With the distance between neighbours in the output.
struct Axes : PermutedAxes {
  explicit Axes(const PermutedAxes& merged) : PermutedAxes(merged) {
    int64_t step = 1;
    for (int d = rank - 1; d >= 0; --d) {
      to[static_cast<size_t>(d)] = step;
      step *= size[static_cast<size_t>(d)];
    }
  }
  std::array<int64_t, Shape::kMaxRank> to{};
};

struct Offsets {
  int64_t from = 0, to = 0;
};

// Where the `index`-th combination of the axes other than `a` and `b` begins.
Offsets offsets_of(const Axes& axes, int64_t index, int a, int b) {
  Offsets at;
  for (int d = axes.rank - 1; d >= 0; --d) {
    if (d == a || d == b) continue;
    const auto k = static_cast<size_t>(d);
    at.from += index % axes.size[k] * axes.from[k];
    at.to += index % axes.size[k] * axes.to[k];
    index /= axes.size[k];
  }
  return at;
}

// Inlined twice, once with the sizes known. By way of `tile`, both sides touch a cache line once.
inline void transpose_tile(const float* from, int64_t from_step, float* to, int64_t to_step,
                           int64_t height, int64_t width) {
  float tile[kTile][kTile];
  for (int64_t j = 0; j < width; ++j)
    for (int64_t i = 0; i < height; ++i) tile[j][i] = from[j * from_step + i];
  for (int64_t i = 0; i < height; ++i)
    for (int64_t j = 0; j < width; ++j) to[i * to_step + j] = tile[j][i];
}

std::shared_ptr<const void> prepare(const OpSite& site) {
  const Shape order = shape_from_text(site.attrs.text("order"));
  return std::make_shared<Axes>(merged_axes(site.in[0].shape, order));
}

void run(const Call& c) {
  const int64_t count = c.out_shape(0).numel();
  if (count == 0) return;
  const Axes& axes = *static_cast<const Axes*>(c.prepared);
  const float* x = c.in(0);
  float* y = c.out(0);
  if (axes.rank == 0) {
    *y = *x;
    return;
  }
  const int inner = axes.rank - 1;
  const int64_t run_length = axes.size[static_cast<size_t>(inner)];
  if (axes.from[static_cast<size_t>(inner)] == 1) {
    const int64_t grain = std::max<int64_t>(1, 16384 / run_length);
    parallel_ranges(count / run_length, grain, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i)
        std::copy_n(x + offsets_of(axes, i, inner, inner).from, run_length, y + i * run_length);
    });
    return;
  }
  // The axis along which the input is contiguous; with the output's innermost, the transposed pair.
  int outer = 0;
  while (axes.from[static_cast<size_t>(outer)] != 1) ++outer;
  const int64_t rows = axes.size[static_cast<size_t>(outer)], tiles = (rows + kTile - 1) / kTile;
  const int64_t x_step = axes.from[static_cast<size_t>(inner)];
  const int64_t y_step = axes.to[static_cast<size_t>(outer)];
  parallel_tasks(count / (run_length * rows) * tiles, [&](int64_t task) {
    const Offsets at = offsets_of(axes, task / tiles, inner, outer);
    const int64_t first = task % tiles * kTile, height = std::min(kTile, rows - first);
    for (int64_t column = 0; column < run_length; column += kTile) {
      const int64_t width = std::min(kTile, run_length - column);
      const float* from = x + at.from + first + column * x_step;
      float* to = y + at.to + first * y_step + column;
      if (height == kTile && width == kTile)
        transpose_tile(from, x_step, to, y_step, kTile, kTile);
      else
        transpose_tile(from, x_step, to, y_step, height, width);
    }
  });
}

}  // namespace
}  // namespace millrace::cpu::MR_ISA

MR_CPU_KERNELS(permute, {.name = "tiles", .prepare = prepare, .run = run})
