// The loss head, a chunk of rows at a time. Logits are written once and read once: what the softmax
// needs of a strip of them is taken while it is in cache, where they become their exponentials, and
// these become the gradient where the two products with it are made.
#include "cpu/gemm.h"
#include "cpu/kernel.h"
#include "cpu/packed_gemm.h"
#include "cpu/softmax_lanes.h"
#include "ops/label_smoothing.h"
#include "ops/linear_cross_entropy.h"

namespace millrace::cpu::MR_ISA {
namespace {

// More rows read the weight matrix and its gradient less often, fewer rows need less memory.
constexpr int64_t kChunkBytes = 16 << 20, kMinRows = 512;
constexpr int64_t kStrip = 384;  // columns of logits that are made, and turned, at a time
// The gradient of x is summed over the vocabulary: slabs of it give shares that are added in order.
// Fewer than kFewSlabs do not keep many threads busy.
constexpr int64_t kSlabs = 32, kFewSlabs = 16;

struct Sizes {
  explicit Sizes(const OpSite& site)
      : N(site.in[0].shape.rows()),
        D(site.in[0].shape.last()),
        V(site.in[1].shape[0]),
        gradients(site.attrs.integer("gradients") != 0),
        frozen(site.attrs.integer("frozen", 0) != 0),
        copy(site.attrs.integer("copy", 0) != 0),
        bf16(site.attrs.text("math") == "bf16"),
        label(site.attrs, V) {
    const int64_t asked = site.attrs.integer("chunk_rows", 0);
    const int64_t wish = asked > 0 ? asked : std::max(kMinRows, kChunkBytes / (4 * V) / 64 * 64);
    rows = std::max<int64_t>(1, std::min(N, wish));
    strips = pieces(V, kStrip);
    slab = pieces(strips, kSlabs) * kStrip;
    slabs = pieces(V, slab);
  }
  int64_t logits() const { return rows * V; }
  bool smooth() const { return label.off > 0; }
  int64_t stats() const { return (smooth() ? 3 : 2) * rows * strips; }
  bool few() const { return slabs < kFewSlabs; }
  int64_t shares() const { return gradients && !few() ? slabs * rows * D : 0; }
  int64_t factor_count() const { return copy ? rows : 0; }

  int64_t N, D, V;
  bool gradients, frozen, copy, bf16;
  LabelShares label;
  int64_t rows;         // of a chunk
  int64_t strips;       // of kStrip columns
  int64_t slab, slabs;  // columns of one, and how many
};

int64_t workspace_bytes(const OpSite& site) {
  const Sizes s(site);
  return (s.logits() + s.stats() + s.shares() + 2 * s.rows + s.factor_count() + s.N) *
         static_cast<int64_t>(sizeof(float));
}

// The last few numbers of a row as a vector; behind them `rest`.
Lanes tail(const float* z, int64_t n, float rest) {
  Lanes last = Lanes{} + rest;
  std::memcpy(&last, z, static_cast<size_t>(n) * sizeof(float));
  return last;
}

// The maximum of z, the sum of e^(z - maximum), which takes the place of z, and, unless null, the
// total of z.
void strip_stats(float* z, int64_t n, float* top, float* sum, float* total) {
  const int64_t whole = n / kLanes * kLanes;
  const Lanes rest = tail(z + whole, n - whole, kMinusInfinity);
  float last[kLanes];
  store(last, rest);
  *top = row_max(last, kLanes, row_max(z, whole, kMinusInfinity));
  Lanes sums = exp_lanes(rest - *top), totals = tail(z + whole, n - whole, 0.0f);
  std::memcpy(z + whole, &sums, static_cast<size_t>(n - whole) * sizeof(float));
  for (int64_t v = 0; v < whole; v += kLanes) {
    const Lanes at = load<Lanes>(z + v), power = exp_lanes(at - *top);
    store(z + v, power);
    sums += power;
    totals += at;
  }
  const auto add = [](Lanes a, Lanes b) { return a + b; };
  *sum = across(sums, add);
  if (total) *total = across(totals, add);
}

// z = slope z + shift.
void turn(float* z, int64_t n, float slope, float shift) {
#pragma omp simd
  for (int64_t v = 0; v < n; ++v) z[v] = slope * z[v] + shift;
}

struct Head : Sizes {
  explicit Head(const Call& c)
      : Sizes(c.site),
        multiply(bf16 ? avx512_bf16::multiply : MR_ISA::multiply),
        x(c.in(0)),
        w(c.in(1)),
        scale(c.in(3)[0]),
        targets(c.ids(2)),
        dx(gradients ? c.out(1) : nullptr),
        dw(gradients && !frozen ? c.out(2) : nullptr),
        gates(copy ? c.in(4) : nullptr),
        masses(copy ? c.in(5) : nullptr),
        dgates(copy && gradients ? c.out(3) : nullptr),
        dmasses(copy && gradients ? c.out(4) : nullptr),
        z(c.scratch()),
        tops(z + logits()),
        sums(tops + rows * strips),
        totals(smooth() ? sums + rows * strips : nullptr),
        share(tops + stats()),
        lse(share + shares()),
        wanted(lse + rows),
        factors(wanted + rows),
        losses(factors + factor_count()) {}

