// attention_decoder and its gradient. What is sequential goes step by step, every step cut into
// panels of columns (products) and slices of source places (attention); a slice has its own maximum
// and sum, as in arXiv 2205.14135. Most of the time goes into tanh, which the gradient computes
// again, once: kept for all steps it would be far larger than any cache.
#include <cstring>

#include "cpu/gemm.h"
#include "cpu/kernel.h"
#include "cpu/packed_gemm.h"
#include "cpu/parallel.h"
#include "cpu/small_gemm.h"
#include "cpu/softmax_lanes.h"
#include "cpu/vector_math.h"
#include "ops/attention_decoder.h"
#include "ops/row_math_cpu.h"

namespace millrace::cpu::MR_ISA {
namespace {

// What tasks compute stands in functions that are not inlined: a copy for one thread and a copy for
// a team, each optimised where it stands, would not have the same bits.

constexpr int64_t kPanel = 4 * kLanes;  // columns
constexpr int64_t kPlaces = 64;         // of a slice
constexpr int64_t kBandRows = 48;       // of a product in one task

// tanh as a quotient of polynomials (the coefficients of Eigen's, error of a few ulp): half the
// work of vtanh, which goes by exp. For a float and for a vector of them.
template <typename Float>
inline Float tanh_of(Float x) {
  const Float most = Float{} + 7.90531110763549805f;
  x = x > most ? most : x;
  x = x < -most ? -most : x;
  const Float z = x * x;
  Float p = z * -2.76076847742355e-16f + 2.00018790482477e-13f;
  p = p * z - 8.60467152213735e-11f;
  p = p * z + 5.12229709037114e-08f;
  p = p * z + 1.48572235717979e-05f;
  p = p * z + 6.37261928875436e-04f;
  p = p * z + 4.89352455891786e-03f;
  Float q = z * 1.19825839466702e-06f + 1.18534705686654e-04f;
  q = q * z + 2.26843463243900e-03f;
  q = q * z + 4.89352518554385e-03f;
  return x * p / q;
}

// tanh and a quarter of its slope, without what 1 - tanh^2 loses: with e = e^-2x and s = 1 / (1 +
// e) they are s - e s and s (e s). 2^f on [-1/2, 1/2] is a minimax polynomial of its own (relative
// error 3e-9), which takes no logarithm's factor. For a float and for a vector of them.
template <typename Float>
struct Squashed {
  Float y, quarter_slope;
};
template <typename Float>
inline Squashed<Float> squash(Float x) {
  const Float most = Float{} + 40.0f;  // from there on 1 and nearly 0
  x = x > most ? most : x;
  x = x < -most ? -most : x;
  const Float n = (x * -2.88539008177792681f + 12582912.0f) - 12582912.0f;
  const Float f = x * -2.88539008177792681f - n;
  Float p = f * 1.559467760e-4f + 1.340664391e-3f;
  p = p * f + 9.617692975e-3f;
  p = p * f + 5.550310551e-2f;
  p = p * f + 2.402265278e-1f;
  p = p * f + 6.931472150e-1f;
  const Float e = times_power(p * f + 1.0f, n);
  const Float s = reciprocal(e + 1.0f), rest = e * s;
  return {s - rest, s * rest};
}

// Hands out pieces of the workspace, each on a cache line of its own; without one it counts.
class Pieces {
 public:
  explicit Pieces(float* base) : base_(base) {}
  float* take(int64_t floats) {
    float* piece = base_ ? base_ + used_ : nullptr;
    used_ += (floats + 15) / 16 * 16;
    return piece;
  }
  int64_t bytes() const { return used_ * static_cast<int64_t>(sizeof(float)); }

