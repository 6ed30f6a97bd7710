// Rotary position embedding: cosines and sines of the positions 0 .. T-1 (plus the offset) come
// from a table made at plan time; positions given at run time that lie outside it are computed on
// the spot.
#include <algorithm>
#include <cmath>
#include <memory>

#include "cpu/kernel.h"
#include "cpu/parallel.h"
#include "ops/rope.h"

namespace millrace::cpu::MR_ISA {
namespace {

struct Rotation {
  explicit Rotation(const Attrs& attrs)
      : H(attrs.integer("heads")),
        G(attrs.integer("kv_heads")),
        K(attrs.integer("head_dim")),
        offset(attrs.integer("offset", 0)),
        positions(attrs.integer("positions", 0) != 0),
        direction(attrs.integer("inverse", 0) != 0 ? -1 : 1) {}

  double angle(int64_t position, double frequency) const {
    return direction * static_cast<double>(position) * frequency;
  }

  int64_t H, G, K, offset;
  bool positions;
  double direction;
};

struct Table {
  int64_t steps;
  std::unique_ptr<double[]> frequencies;    // [K/2]
  std::unique_ptr<float[]> cosines, sines;  // [T, K/2]
};

std::shared_ptr<const void> prepare(const OpSite& site) {
  const Rotation r(site.attrs);
  const int64_t half = r.K / 2, steps = site.in[0].shape[1];
  const auto size = static_cast<size_t>(steps * half);
  auto table = std::make_shared<Table>();
  table->steps = steps;
  table->frequencies.reset(new double[static_cast<size_t>(half)]);
  for (int64_t d = 0; d < half; ++d)
    table->frequencies[static_cast<size_t>(d)] = rope_frequency(site.attrs, d, r.K);
  table->cosines.reset(new float[size]);
  table->sines.reset(new float[size]);
  for (int64_t t = 0; t < steps; ++t)
    for (int64_t d = 0; d < half; ++d) {
      const double angle =
          r.angle(t + (r.positions ? 0 : r.offset), table->frequencies[static_cast<size_t>(d)]);
      table->cosines[static_cast<size_t>(t * half + d)] = static_cast<float>(std::cos(angle));
      table->sines[static_cast<size_t>(t * half + d)] = static_cast<float>(std::sin(angle));
    }
  return table;
}

void turn(const float* x, float* y, int64_t pair, float cosine, float sine) {
  const float first = x[0], second = x[pair];
  y[0] = first * cosine - second * sine;
  y[pair] = second * cosine + first * sine;
}

void run(const Call& call) {
  const Rotation r(call.attrs());
  const auto& table = *static_cast<const Table*>(call.prepared);
  const int64_t half = r.K / 2, width = (r.H + 2 * r.G) * r.K, turned = (r.H + r.G) * r.K;
  const int64_t steps = table.steps, rows = call.in_shape(0)[0] * steps;
  parallel_ranges(rows, std::max(int64_t{1}, 16384 / width), [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const float* x = call.in(0) + row * width;
      float* y = call.out(0) + row * width;
      const int64_t t = r.positions ? call.ids(1)[row] : row % steps;
      if (t >= 0 && t < steps) {
        const float *cosines = table.cosines.get() + t * half,
                    *sines = table.sines.get() + t * half;
        for (int64_t head = 0; head < turned; head += r.K)
#pragma omp simd
          for (int64_t d = 0; d < half; ++d)
            turn(x + head + d, y + head + d, half, cosines[d], sines[d]);
      } else {
        for (int64_t d = 0; d < half; ++d) {
          const double angle = r.angle(t, table.frequencies[static_cast<size_t>(d)]);
          const auto cosine = static_cast<float>(std::cos(angle)),
                     sine = static_cast<float>(std::sin(angle));
          for (int64_t head = 0; head < turned; head += r.K)
            turn(x + head + d, y + head + d, half, cosine, sine);
        }
      }
      if (x != y) std::copy(x + turned, x + width, y + turned);
    }
  });
}

}  // namespace
}  // namespace millrace::cpu::MR_ISA

MR_CPU_KERNELS(rope, {.name = "table", .prepare = prepare, .run = run})
