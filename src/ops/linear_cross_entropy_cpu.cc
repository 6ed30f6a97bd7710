// The loss head, a chunk of rows at a time: three GEMMs around a softmax that turns the logits into
// their own gradient in place.
#include "cpu/gemm.h"
#include "cpu/kernel.h"
#include "cpu/vector_math.h"

namespace millrace::cpu::MR_ISA {
namespace {

// Logits of a chunk should stay in the last-level cache; below 256 rows the weight matrix is read
// so often that its traffic shows (measured on 10k and 50k vocabularies).
constexpr int64_t kChunkBytes = 16 << 20, kMinRows = 256;

struct Prepared {
  int64_t rows;
  GemmShape logits, dx, dw;
  GemmChoice logits_choice, dx_choice, dw_choice;
};

int64_t chunk_rows(const OpSite& site) {
  const int64_t N = site.in[0].shape.rows(), V = site.in[1].shape[0],
                asked = site.attrs.integer("chunk_rows", 0);
  const int64_t wish = asked > 0 ? asked : std::max(kMinRows, kChunkBytes / (4 * V) / 64 * 64);
  return std::max<int64_t>(1, std::min(N, wish));
}

int64_t workspace_bytes(const OpSite& site) {
  return (chunk_rows(site) * site.in[1].shape[0] + site.in[0].shape.rows()) * 4;
}

std::shared_ptr<const void> prepare(const OpSite& site) {
  const int64_t R = chunk_rows(site), D = site.in[0].shape.last(), V = site.in[1].shape[0];
  auto p = std::make_shared<Prepared>();
  p->rows = R;
  p->logits = {R, V, D, false, true};
  p->logits_choice = gemm_choice(p->logits);
  if (!site.attrs.integer("gradients")) return p;
  p->dx = {R, D, V, false, false};
  p->dw = {V, D, R, true, false};
  p->dx_choice = gemm_choice(p->dx);
  p->dw_choice = gemm_choice(p->dw);
  return p;
}

// Turns a row of logits into scale * (softmax - onehot); returns -log p[target]. `gradients` off:
// the row is left as it is.
float finish_row(float* z, int64_t V, int32_t target, float scale, bool gradients) {
  float top = z[0];
#pragma omp simd reduction(max : top)
  for (int64_t v = 0; v < V; ++v) top = z[v] > top ? z[v] : top;
  const float picked = z[target];
  float sum = 0;
  if (gradients) {
#pragma omp simd reduction(+ : sum)
    for (int64_t v = 0; v < V; ++v) {
      const float e = vexp(z[v] - top);
      z[v] = e;
      sum += e;
    }
    const float factor = scale / sum;
#pragma omp simd
    for (int64_t v = 0; v < V; ++v) z[v] *= factor;
    z[target] -= scale;
  } else {
#pragma omp simd reduction(+ : sum)
    for (int64_t v = 0; v < V; ++v) sum += vexp(z[v] - top);
  }
  return top + std::log(sum) - picked;
}

void run(const Call& c) {
  const auto& p = *static_cast<const Prepared*>(c.prepared);
  const int64_t N = c.in_shape(0).rows(), D = c.in_shape(0).last(), V = c.in_shape(1)[0];
  const bool gradients = c.attrs().integer("gradients") != 0;
  const float *x = c.in(0), *w = c.in(1), scale = c.in(3)[0];
  const int32_t* targets = c.ids(2);
  float *logits = c.scratch(), *losses = logits + p.rows * V;
  for (int64_t begin = 0; begin < N; begin += p.rows) {
    const int64_t R = std::min(p.rows, N - begin);
    GemmShape s = p.logits;
    s.m = R;
    gemm(s, p.logits_choice, x + begin * D, w, logits);
    const int64_t grain = std::max<int64_t>(1, 8192 / std::max<int64_t>(V, 1));
    parallel_ranges(R, grain, [&](int64_t i0, int64_t i1) {
      for (int64_t i = i0; i < i1; ++i) {
        const int32_t target = targets[begin + i];
        float* z = logits + i * V;
        const bool ignored = target < 0 || target >= V;
        losses[begin + i] = ignored ? 0.0f : finish_row(z, V, target, scale, gradients);
        if (ignored && gradients) std::fill_n(z, V, 0.0f);
      }
    });
    if (!gradients) continue;
    s = p.dx;
    s.m = R;
    gemm(s, p.dx_choice, logits, w, c.out(1) + begin * D);
    s = p.dw;
    s.k = R;
    gemm(s, p.dw_choice, logits, x + begin * D, c.out(2), begin == 0 ? 0.0f : 1.0f);
  }
  if (gradients && N == 0) std::fill_n(c.out(2), V * D, 0.0f);
  double loss = 0;
  for (int64_t i = 0; i < N; ++i) loss += losses[i];
  c.out(0)[0] = static_cast<float>(loss * scale);
}

std::string detail(const OpSite& site) {
  return fmt::format("{} rows at a time", chunk_rows(site));
}

}  // namespace
}  // namespace millrace::cpu::MR_ISA

MR_CPU_KERNELS(linear_cross_entropy, {.name = "chunked",
                                      .workspace_bytes = workspace_bytes,
                                      .prepare = prepare,
                                      .run = run,
                                      .detail = detail})