 private:
  float* base_;
  int64_t used_ = 0;
};

// A matrix [depth, columns] as panels [depth][kPanel], zeros behind the last column.
int64_t panel_floats(int64_t depth, int64_t columns) {
  return depth * pieces(columns, kPanel) * kPanel;
}

void pack_rows(const float* from, int64_t depth, int64_t columns, float* to) {
  parallel_tasks(pieces(columns, kPanel), [&](int64_t panel) {
    const int64_t n = std::min(kPanel, columns - panel * kPanel);
    for (int64_t k = 0; k < depth; ++k) {
      float* row = to + (panel * depth + k) * kPanel;
      std::copy_n(from + k * columns + panel * kPanel, n, row);
      std::fill_n(row + n, kPanel - n, 0.0f);
    }
  });
}

// The same from its transpose, [columns, depth].
void pack_columns(const float* from, int64_t depth, int64_t columns, float* to) {
  parallel_tasks(pieces(columns, kPanel), [&](int64_t panel) {
    const int64_t n = std::min(kPanel, columns - panel * kPanel);
    float* first = to + panel * depth * kPanel;
    if (n < kPanel) std::fill_n(first, depth * kPanel, 0.0f);
    copy_transposed(n, depth, from + panel * kPanel * depth, depth, first, kPanel, 1.0f);
  });
}

// c[rows][kPanel] (+)= a[rows, depth] times a panel.
[[gnu::noinline]] void multiply_panel(int64_t rows, int64_t depth, const float* a,
                                      const float* panel, float* c, bool accumulate) {
  if (rows == 1)
    return gemm_tile<Left::rows, 1, 4>(depth, a, depth, panel, kPanel, accumulate ? c : nullptr,
                                       kPanel, c, kPanel);
  small_gemm<Left::rows>(0, rows, a, depth, panel, kPanel, c, kPanel, accumulate,
                         [&](int64_t, int64_t) {
                           return GemmPart{kPanel, 0, depth};
                         });
}

// f(panel, first row, rows) for all panels and all bands of rows.
template <typename F>
void for_panels(int64_t columns, int64_t rows, const F& f) {
  const int64_t panels = pieces(columns, kPanel);
  parallel_tasks(panels * pieces(rows, kBandRows), [&](int64_t task) {
    const int64_t r0 = task / panels * kBandRows;
    f(task % panels, r0, std::min(kBandRows, rows - r0));
  });
}

// o[0, n) += p[0] v[0] + … + p[count - 1] v[count - 1], rows of v behind each other.
void add_rows(float* o, const float* p, const float* v, int64_t count, int64_t n) {
  int64_t j = 0;
  for (; j + 4 <= count; j += 4, v += 4 * n) {
    const float *v0 = v, *v1 = v + n, *v2 = v1 + n, *v3 = v2 + n;
    const float p0 = p[j], p1 = p[j + 1], p2 = p[j + 2], p3 = p[j + 3];
#pragma omp simd
    for (int64_t d = 0; d < n; ++d) o[d] += (p0 * v0[d] + p1 * v1[d]) + (p2 * v2[d] + p3 * v3[d]);
  }
  for (; j < count; ++j, v += n) {
    const float p0 = p[j];
#pragma omp simd
    for (int64_t d = 0; d < n; ++d) o[d] += p0 * v[d];
  }
}

// to[0, n) = the sum of `count` rows, in order.
void sum_rows(float* to, const float* from, int64_t stride, int64_t count, int64_t n) {
  std::fill_n(to, n, 0.0f);
  for (int64_t r = 0; r < count; ++r) {
    const float* row = from + r * stride;
#pragma omp simd
    for (int64_t d = 0; d < n; ++d) to[d] += row[d];
  }
}

// What both passes know of their slices.
struct Sliced : DecoderSite {
  explicit Sliced(const OpSite& site) : DecoderSite(site), slices(pieces(S, kPlaces)) {}

