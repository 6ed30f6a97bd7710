// sgd on the CPU: one pass over all tensors, a chunk at a time.
#include <cmath>

#include "cpu/kernel.h"
#include "cpu/parallel.h"
#include "ops/optimizer_common.h"

namespace millrace::cpu::MR_ISA {
namespace {

struct Tensors {
  const float *p, *g, *b;  // b null without momentum
  float *p_out, *b_out;
};

void plain(Tensors t, int64_t begin, int64_t end, float lr, float scale, float decay) {
#pragma omp simd
  for (int64_t j = begin; j < end; ++j)
    t.p_out[j] = t.p[j] - lr * (t.g[j] * scale + decay * t.p[j]);
}

// b = momentum b + g;  p = p - (own g + carried b)
struct Momentum {
  float momentum, own, carried;
};

void with_momentum(Tensors t, int64_t begin, int64_t end, Momentum m, float scale, float decay) {
#pragma omp simd
  for (int64_t j = begin; j < end; ++j) {
    const float gradient = t.g[j] * scale + decay * t.p[j];
    const float buffer = m.momentum * t.b[j] + gradient;
    t.p_out[j] = t.p[j] - (m.own * gradient + m.carried * buffer);
    t.b_out[j] = buffer;
  }
}

void run(const Call& c) {
  const auto& table = *static_cast<const OptimizerTable*>(c.prepared);
  const auto n = static_cast<size_t>(c.attrs().integer("n"));
  const auto momentum = static_cast<float>(c.attrs().number("momentum"));
  const bool has_momentum = c.site.out.size() > n;
  const size_t scalars = (has_momentum ? 3 : 2) * n;
  const float lr = *c.in(scalars), scale = *c.in(scalars + 1);
  if (!std::isfinite(scale)) return leave_unchanged(c.site, c.in_data, c.out_data, 4);
  const bool nesterov = c.attrs().integer("nesterov", 0) != 0;
  const Momentum m{momentum, nesterov ? lr : 0.0f, nesterov ? lr * momentum : lr};
  parallel_tasks(static_cast<int64_t>(table.chunks.size()), [&](int64_t task) {
    const TensorChunk chunk = table.chunks[static_cast<size_t>(task)];
    const size_t i = chunk.tensor;
    const auto decay = static_cast<float>(table.decay[i]);
    Tensors t{c.in(i), c.in(n + i), nullptr, c.out(i), nullptr};
    if (!has_momentum) return plain(t, chunk.begin, chunk.end, lr, scale, decay);
    t.b = c.in(2 * n + i);
    t.b_out = c.out(n + i);
    with_momentum(t, chunk.begin, chunk.end, m, scale, decay);
  });
}

}  // namespace
}  // namespace millrace::cpu::MR_ISA

MR_CPU_KERNELS(
    sgd, {.name = "chunks", .decline = decline_shadows, .prepare = prepare_optimizer, .run = run})
