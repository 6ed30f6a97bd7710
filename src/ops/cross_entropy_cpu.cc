// cross_entropy on the CPU: one pass over the logits. A row is taken in tiles that fit the
// first-level cache; the running maximum and sum are corrected when a tile brings a larger element
// (Milakov & Gimelshein, arXiv 1805.02867).
#include <algorithm>
#include <cmath>

#include "cpu/kernel.h"
#include "cpu/parallel.h"
#include "cpu/vector_math.h"
#include "ops/label_smoothing.h"
#include "ops/row_math_cpu.h"

namespace millrace::cpu::MR_ISA {
namespace {

constexpr int64_t kTile = 512;

// About 128 KiB of logits: a task of some ten microseconds.
int64_t rows_per_task(int64_t V) { return std::max<int64_t>(1, 32768 / std::max<int64_t>(1, V)); }
int64_t task_count(const Shape& logits) {
  const int64_t step = rows_per_task(logits[1]);
  return (logits[0] + step - 1) / step;
}

struct RowSums {
  float largest, sum, total;  // sum: of e^(x - largest)
};

RowSums row_sums(const float* x, int64_t V) {
  float largest = -INFINITY, sum = 0, total = 0;
  for (int64_t at = 0; at < V; at += kTile) {
    const float* tile = x + at;
    const int64_t n = std::min(kTile, V - at);
    const float top = max_of(tile, n);
    if (top > largest) {
      sum *= vexp(largest - top);
      largest = top;
    }
    // While all is -inf so far, a shift by it would make NaN out of nothing.
    const float shift = largest == -INFINITY ? 0.0f : largest;
    // The next tile comes from memory while this one is computed; past the end it is only a hint.
    for (int64_t j = 0; j < n; j += 16) __builtin_prefetch(tile + kTile + j);
    float part = 0, part_total = 0;
#pragma omp simd reduction(+ : part, part_total)
    for (int64_t j = 0; j < n; ++j) {
      part += vexp(tile[j] - shift);
      part_total += tile[j];
    }
    sum += part;
    total += part_total;
  }
  return {largest, sum, total};
}

int64_t workspace_bytes(const OpSite& site) { return task_count(site.in[0].shape) * 8; }

void run(const Call& c) {
  const int64_t N = c.in_shape(0)[0], V = c.in_shape(0)[1];
  const int64_t step = rows_per_task(V), tasks = task_count(c.in_shape(0));
  const LabelShares label(c.site.attrs, V);
  auto* partial = static_cast<double*>(c.workspace);
  parallel_tasks(tasks, [&](int64_t task) {
    double loss = 0;
    for (int64_t i = task * step; i < std::min(N, (task + 1) * step); ++i) {
      const float* x = c.in(0) + i * V;
      const int32_t target = c.ids(1)[i];
      c.out(1)[i] = 0;
      if (target < 0 || target >= V) continue;
      const RowSums r = row_sums(x, V);
      const double log_sum = std::log(static_cast<double>(r.sum));
      c.out(1)[i] = static_cast<float>(r.largest + log_sum);
      loss += (static_cast<double>(r.largest) - wanted_logit(label, x[target], r.total)) + log_sum;
    }
    partial[task] = loss;
  });
  double loss = 0;
  for (int64_t task = 0; task < tasks; ++task) loss += partial[task];
  *c.out(0) = static_cast<float>(*c.in(2) * loss);
}

void grad_row(const float* x, float* dx, int64_t V, int64_t target, float lse, float factor,
              const LabelShares& label) {
  const auto off = static_cast<float>(label.off);
  const float at_target =
      factor * (vexp(x[target] - lse) - static_cast<float>(label.on + label.off));
#pragma omp simd
  for (int64_t j = 0; j < V; ++j) dx[j] = factor * (vexp(x[j] - lse) - off);
  dx[target] = at_target;
}

void run_grad(const Call& c) {
  const int64_t N = c.in_shape(0)[0], V = c.in_shape(0)[1];
  const float factor = *c.in(4) * *c.in(2);
  const LabelShares label(c.site.attrs, V);
  parallel_ranges(N, rows_per_task(V), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      float* dx = c.out(0) + i * V;
      const int32_t target = c.ids(1)[i];
      if (target < 0 || target >= V)
        std::fill_n(dx, V, 0.0f);
      else
        grad_row(c.in(0) + i * V, dx, V, target, c.in(3)[i], factor, label);
    }
  });
}

}  // namespace
}  // namespace millrace::cpu::MR_ISA

MR_CPU_KERNELS(cross_entropy, {.name = "tiles", .workspace_bytes = workspace_bytes, .run = run})
MR_CPU_KERNELS(cross_entropy_grad, {.name = "rows", .run = run_grad})