  // f(sequence, slice, first place, places of it that take part)
  template <typename F>
  void for_slices(const int32_t* lengths, const F& f) const {
    parallel_tasks(B * slices, [&](int64_t task) {
      const int64_t b = task / slices, first = task % slices * kPlaces;
      f(b, task % slices, first,
        std::clamp<int64_t>(places(lengths[b / beams]) - first, 0, kPlaces));
    });
  }
  int64_t slices;
};

struct Forward : Sliced {
  Forward(const OpSite& site, float* base) : Sliced(site), memory_of(base) {
    w = memory_of.take((H + M) * pieces(H, kLanes) * kPanel);
    wq = memory_of.take(panel_floats(H, A));
    q = memory_of.take(B * A);
    tops = memory_of.take(B * slices);
    sums = memory_of.take(B * slices);
    shares = memory_of.take(B * slices * M);
    covered = memory_of.take(coverage ? B * S : 0);
  }
  Pieces memory_of;
  float *w, *wq, *q, *tops, *sums, *shares, *covered;
};

// Panels of w by hidden units: the four gates of kLanes units stand together.
void pack_gates(const Forward& p, const float* w) {
  parallel_tasks(pieces(p.H, kLanes), [&](int64_t panel) {
    const int64_t unit = panel * kLanes, n = std::min(kLanes, p.H - unit);
    for (int64_t k = 0; k < p.H + p.M; ++k)
      for (int64_t gate = 0; gate < 4; ++gate) {
        float* to = p.w + (panel * (p.H + p.M) + k) * kPanel + gate * kLanes;
        std::copy_n(w + (k * 4 + gate) * p.H + unit, n, to);
        std::fill_n(to + n, kLanes - n, 0.0f);
      }
  });
}

// h and c of rows [r0, r0 + rows) for the units of one panel.
[[gnu::noinline]] void step_cells(const Call& c, const Forward& p, int64_t t, int64_t panel,
                                  int64_t r0, int64_t rows) {
  alignas(64) float z[kBandRows * kPanel];
  const int64_t unit = panel * kLanes, n = std::min(kLanes, p.H - unit), at = t * p.B + r0,
                before = at - p.B, depth = p.H + p.M;
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t gate = 0; gate < 4; ++gate) {
      float* to = z + r * kPanel + gate * kLanes;
      std::copy_n(c.in(kDecoderX) + ((at + r) * 4 + gate) * p.H + unit, n, to);
      std::fill_n(to + n, kLanes - n, 0.0f);
    }
  const float *h_before = t ? c.out(0) + before * p.H : c.in(kDecoderH0) + r0 * p.H,
              *c_before = t ? c.out(4) + before * p.H : c.in(kDecoderC0) + r0 * p.H,
              *w = p.w + panel * depth * kPanel;
  multiply_panel(rows, p.H, h_before, w, z, true);
  const float* context = t           ? c.out(1) + before * p.M
                         : p.resumed ? c.in(p.context0()) + r0 * p.M
                                     : nullptr;
  if (context) multiply_panel(rows, p.M, context, w + p.H * kPanel, z, true);
  for (int64_t r = 0; r < rows; ++r) {
    const float *zi = z + r * kPanel, *old = c_before + r * p.H + unit;
    float *gates = c.out(3) + (at + r) * 4 * p.H + unit, *cell = c.out(4) + (at + r) * p.H + unit,
          *h = c.out(0) + (at + r) * p.H + unit;
#pragma omp simd
    for (int64_t j = 0; j < n; ++j) {
      const float i = vsigmoid(zi[j]), f = vsigmoid(zi[kLanes + j]), g = vtanh(zi[2 * kLanes + j]),
                  o = vsigmoid(zi[3 * kLanes + j]);
      const float now = f * old[j] + i * g;
      gates[j] = i;
      gates[p.H + j] = f;
      gates[2 * p.H + j] = g;
      gates[3 * p.H + j] = o;
      cell[j] = now;
      h[j] = o * vtanh(now);
    }
  }
}

// e[r] = v . tanh(key of r + q + covered[r] wc), the keys of R places behind each other.
template <int R, bool kCoverage>
inline void scores(int64_t A, const float* v, const float* q, const float* wc, const float* keys,
                   const float* covered, float* e) {
  Lanes sums[R] = {};
  auto strip = [&]<typename Float>(int64_t a, Float* to) {
    const Float factor = load<Float>(v + a), query = load<Float>(q + a);
    Float cover{};
    if constexpr (kCoverage) cover = load<Float>(wc + a);
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r) {
      Float u = load<Float>(keys + r * A + a) + query;
      if constexpr (kCoverage) u += covered[r] * cover;
      to[r] += factor * tanh_of(u);
    }
  };
  int64_t a = 0;
  for (; a + kLanes <= A; a += kLanes) strip(a, sums);
  for (int r = 0; r < R; ++r) e[r] = across(sums[r], [](Lanes x, Lanes y) { return x + y; });
  for (; a < A; ++a) strip(a, e);
}

