// adagrad on the CPU: one pass over all tensors, a chunk at a time.
#include <cmath>

#include "cpu/kernel.h"
#include "cpu/parallel.h"
#include "ops/optimizer_common.h"

namespace millrace::cpu::MR_ISA {
namespace {

struct Tensors {
  const float *p, *g, *s;
  float *p_out, *s_out;
};

void update(Tensors t, int64_t begin, int64_t end, float lr, float scale, float eps, float decay) {
#pragma omp simd
  for (int64_t j = begin; j < end; ++j) {
    const float gradient = t.g[j] * scale + decay * t.p[j];
    const float sum = t.s[j] + gradient * gradient;
    t.p_out[j] = t.p[j] - lr * gradient / (std::sqrt(sum) + eps);
    t.s_out[j] = sum;
  }
}

void run(const Call& c) {
  const auto& table = *static_cast<const OptimizerTable*>(c.prepared);
  const auto n = static_cast<size_t>(c.attrs().integer("n"));
  const float lr = *c.in(3 * n), scale = *c.in(3 * n + 1);
  if (!std::isfinite(scale)) return leave_unchanged(c.site, c.in_data, c.out_data, 4);
  const auto eps = static_cast<float>(c.attrs().number("eps"));
  parallel_tasks(static_cast<int64_t>(table.chunks.size()), [&](int64_t task) {
    const TensorChunk chunk = table.chunks[static_cast<size_t>(task)];
    const size_t i = chunk.tensor;
    update({c.in(i), c.in(n + i), c.in(2 * n + i), c.out(i), c.out(n + i)}, chunk.begin, chunk.end,
           lr, scale, eps, static_cast<float>(table.decay[i]));
  });
}

}  // namespace
}  // namespace millrace::cpu::MR_ISA

MR_CPU_KERNELS(adagrad, {.name = "chunks",
                         .decline = decline_shadows,
                         .prepare = prepare_optimizer,
                         .run = run})
