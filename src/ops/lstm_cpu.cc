// lstm on the CPU. Directions, and groups of rows where there are more threads than directions, run
// through time independently, so that threads never wait for each other inside a sequence. The
// recurrent weights are copied once into the order in which the products read them; what they are
// multiplied with, h of the step before, is read from the result itself.
#include <algorithm>

#include "cpu/kernel.h"
#include "cpu/packed_gemm.h"
#include "cpu/parallel.h"
#include "cpu/small_gemm.h"
#include "cpu/vector_math.h"

namespace millrace::cpu::MR_ISA {
namespace {

// A panel of the packed weights: so many columns of all their rows.
constexpr int64_t kPanel = 4 * kLanes;
constexpr int64_t kFewRows = 2;  // for which a panel is multiplied in one go

int64_t panels(int64_t columns) { return pieces(columns, kPanel); }

struct Sizes {
  Sizes(const Shape& x, const Shape& r) : T(x[0]), B(x[1]), D(x[2]), H(r[1]) {
    // The result of a row does not depend on which rows are computed beside it.
    rows = std::max<int64_t>(1, piece_size(B, std::max<int64_t>(1, parallel_width() / D), 1));
    groups = pieces(B, rows);
  }
  int64_t T, B, D, H;
  int64_t rows, groups;  // of rows that go through time together
  int64_t wide() const { return padded(H); }
  int64_t row(int64_t t, int64_t b, int64_t d) const { return (t * B + b) * D + d; }
  // Of a place or of the one before it, seen in direction d; the latter may not exist.
  int64_t place(int64_t step, int64_t d) const { return d == 0 ? step : T - 1 - step; }
  int64_t before(int64_t t, int64_t d) const { return d == 0 ? t - 1 : t + 1; }
};

// to[panel][k][kPanel] = the columns of a matrix of `depth` rows, as `from(k, column)` has them.
template <typename F>
void pack_panels(int64_t depth, int64_t columns, float* to, const F& from) {
  parallel_tasks(panels(columns), [&](int64_t panel) {
    float* at = to + panel * depth * kPanel;
    for (int64_t k = 0; k < depth; ++k)
      for (int64_t j = 0; j < kPanel; ++j) {
        const int64_t column = panel * kPanel + j;
        *at++ = column < columns ? from(k, column) : 0.0f;
      }
  });
}

// to[M][kPanel] = a panel / panels, with more sums at a time than a pair of vectors gives.
template <int M>
void multiply_few(int64_t depth, const float* a, int64_t a_stride, const float* panel, float* to,
                  int64_t to_stride) {
  Lanes sum[M][4] = {};
  for (int64_t k = 0; k < depth; ++k)
#pragma GCC unroll 4
    for (int n = 0; n < 4; ++n) {
      const Lanes right = load<Lanes>(panel + k * kPanel + n * kLanes);
#pragma GCC unroll 2
      for (int m = 0; m < M; ++m) sum[m][n] += a[m * a_stride + k] * right;
    }
#pragma GCC unroll 2
  for (int m = 0; m < M; ++m)
#pragma GCC unroll 4
    for (int n = 0; n < 4; ++n) store(to + m * to_stride + n * kLanes, sum[m][n]);
}

// to[rows][panels] = a[rows][depth] times packed weights.
void multiply_packed(int64_t rows, int64_t depth, int64_t columns, const float* a, int64_t a_stride,
                     const float* packed, float* to, int64_t to_stride) {
  for (int64_t panel = 0; panel < panels(columns); ++panel) {
    const float* from = packed + panel * depth * kPanel;
    for (int64_t m = 0; m < rows; m += kTileRows)
      with_count<kTileRows>(rows - m, [&](auto count) {
        constexpr int M = decltype(count)::value;
        const float* left = a + m * a_stride;
        float* at = to + m * to_stride + panel * kPanel;
        if constexpr (M <= kFewRows) {
          multiply_few<M>(depth, left, a_stride, from, at, to_stride);
        } else {
          for (int64_t half : {int64_t{0}, 2 * kLanes})
            gemm_tile<Left::rows, M, 2>(depth, left, a_stride, from + half, kPanel, nullptr, 0,
                                        at + half, to_stride);
        }
      });
  }
}

// --- forward

int64_t packed_floats(int64_t depth, int64_t columns) { return panels(columns) * kPanel * depth; }

int64_t workspace_bytes(const OpSite& site) {
  const Shape &x = site.in[0].shape, &r = site.in[1].shape;
  const Sizes s(x, r);
  return (s.D * packed_floats(s.H, 4 * s.wide()) +
          (s.D * s.B + 1) * panels(4 * s.wide()) * kPanel) *
         4;
}

struct Forward {
  const Sizes s;
  const float* x;
  const int32_t* lengths;
  float *y, *last_h, *last_c, *gates, *cells;
  const float* zeros;  // 4 wide() of them