template <bool kCoverage>
inline void all_scores(int64_t count, int64_t A, const float* v, const float* q, const float* wc,
                       const float* keys, const float* covered, float* e) {
  constexpr int kAtOnce = 4;
  int64_t s = 0;
  for (; s + kAtOnce <= count; s += kAtOnce)
    scores<kAtOnce, kCoverage>(A, v, q, wc, keys + s * A, covered + s, e + s);
  for (; s < count; ++s) scores<1, kCoverage>(A, v, q, wc, keys + s * A, covered + s, e + s);
}

// Scores of a slice, their exponentials, and the sum of the memory with these.
[[gnu::noinline]] void attend_slice(const Call& c, const Forward& p, int64_t t, int64_t b,
                                    int64_t slice, int64_t first, int64_t count) {
  const int64_t at = b * p.slices + slice, A = p.A, place = b / p.beams * p.S + first;
  float *e = c.out(2) + (t * p.B + b) * p.S + first, *share = p.shares + at * p.M;
  const float *q = p.q + b * A, *v = c.in(kDecoderV), *keys = c.in(kDecoderKeys) + place * A;
  std::fill_n(share, p.M, 0.0f);
  p.tops[at] = -INFINITY;
  p.sums[at] = 0;
  if (count == 0) return;
  if (p.coverage)
    all_scores<true>(count, A, v, q, c.in(kDecoderWc), keys, p.covered + b * p.S + first, e);
  else
    all_scores<false>(count, A, v, q, nullptr, keys, nullptr, e);
  const float top = max_of(e, count);
#pragma omp simd
  for (int64_t s = 0; s < count; ++s) e[s] = vexp(e[s] - top);
  p.tops[at] = top;
  p.sums[at] = sum_over(count, [=](int64_t s) { return e[s]; });
  add_rows(share, e, c.in(kDecoderMemory) + place * p.M, count, p.M);
}

// The slices of a sequence put together.
[[gnu::noinline]] void join_slices(const Call& c, const Forward& p, int64_t t, int64_t b) {
  const int64_t row = t * p.B + b, places = p.places(c.ids(kDecoderLengths)[b / p.beams]);
  const float *tops = p.tops + b * p.slices, *sums = p.sums + b * p.slices;
  float *context = c.out(1) + row * p.M, *attention = c.out(2) + row * p.S;
  std::fill_n(context, p.M, 0.0f);
  std::fill_n(attention + places, p.S - places, 0.0f);
  float overlap = 0;
  if (places > 0) {
    const float top = max_of(tops, p.slices);
    float sum = 0;
    for (int64_t i = 0; i < p.slices; ++i) sum += sums[i] * vexp(tops[i] - top);
    for (int64_t i = 0; i * kPlaces < places; ++i) {
      const float factor = vexp(tops[i] - top) / sum, *share = p.shares + (b * p.slices + i) * p.M;
#pragma omp simd
      for (int64_t m = 0; m < p.M; ++m) context[m] += factor * share[m];
      float* a = attention + i * kPlaces;
      const int64_t count = std::min(kPlaces, places - i * kPlaces);
#pragma omp simd
      for (int64_t s = 0; s < count; ++s) a[s] *= factor;
    }
    if (p.coverage) {
      float* covered = p.covered + b * p.S;
      overlap = sum_over(places, [=](int64_t s) { return std::min(attention[s], covered[s]); });
#pragma omp simd
      for (int64_t s = 0; s < places; ++s) covered[s] += attention[s];
    }
  }
  if (p.coverage) c.out(5)[row] = overlap;
}

int64_t workspace_bytes(const OpSite& site) { return Forward(site, nullptr).memory_of.bytes(); }