  // Whether the row's target is none of the columns.
  bool ignored(int64_t row) const { return targets[row] < 0 || targets[row] >= V; }

  // Exponentials of the logits of rows [begin, begin + R), and lse and loss of each row.
  void forward(int64_t begin, int64_t R) const {
    // Rows are cut only where there are too few strips for the threads: each cut copies W again.
    const int64_t cut = piece_size(R, pieces(2 * parallel_width(), strips), kPackedRows),
                  cuts = pieces(R, cut);
    parallel_tasks(strips * cuts, [&](int64_t task) {
      const int64_t strip = task / cuts, v = strip * kStrip, n = std::min(kStrip, V - v);
      const int64_t i0 = task % cuts * cut, i1 = std::min(R, i0 + cut);
      multiply({i1 - i0, n, D, x + (begin + i0) * D, D, false, w + v * D, D, true, z + i0 * V + v,
                V, false});
      for (int64_t i = i0; i < i1; ++i) {
        const int64_t target = targets[begin + i] - v;
        if (target >= 0 && target < n) wanted[i] = z[i * V + v + target];
        strip_stats(z + i * V + v, n, tops + i * strips + strip, sums + i * strips + strip,
                    totals ? totals + i * strips + strip : nullptr);
      }
    });
    parallel_ranges(R, 64, [&](int64_t i0, int64_t i1) { finish_rows(begin, i0, i1); });
  }

  void finish_rows(int64_t begin, int64_t i0, int64_t i1) const {
    for (int64_t i = i0; i < i1; ++i) {
      if (ignored(begin + i)) {
        losses[begin + i] = 0;
        if (copy) mix_row(begin + i, kMinusInfinity, factors + i);
        continue;
      }
      const float *t = tops + i * strips, *s = sums + i * strips;
      // Not std::max_element: a NaN must come through.
      float top = t[0];
      for (int64_t j = 1; j < strips; ++j) top = t[j] > top || t[j] != t[j] ? t[j] : top;
      float sum = 0;
      for (int64_t j = 0; j < strips; ++j) sum += s[j] * std::exp(t[j] - top);
      lse[i] = top + std::log(sum);
      float total = 0;
      for (int64_t j = 0; j < strips && totals; ++j) total += totals[i * strips + j];
      losses[begin + i] = lse[i] - wanted_logit(label, wanted[i], total);
      if (copy) mix_row(begin + i, -losses[begin + i], factors + i);
    }
  }

  // The loss of a row whose word is generated with log-probability `log_p` or copied, the gradients
  // of its gate and mass, and the factor of the gradient of its logits.
  void mix_row(int64_t row, float log_p, float* factor) const {
    if (targets[row] < 0) {
      if (gradients) dgates[row] = dmasses[row] = 0;
      return;
    }
    constexpr auto kFloor = static_cast<float>(kMassFloor);
    const float gate = gates[row], mass = masses[row];
    const float softplus = std::log1p(std::exp(-std::fabs(gate)));
    const float log_gate = std::min(gate, 0.0f) - softplus;
    const float generated = log_gate + log_p;
    const float copied = std::min(-gate, 0.0f) - softplus + std::log(mass < kFloor ? kFloor : mass);
    // A NaN comes through the difference.
    const float log_all =
        std::max(generated, copied) + std::log1p(std::exp(-std::fabs(generated - copied)));
    losses[row] = -log_all;
    if (!gradients) return;
    const float by_generator = std::exp(generated - log_all);
    *factor = scale * by_generator;
    dgates[row] = scale * (std::exp(log_gate) - by_generator);
    dmasses[row] = mass < kFloor ? 0.0f : -scale * std::exp(copied - log_all) / mass;
  }

