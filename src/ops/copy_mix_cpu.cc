// copy_mix on the CPU: a row at a time.
#include <algorithm>
#include <cmath>

#include "cpu/kernel.h"
#include "cpu/parallel.h"

namespace millrace::cpu::MR_ISA {
namespace {

void run(const Call& c) {
  const int64_t R = c.in_shape(0)[0], V = c.in_shape(0)[1], S = c.in_shape(3)[1], N = V + S;
  const int64_t rows_per_task = std::max<int64_t>(1, 32768 / std::max<int64_t>(1, N));
  parallel_ranges(R, rows_per_task, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const int64_t group = r / (R / c.in_shape(3)[0]),
                    length = std::min<int64_t>(S, c.ids(4)[group]);
      const float gate = c.in(1)[r], writes = 1 / (1 + std::exp(-gate)),
                  copies = 1 / (1 + std::exp(gate));
      const float *words = c.in(0) + r * V, *attention = c.in(2) + r * S;
      float* const out = c.out(0) + r * N;
#pragma omp simd
      for (int64_t v = 0; v < V; ++v) out[v] = writes * words[v];
      std::fill_n(out + V, S, 0.0f);
      for (int64_t s = 0; s < length; ++s)
        if (const int32_t column = c.ids(3)[group * S + s]; column >= 0 && column < N)
          out[column] += copies * attention[s];
    }
  });
}

}  // namespace
}  // namespace millrace::cpu::MR_ISA

MR_CPU_KERNELS(copy_mix, {.name = "rows", .run = run})