  // One row of a step: z holds the products with h, four parts of wide() numbers.
  void cell(int64_t t, int64_t b, int64_t d, const float* z) const {
    const int64_t H = s.H, at = s.row(t, b, d), wide = s.wide();
    float *h = y + at * H, *c = cells + at * H, *gate = gates + at * 4 * H;
    if (t >= lengths[b]) {
      std::fill_n(h, H, 0.0f);
      std::fill_n(c, H, 0.0f);
      std::fill_n(gate, 4 * H, 0.0f);
      return;
    }
    const float* in = x + at * 4 * H;
    const int64_t before = s.before(t, d);
    const float* earlier = before >= 0 && before < s.T ? cells + s.row(before, b, d) * H : zeros;
#pragma omp simd
    for (int64_t j = 0; j < H; ++j) {
      const float i = vsigmoid(in[j] + z[j]), f = vsigmoid(in[H + j] + z[wide + j]),
                  g = vtanh(in[2 * H + j] + z[2 * wide + j]),
                  o = vsigmoid(in[3 * H + j] + z[3 * wide + j]);
      gate[j] = i;
      gate[H + j] = f;
      gate[2 * H + j] = g;
      gate[3 * H + j] = o;
      const float value = i * g + f * earlier[j];
      c[j] = value;
      h[j] = o * vtanh(value);
    }
  }

  void sequence(int64_t d, int64_t b0, int64_t b1, const float* packed, float* z) const {
    const int64_t H = s.H, wide = panels(4 * s.wide()) * kPanel;
    for (int64_t step = 0; step < s.T; ++step) {
      const int64_t t = s.place(step, d);
      if (step > 0)
        multiply_packed(b1 - b0, H, 4 * s.wide(), y + s.row(s.before(t, d), b0, d) * H, s.D * H,
                        packed, z, wide);
      for (int64_t b = b0; b < b1; ++b) cell(t, b, d, step > 0 ? z + (b - b0) * wide : zeros);
    }
    for (int64_t b = b0; b < b1; ++b) {
      const int64_t length = std::min<int64_t>(lengths[b], s.T), to = (b * s.D + d) * H;
      if (length <= 0) {
        std::fill_n(last_h + to, H, 0.0f);
        std::fill_n(last_c + to, H, 0.0f);
      } else {
        const int64_t from = s.row(d == 0 ? length - 1 : 0, b, d) * H;
        std::copy_n(y + from, H, last_h + to);
        std::copy_n(cells + from, H, last_c + to);
      }
    }
  }
};

void run(const Call& c) {
  const Sizes s(c.in_shape(0), c.in_shape(1));
  const int64_t H = s.H, wide = s.wide(), packed = packed_floats(H, 4 * wide),
                z_wide = panels(4 * wide) * kPanel;
  float *const zeros = c.scratch() + s.D * packed, *const products = zeros + z_wide;
  std::fill_n(zeros, z_wide, 0.0f);
  const Forward f{s, c.in(0), c.ids(2), c.out(0), c.out(1), c.out(2), c.out(3), c.out(4), zeros};
  for (int64_t d = 0; d < s.D; ++d) {
    const float* r = c.in(1) + d * H * 4 * H;
    pack_panels(H, 4 * wide, c.scratch() + d * packed, [&](int64_t k, int64_t column) {
      const int64_t gate = column / wide, unit = column % wide;
      return unit < H ? r[k * 4 * H + gate * H + unit] : 0.0f;
    });
  }
  parallel_tasks(s.D * s.groups, [&](int64_t task) {
    const int64_t d = task % s.D, b0 = task / s.D * s.rows, b1 = std::min(s.B, b0 + s.rows);
    f.sequence(d, b0, b1, c.scratch() + d * packed, products + (d * s.B + b0) * z_wide);
  });
}

// --- gradient

struct Backward {
  const Sizes s;
  const int32_t* lengths;
  const float *gates, *cells, *dy, *dlast_h, *dlast_c;
  const float* zeros;  // H of them
  float* dx;