void run(const Call& c) {
  const Forward p(c.site, c.scratch());
  if (p.T * p.B == 0) return;
  pack_gates(p, c.in(kDecoderW));
  pack_rows(c.in(kDecoderWq), p.H, p.A, p.wq);
  if (p.coverage && p.resumed)
    std::copy_n(c.in(p.covered0()), p.B * p.S, p.covered);
  else if (p.coverage)
    std::fill_n(p.covered, p.B * p.S, 0.0f);
  for (int64_t t = 0; t < p.T; ++t) {
    for_panels(pieces(p.H, kLanes) * kPanel, p.B, [&](int64_t panel, int64_t r0, int64_t rows) {
      step_cells(c, p, t, panel, r0, rows);
    });
    for_panels(p.A, p.B, [&](int64_t panel, int64_t r0, int64_t rows) {
      alignas(64) float product[kBandRows * kPanel];
      const int64_t a = panel * kPanel, n = std::min(kPanel, p.A - a);
      multiply_panel(rows, p.H, c.out(0) + (t * p.B + r0) * p.H, p.wq + panel * p.H * kPanel,
                     product, false);
      for (int64_t r = 0; r < rows; ++r)
        std::copy_n(product + r * kPanel, n, p.q + (r0 + r) * p.A + a);
    });
    p.for_slices(c.ids(kDecoderLengths), [&](int64_t b, int64_t slice, int64_t first, int64_t n) {
      attend_slice(c, p, t, b, slice, first, n);
    });
    parallel_tasks(p.B, [&](int64_t b) { join_slices(c, p, t, b); });
  }
}

// --- the gradient

struct Backward : Sliced {
  Backward(const Call* c, const OpSite& site)
      : Sliced(site), rest(site.attrs), memory_of(c ? c->scratch() : nullptr) {
    w = memory_of.take(panel_floats(4 * H, H + M));
    wq = memory_of.take(panel_floats(A, H));
    q = memory_of.take(T * B * A);
    dq = memory_of.take(T * B * A);
    de = memory_of.take(B * S);
    dcontext = memory_of.take(T * B * M);
    covered = memory_of.take(coverage ? T * B * S : 0);
    dcovered = memory_of.take(coverage ? B * S : 0);
    dh = memory_of.take(B * H);
    dots = memory_of.take(B * slices);
    shares = memory_of.take(B * slices * A);
    dv = memory_of.take(B * slices * A);
    dwc = memory_of.take(coverage ? B * slices * A : 0);
  }
  DecoderRest rest;
  Pieces memory_of;
  // q, dq, dcontext and covered (before each step) are those of all steps; dv and dwc are sums of
  // all steps so far, by slices.
  float *w, *wq, *q, *dq, *de, *dcontext, *covered, *dcovered, *dh, *dots, *shares, *dv, *dwc;
};

const float* given(const Call& c, const Backward& p, DecoderCotangent which) {
  const size_t input = p.rest.cotangent[which];
  return input ? c.in(input) : nullptr;
}

void cover(const Call& c, const Backward& p) {
  const int64_t row = p.B * p.S;
  parallel_ranges(row, 1024, [&](int64_t begin, int64_t end) {
    std::fill(p.covered + begin, p.covered + end, 0.0f);
    std::fill(p.dcovered + begin, p.dcovered + end, 0.0f);
    for (int64_t t = 1; t < p.T; ++t) {
      const float *old = p.covered + (t - 1) * row, *a = c.in(kDecoderAttention) + (t - 1) * row;
      float* now = p.covered + t * row;
#pragma omp simd
      for (int64_t i = begin; i < end; ++i) now[i] = old[i] + a[i];
    }
  });
}