  // Columns [v, v + n), of one strip, of rows [i0, i1) of the chunk become the logits' gradient:
  // the factor of the row times probability less label.
  void turn_strip(int64_t begin, int64_t i0, int64_t i1, int64_t v, int64_t n) const {
    for (int64_t i = i0; i < i1; ++i) {
      float* at = z + i * V + v;
      if (ignored(begin + i)) {
        std::fill_n(at, n, 0.0f);
        continue;
      }
      const float factor = copy ? factors[i] : scale;
      turn(at, n, factor * std::exp(tops[i * strips + v / kStrip] - lse[i]),
           -factor * static_cast<float>(label.off));
      const int64_t target = targets[begin + i] - v;
      if (target >= 0 && target < n) at[target] -= factor * static_cast<float>(label.on);
    }
  }

  void backward(int64_t begin, int64_t R) const {
    parallel_tasks(slabs, [&](int64_t number) {
      const int64_t from = number * slab, to = std::min(V, from + slab);
      float* own = share + number * R * D;
      for (int64_t v = from; v < to; v += kStrip) {
        const int64_t n = std::min(kStrip, to - v);
        turn_strip(begin, 0, R, v, n);
        if (dw)
          multiply({n, D, R, z + v, V, true, x + begin * D, D, false, dw + v * D, D, begin > 0});
        multiply({R, D, n, z + v, V, false, w + v * D, D, false, own, D, v > from});
      }
    });
    parallel_ranges(R, std::max<int64_t>(1, 32768 / std::max<int64_t>(1, D)),
                    [&](int64_t i0, int64_t i1) {
                      float* to = dx + begin * D;
                      std::copy(share + i0 * D, share + i1 * D, to + i0 * D);
                      for (int64_t number = 1; number < slabs; ++number) {
                        const float* from = share + number * R * D;
#pragma omp simd
                        for (int64_t d = i0 * D; d < i1 * D; ++d) to[d] += from[d];
                      }
                    });
  }

  // A small vocabulary gives too few slabs to share out.
  void backward_of_few(int64_t begin, int64_t R) const {
    parallel_ranges(R, std::max<int64_t>(1, 8192 / V), [&](int64_t i0, int64_t i1) {
      for (int64_t v = 0; v < V; v += kStrip) turn_strip(begin, i0, i1, v, std::min(kStrip, V - v));
    });
    const GemmChoice choice{bf16 ? GemmEntry::bf16 : GemmEntry::packed, {}};
    gemm({R, D, V}, choice, z, w, dx + begin * D);
    if (dw) gemm({V, D, R, true, false}, choice, z, x + begin * D, dw, begin > 0 ? 1.0f : 0.0f);
  }

  void (*multiply)(const PackedProduct&);
  const float *x, *w;
  float scale;
  const int32_t* targets;
  float *dx, *dw;
  const float *gates, *masses;
  float *dgates, *dmasses;
  float *z, *tops, *sums, *totals, *share, *lse, *wanted;
  float *factors, *losses;  // of the gradient of a row's logits, with `copy`; of all rows
};

void run(const Call& c) {
  const Head head(c);
  for (int64_t begin = 0; begin < head.N; begin += head.rows) {
    const int64_t R = std::min(head.rows, head.N - begin);
    head.forward(begin, R);
    if (!head.gradients) continue;
    if (head.few())
      head.backward_of_few(begin, R);
    else
      head.backward(begin, R);
  }
  if (head.dw && head.N == 0) std::fill_n(head.dw, head.V * head.D, 0.0f);
  double loss = 0;
  for (int64_t i = 0; i < head.N; ++i) loss += head.losses[i];
  c.out(0)[0] = static_cast<float>(loss * head.scale);
}

std::string detail(const OpSite& site) {
  return fmt::format("{} rows at a time", Sizes(site).rows);
}

}  // namespace
}  // namespace millrace::cpu::MR_ISA

MR_CPU_KERNELS(linear_cross_entropy, {.name = "chunked",
                                      .workspace_bytes = workspace_bytes,
                                      .run = run,
                                      .detail = detail})
