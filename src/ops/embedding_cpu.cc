// embedding on the CPU. The gradient cuts the table into fixed ranges of rows; the task of a range
// walks all ids and adds those that are its own, so every row sums in the order of the ids.
#include <algorithm>

#include "cpu/kernel.h"
#include "cpu/parallel.h"

namespace millrace::cpu::MR_ISA {
namespace {

void run(const Call& c) {
  const int64_t N = c.in_shape(0).numel(), V = c.in_shape(1)[0], D = c.in_shape(1)[1];
  const int64_t rows_per_task = std::max<int64_t>(1, 16384 / std::max<int64_t>(1, D));
  parallel_ranges(N, rows_per_task, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t id = c.ids(0)[i];
      float* y = c.out(0) + i * D;
      if (id >= 0 && id < V)
        std::copy_n(c.in(1) + id * D, D, y);
      else
        std::fill_n(y, D, 0.0f);
    }
  });
}

void run_grad(const Call& c) {
  const int64_t N = c.in_shape(0).numel(), V = c.out_shape(0)[0], D = c.out_shape(0)[1];
  const int32_t* ids = c.ids(0);
  const float* dy = c.in(1);
  const float* base = c.site.in.size() == 3 ? c.in(2) : nullptr;
  float* table = c.out(0);
  // 64 ranges: every task pays for reading all ids.
  parallel_ranges(V, std::max<int64_t>(1, (V + 63) / 64), [&](int64_t begin, int64_t end) {
    if (!base)
      std::fill(table + begin * D, table + end * D, 0.0f);
    else if (base != table)
      std::copy(base + begin * D, base + end * D, table + begin * D);
    for (int64_t i = 0; i < N; ++i) {
      const int64_t id = ids[i];
      if (id < begin || id >= end) continue;
      float* row = table + id * D;
      const float* d = dy + i * D;
#pragma omp simd
      for (int64_t j = 0; j < D; ++j) row[j] += d[j];
    }
  });
}

}  // namespace
}  // namespace millrace::cpu::MR_ISA

MR_CPU_KERNELS(embedding, {.name = "rows", .run = run})
MR_CPU_KERNELS(embedding_grad, {.name = "ranges", .run = run_grad})