  // One row of a step. dh holds what came through the step behind it, dc the gradient of its cells,
  // both changed to what goes on to the step before.
  void cell(int64_t t, int64_t b, int64_t d, const float* dh, float* dc) const {
    const int64_t H = s.H, at = s.row(t, b, d), before = s.before(t, d);
    float* dz = dx + at * 4 * H;
    const int64_t length = std::min<int64_t>(lengths[b], s.T);
    if (t >= length) {
      std::fill_n(dz, 4 * H, 0.0f);
      return;
    }
    const bool last = t == (d == 0 ? length - 1 : 0);
    const float* from_last = last ? dlast_h + (b * s.D + d) * H : dh;
    const float* cell_from = last ? dlast_c + (b * s.D + d) * H : dc;
    const float* earlier = before >= 0 && before < s.T ? cells + s.row(before, b, d) * H : zeros;
    const float *gate = gates + at * 4 * H, *from_y = dy + at * H, *cell = cells + at * H;
#pragma omp simd
    for (int64_t j = 0; j < H; ++j) {
      const float i = gate[j], f = gate[H + j], g = gate[2 * H + j], o = gate[3 * H + j];
      const float down = from_last[j] + from_y[j], squashed = vtanh(cell[j]);
      const float change = cell_from[j] + down * o * (1.0f - squashed * squashed);
      dz[j] = change * g * i * (1.0f - i);
      dz[H + j] = change * earlier[j] * f * (1.0f - f);
      dz[2 * H + j] = change * i * (1.0f - g * g);
      dz[3 * H + j] = down * squashed * o * (1.0f - o);
      dc[j] = change * f;
    }
  }

  void sequence(int64_t d, int64_t b0, int64_t b1, const float* packed, float* dh,
                float* dc) const {
    const int64_t H = s.H, wide = panels(H) * kPanel;
    for (int64_t step = s.T - 1; step >= 0; --step) {
      const int64_t t = s.place(step, d);
      for (int64_t b = b0; b < b1; ++b) cell(t, b, d, dh + (b - b0) * wide, dc + (b - b0) * wide);
      if (step > 0)
        multiply_packed(b1 - b0, 4 * H, H, dx + s.row(t, b0, d) * 4 * H, s.D * 4 * H, packed, dh,
                        wide);
    }
  }
};

int64_t grad_workspace_bytes(const OpSite& site) {
  const Sizes s(site.in[3].shape, site.in[0].shape);
  return (s.D * packed_floats(4 * s.H, s.H) + (2 * s.D * s.B + 1) * panels(s.H) * kPanel) * 4;
}

// Columns of a task when the gradient of the weights is made.
constexpr int64_t kStrip = 192;

void run_grad(const Call& c) {
  const Sizes s(c.in_shape(3), c.in_shape(0));
  const int64_t H = s.H, wide = panels(H) * kPanel, packed = packed_floats(4 * H, H);
  float *const zeros = c.scratch() + s.D * packed, *const states = zeros + wide;
  std::fill_n(zeros, wide, 0.0f);
  const Backward f{s, c.ids(1), c.in(3), c.in(4), c.in(5), c.in(6), c.in(7), zeros, c.out(0)};
  for (int64_t d = 0; d < s.D; ++d) {
    const float* r = c.in(0) + d * H * 4 * H;
    pack_panels(4 * H, H, c.scratch() + d * packed,
                [&](int64_t k, int64_t column) { return r[column * 4 * H + k]; });
  }
  parallel_tasks(s.D * s.groups, [&](int64_t task) {
    const int64_t d = task % s.D, b0 = task / s.D * s.rows, b1 = std::min(s.B, b0 + s.rows);
    float* dh = states + (d * s.B + b0) * 2 * wide;
    f.sequence(d, b0, b1, c.scratch() + d * packed, dh, dh + (b1 - b0) * wide);
  });
  // Each step's h' with its dz: for direction 0 the rows of y end one step early, for 1 they begin
  // one step late.
  const int64_t strips = pieces(4 * H, kStrip), depth = std::max<int64_t>(0, s.T - 1) * s.B;
  parallel_tasks(s.D * strips, [&](int64_t task) {
    const int64_t d = task / strips, j = task % strips * kStrip, n = std::min(kStrip, 4 * H - j);
    float* to = c.out(1) + d * H * 4 * H + j;
    if (depth == 0) {
      for (int64_t k = 0; k < H; ++k) std::fill_n(to + k * 4 * H, n, 0.0f);
      return;
    }
    const int64_t y_from = d == 0 ? 0 : 1, dz_from = 1 - y_from;
    multiply({H, n, depth, c.in(2) + s.row(y_from, 0, d) * H, s.D * H, true,
              c.out(0) + s.row(dz_from, 0, d) * 4 * H + j, s.D * 4 * H, false, to, 4 * H, false});
  });
}

}  // namespace
}  // namespace millrace::cpu::MR_ISA

MR_CPU_KERNELS(lstm, {.name = "sequences", .workspace_bytes = workspace_bytes, .run = run})
MR_CPU_KERNELS(lstm_grad,
               {.name = "sequences", .workspace_bytes = grad_workspace_bytes, .run = run_grad})