// What step t + 1 asks of h and the context of step t, and what is asked from outside. Step -1 is
// that of h0, which has no context.
void from_next_step(const Call& c, const Backward& p, int64_t t) {
  const int64_t columns = t < 0 ? p.H : p.H + p.M;
  const float *dh_given = t < 0 ? nullptr : given(c, p, kGivenH),
              *dcontext_given = given(c, p, kGivenContext);
  for_panels(columns, p.B, [&](int64_t panel, int64_t r0, int64_t rows) {
    alignas(64) float product[kBandRows * kPanel] = {};
    if (t + 1 < p.T)
      multiply_panel(rows, 4 * p.H, c.out(0) + ((t + 1) * p.B + r0) * 4 * p.H,
                     p.w + panel * 4 * p.H * kPanel, product, false);
    const int64_t n0 = panel * kPanel, n1 = std::min(columns, n0 + kPanel),
                  border = std::clamp(p.H, n0, n1);
    for (int64_t r = 0; r < rows; ++r) {
      const int64_t b = r0 + r, at = t * p.B + b;
      const float* from = product + r * kPanel;
      float* dh = t < 0 ? c.out(6) + b * p.H : p.dh + b * p.H;
      for (int64_t j = n0; j < border; ++j)
        dh[j] = from[j - n0] + (dh_given ? dh_given[at * p.H + j] : 0.0f);
      for (int64_t n = border; n < n1; ++n) {
        const int64_t to = at * p.M + n - p.H;
        p.dcontext[to] = from[n - n0] + (dcontext_given ? dcontext_given[to] : 0.0f);
      }
    }
  });
}

// de is still the gradient of the attention here, before the softmax.
[[gnu::noinline]] void attention_gradient(const Call& c, const Backward& p, int64_t t, int64_t b,
                                          int64_t slice, int64_t first, int64_t count) {
  const int64_t row = t * p.B + b, place = b * p.S + first, M = p.M;
  const float *a = c.in(kDecoderAttention) + row * p.S + first, *dcontext = p.dcontext + row * M,
              *memory = c.in(kDecoderMemory) + place * M, *more = given(c, p, kGivenAttention),
              *doverlap = given(c, p, kGivenOverlap);
  float* da = p.de + place;
  for (int64_t s = 0; s < count; ++s, memory += M) {
    float sum = sum_over(M, [=](int64_t m) { return dcontext[m] * memory[m]; });
    if (more) sum += more[row * p.S + first + s];
    if (p.coverage) sum += p.dcovered[place + s];
    if (doverlap && a[s] < p.covered[row * p.S + first + s]) sum += doverlap[row];
    da[s] = sum;
  }
  p.dots[b * p.slices + slice] = sum_over(count, [=](int64_t s) { return a[s] * da[s]; });
}

// Through the softmax and the tanh: a slice's share of dq, and what the step adds to dkeys, dv and
// dwc.
template <bool kCoverage>
[[gnu::noinline]] void score_gradient(const Call& c, const Backward& p, int64_t t, int64_t b,
                                      int64_t slice, int64_t first, int64_t count) {
  const int64_t row = t * p.B + b, place = b * p.S + first, A = p.A,
                share = (b * p.slices + slice) * A;
  const float *a = c.in(kDecoderAttention) + row * p.S + first,
              *keys = c.in(kDecoderKeys) + place * A, *q = p.q + row * A, *v = c.in(kDecoderV),
              *covered = kCoverage ? p.covered + row * p.S + first : nullptr,
              *wc = kCoverage ? c.in(p.rest.wc) : nullptr, *doverlap = given(c, p, kGivenOverlap);
  float *de = p.de + place, *dkeys = c.out(3) + place * A, *dq = p.shares + share,
        *dv = p.dv + share, *dwc = kCoverage ? p.dwc + share : nullptr;
  float dot = 0;
  for (int64_t i = 0; i < p.slices; ++i) dot += p.dots[b * p.slices + i];
  for (int64_t s = 0; s < count; ++s) de[s] = a[s] * (de[s] - dot);

  std::fill_n(dq, A, 0.0f);
  // Some places at a time, along their units: keys and dkeys are read in the order of memory, and
  // what is asked of the coverage stays in registers.
  auto places = [&]<int R>(std::integral_constant<int, R>, int64_t s0) {
    Lanes asked[R] = {};  // of what covers each place; the last units, fewer than a vector:
    float asked_by_last[R] = {};
    auto strip = [&]<typename Float>(int64_t n, Float* asked_of) {
      const Float query = load<Float>(q + n), factor = 4.0f * load<Float>(v + n);
      Float cover{}, dq_sum = load<Float>(dq + n), dv_sum = load<Float>(dv + n), dwc_sum{};
      if constexpr (kCoverage) {
        cover = load<Float>(wc + n);
        dwc_sum = load<Float>(dwc + n);
      }
#pragma GCC unroll 4
      for (int r = 0; r < R; ++r) {
        const int64_t s = s0 + r;
        Float u = load<Float>(keys + s * A + n) + query;
        if constexpr (kCoverage) u += covered[s] * cover;
        const auto at = squash(u);
        const Float du = de[s] * factor * at.quarter_slope;
        store(dkeys + s * A + n, load<Float>(dkeys + s * A + n) + du);
        dq_sum += du;
        dv_sum += de[s] * at.y;
        if constexpr (kCoverage) {
          dwc_sum += covered[s] * du;
          asked_of[r] += du * cover;
        }
      }
      store(dq + n, dq_sum);
      store(dv + n, dv_sum);
      if constexpr (kCoverage) store(dwc + n, dwc_sum);
    };
    int64_t n = 0;
    for (; n + kLanes <= A; n += kLanes) strip(n, asked);
    for (; n < A; ++n) strip(n, asked_by_last);
    if constexpr (kCoverage)
      for (int r = 0; r < R; ++r) {
        const int64_t s = s0 + r;
        float sum = asked_by_last[r] + across(asked[r], [](Lanes x, Lanes y) { return x + y; });
        if (doverlap && !(a[s] < covered[s])) sum += doverlap[row];
        p.dcovered[place + s] += sum;
      }
  };
  constexpr int kAtOnce = 4;
  int64_t s = 0;
  for (; s + kAtOnce <= count; s += kAtOnce) places(std::integral_constant<int, kAtOnce>{}, s);
  for (; s < count; ++s) places(std::integral_constant<int, 1>{}, s);
}

