// grad_norm on the CPU: squares are summed in double, one partial sum per chunk, added up in order.
// No finite gradient overflows on the way.
#include <cmath>

#include "cpu/kernel.h"
#include "cpu/parallel.h"
#include "ops/optimizer_common.h"

namespace millrace::cpu::MR_ISA {
namespace {

struct Table {
  std::vector<TensorChunk> chunks;
};

std::shared_ptr<const void> prepare(const OpSite& site) {
  return std::make_shared<Table>(Table{cut_into_chunks(site.in)});
}

int64_t workspace_bytes(const OpSite& site) {
  int64_t chunks = 0;
  for (const TensorType& t : site.in) chunks += (t.numel() + kChunkElements - 1) / kChunkElements;
  return chunks * 8;
}

double sum_of_squares(const float* x, int64_t n) {
  const int64_t q = n / 2;
  double a = 0, b = 0;
#pragma omp simd reduction(+ : a, b)
  for (int64_t j = 0; j < q; ++j) {
    const double u = x[j], v = x[j + q];
    a += u * u;
    b += v * v;
  }
  for (int64_t j = 2 * q; j < n; ++j) a += static_cast<double>(x[j]) * x[j];
  return a + b;
}

void run(const Call& c) {
  const auto& chunks = static_cast<const Table*>(c.prepared)->chunks;
  const auto tasks = static_cast<int64_t>(chunks.size());
  auto* partial = static_cast<double*>(c.workspace);
  parallel_tasks(tasks, [&](int64_t task) {
    const TensorChunk& chunk = chunks[static_cast<size_t>(task)];
    partial[task] = sum_of_squares(c.in(chunk.tensor) + chunk.begin, chunk.end - chunk.begin);
  });
  double sum = 0;
  for (int64_t task = 0; task < tasks; ++task) sum += partial[task];
  *c.out(0) = static_cast<float>(std::sqrt(sum));
}

}  // namespace
}  // namespace millrace::cpu::MR_ISA

MR_CPU_KERNELS(grad_norm, {.name = "chunks",
                           .workspace_bytes = workspace_bytes,
                           .prepare = prepare,
                           .run = run})
