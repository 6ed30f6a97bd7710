// adam on the CPU: one pass over all tensors, a chunk at a time; four streams in, three out.
#include <cmath>

#include "cpu/kernel.h"
#include "cpu/parallel.h"
#include "ops/optimizer_common.h"

namespace millrace::cpu::MR_ISA {
namespace {

// The numbers of a step. `kept` and `added` are the two forms of weight decay.
struct Step {
  float old1, new1, old2, new2, eps, step_size, correction, scale;
  float kept = 1, added = 0;
};

struct Tensors {
  const float *p, *g, *m, *v;
  float *p_out, *m_out, *v_out;
};

void update(Tensors t, int64_t begin, int64_t end, Step s) {
#pragma omp simd
  for (int64_t j = begin; j < end; ++j) {
    const float gradient = t.g[j] * s.scale + s.added * t.p[j];
    const float first = s.old1 * t.m[j] + s.new1 * gradient;
    const float second = s.old2 * t.v[j] + s.new2 * gradient * gradient;
    const float root = std::sqrt(second) * s.correction + s.eps;
    t.p_out[j] = s.kept * t.p[j] - s.step_size * first / root;
    t.m_out[j] = first;
    t.v_out[j] = second;
  }
}

void run(const Call& c) {
  const auto& table = *static_cast<const OptimizerTable*>(c.prepared);
  const auto n = static_cast<size_t>(c.attrs().integer("n"));
  const double lr = *c.in(4 * n), time = *c.in(4 * n + 2);
  const float scale = *c.in(4 * n + 1);
  if (!std::isfinite(scale)) return leave_unchanged(c.site, c.in_data, c.out_data, 4);
  const double beta1 = c.attrs().number("beta1"), beta2 = c.attrs().number("beta2");
  const bool decoupled = c.attrs().integer("decoupled") != 0;
  const Step shared{
      .old1 = static_cast<float>(beta1),
      .new1 = static_cast<float>(1 - beta1),
      .old2 = static_cast<float>(beta2),
      .new2 = static_cast<float>(1 - beta2),
      .eps = static_cast<float>(c.attrs().number("eps")),
      .step_size = static_cast<float>(lr / (1 - std::pow(beta1, time))),
      .correction = static_cast<float>(1 / std::sqrt(1 - std::pow(beta2, time))),
      .scale = scale,
  };
  parallel_tasks(static_cast<int64_t>(table.chunks.size()), [&](int64_t task) {
    const TensorChunk chunk = table.chunks[static_cast<size_t>(task)];
    const size_t i = chunk.tensor;
    Step step = shared;
    if (decoupled)
      step.kept = static_cast<float>(1 - lr * table.decay[i]);
    else
      step.added = static_cast<float>(table.decay[i]);
    update({c.in(i), c.in(n + i), c.in(2 * n + i), c.in(3 * n + i), c.out(i), c.out(n + i),
            c.out(2 * n + i)},
           chunk.begin, chunk.end, step);
  });
}

}  // namespace
}  // namespace millrace::cpu::MR_ISA

MR_CPU_KERNELS(
    adam, {.name = "chunks", .decline = decline_shadows, .prepare = prepare_optimizer, .run = run})