// The query's part of dh, then through the cell to dz, which is dx. dc is kept where dc0 will be.
[[gnu::noinline]] void cell_gradient(const Call& c, const Backward& p, int64_t t, int64_t panel,
                                     int64_t r0, int64_t rows) {
  alignas(64) float product[kBandRows * kPanel];
  const int64_t unit = panel * kPanel, n = std::min(kPanel, p.H - unit), H = p.H;
  multiply_panel(rows, p.A, p.dq + (t * p.B + r0) * p.A, p.wq + panel * p.A * kPanel, product,
                 false);
  for (int64_t r = 0; r < rows; ++r) {
    const int64_t b = r0 + r, at = t * p.B + b;
    const float *more = product + r * kPanel, *dh = p.dh + b * H + unit,
                *gates = c.in(kDecoderGates) + at * 4 * H + unit,
                *cell = c.in(kDecoderCells) + at * H + unit,
                *old = (t ? c.in(kDecoderCells) + (at - p.B) * H : c.in(kDecoderC0) + b * H) + unit;
    float *dz = c.out(0) + at * 4 * H + unit, *dc = c.out(7) + b * H + unit;
#pragma omp simd
    for (int64_t j = 0; j < n; ++j) {
      const float i = gates[j], f = gates[H + j], g = gates[2 * H + j], o = gates[3 * H + j];
      const float y = vtanh(cell[j]), dhj = dh[j] + more[j];
      const float dcj = dc[j] + dhj * o * (1.0f - y * y);
      dz[j] = dcj * g * i * (1.0f - i);
      dz[H + j] = dcj * old[j] * f * (1.0f - f);
      dz[2 * H + j] = dcj * i * (1.0f - g * g);
      dz[3 * H + j] = dhj * y * o * (1.0f - o);
      dc[j] = dcj * f;
    }
  }
}

int64_t grad_workspace_bytes(const OpSite& site) {
  return Backward(nullptr, site).memory_of.bytes();
}

// All that can wait until every step is done.
void batched(const Call& c, const Backward& p) {
  const int64_t rows = p.T * p.B, before = rows - p.B, H = p.H, M = p.M;
  const float *dz = c.out(0), *dz_next = dz + p.B * 4 * H;
  float* dw = c.out(1);
  gemm({H, 4 * H, p.B, true, false}, {}, c.in(kDecoderH0), dz, dw);
  if (before > 0) {
    gemm({H, 4 * H, before, true, false}, {}, c.in(kDecoderH), dz_next, dw, 1.0f);
    gemm({M, 4 * H, before, true, false}, {}, c.in(kDecoderContext), dz_next, dw + H * 4 * H);
  } else {
    std::fill_n(dw + H * 4 * H, M * 4 * H, 0.0f);
  }
  gemm({H, p.A, rows, true, false}, {}, c.in(kDecoderH), p.dq, c.out(4));

  const int64_t places = 2 * kPackedRows, cuts = pieces(p.S, places);
  parallel_tasks(p.B * cuts, [&](int64_t task) {
    const int64_t b = task / cuts, s = task % cuts * places;
    multiply({.m = std::min(places, p.S - s),
              .n = M,
              .k = p.T,
              .a = c.in(kDecoderAttention) + b * p.S + s,
              .a_stride = p.B * p.S,
              .ta = true,
              .b = p.dcontext + b * M,
              .b_stride = p.B * M,
              .tb = false,
              .c = c.out(2) + (b * p.S + s) * M,
              .c_stride = M,
              .accumulate = false});
  });
  parallel_ranges(p.A, 64, [&](int64_t a0, int64_t a1) {
    sum_rows(c.out(5) + a0, p.dv + a0, p.A, p.B * p.slices, a1 - a0);
    if (p.coverage) sum_rows(c.out(8) + a0, p.dwc + a0, p.A, p.B * p.slices, a1 - a0);
  });
}

void grad_run(const Call& c) {
  const Backward p(&c, c.site);
  std::fill_n(c.out(7), p.B * p.H, 0.0f);
  if (p.T * p.B == 0) {
    for (size_t o = 0; o < c.site.out.size(); ++o)
      std::fill_n(c.out(o), c.out_shape(o).numel(), 0.0f);
    return;
  }
  pack_columns(c.in(kDecoderW), 4 * p.H, p.H + p.M, p.w);
  pack_columns(c.in(kDecoderWq), p.A, p.H, p.wq);
  gemm({p.T * p.B, p.A, p.H}, {}, c.in(kDecoderH), c.in(kDecoderWq), p.q);
  if (p.coverage) cover(c, p);
  parallel_tasks(p.B * p.slices, [&](int64_t task) {
    const int64_t b = task / p.slices, first = task % p.slices * kPlaces;
    std::fill_n(c.out(3) + (b * p.S + first) * p.A, std::min(kPlaces, p.S - first) * p.A, 0.0f);
    std::fill_n(p.dv + task * p.A, p.A, 0.0f);
    if (p.coverage) std::fill_n(p.dwc + task * p.A, p.A, 0.0f);
  });
  const auto score = p.coverage ? score_gradient<true> : score_gradient<false>;
  for (int64_t t = p.T - 1; t >= 0; --t) {
    from_next_step(c, p, t);
    p.for_slices(c.ids(kDecoderLengths), [&](int64_t b, int64_t slice, int64_t first, int64_t n) {
      attention_gradient(c, p, t, b, slice, first, n);
    });
    p.for_slices(c.ids(kDecoderLengths), [&](int64_t b, int64_t slice, int64_t first, int64_t n) {
      score(c, p, t, b, slice, first, n);
    });
    parallel_tasks(p.B, [&](int64_t b) {
      sum_rows(p.dq + (t * p.B + b) * p.A, p.shares + b * p.slices * p.A, p.A, p.slices, p.A);
    });
    for_panels(p.H, p.B, [&](int64_t panel, int64_t r0, int64_t rows) {
      cell_gradient(c, p, t, panel, r0, rows);
    });
  }
  from_next_step(c, p, -1);
  batched(c, p);
}

}  // namespace
}  // namespace millrace::cpu::MR_ISA

MR_CPU_KERNELS(attention_decoder,
               {.name = "slices", .workspace_bytes = workspace_bytes, .run = run})
MR_CPU_KERNELS(attention_decoder_grad,
               {.name = "slices", .workspace_bytes = grad_workspace_bytes, .run = grad_run})
