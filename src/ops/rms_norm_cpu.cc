// rms_norm on the CPU, built like layer_norm_cpu.cc: rows stay in the first-level cache between
// their passes, weight gradients are partial sums over fixed chunks of rows, added up in order.
#include <algorithm>
#include <cmath>

#include "cpu/kernel.h"
#include "cpu/parallel.h"
#include "ops/row_math_cpu.h"

namespace millrace::cpu::MR_ISA {
namespace {

// About 64 KiB of a matrix: a task of some microseconds.
int64_t rows_per_task(int64_t D) { return std::max<int64_t>(1, 16384 / D); }

void normalise(const float* x, const float* weight, float* y, int64_t D, float rstd) {
#pragma omp simd
  for (int64_t j = 0; j < D; ++j) y[j] = x[j] * rstd * weight[j];
}

void run(const Call& c) {
  const int64_t D = c.in_shape(0).last(), rows = c.out_shape(1).numel();
  const auto eps = static_cast<float>(c.attrs().number("eps"));
  const float inverse = 1.0f / static_cast<float>(D);
  parallel_ranges(rows, rows_per_task(D), [&](int64_t begin, int64_t end) {
    constexpr float kZeros[4] = {};
    float squares[4];
    for (int64_t i = begin; i < end; i += 4) {
      const float* x = c.in(0) + i * D;
      const int64_t count = std::min<int64_t>(4, end - i);
      if (count == 4)
        FourRows(x, D).squared_distances(kZeros, squares);
      else
        for (int64_t k = 0; k < count; ++k)
          squares[k] = sum_over(D, [r = x + k * D](int64_t j) { return r[j] * r[j]; });
      for (int64_t k = 0; k < count; ++k) {
        const float rstd = 1.0f / std::sqrt(squares[k] * inverse + eps);
        normalise(x + k * D, c.in(1), c.out(0) + (i + k) * D, D, rstd);
        c.out(1)[i + k] = rstd;
      }
    }
  });
}

// At most 64 chunks, at least 16 rows each.
int64_t chunk_rows(int64_t rows) { return std::max<int64_t>(16, (rows + 63) / 64); }
int64_t chunk_count(int64_t rows) { return (rows + chunk_rows(rows) - 1) / chunk_rows(rows); }

struct Row {
  const float *x, *dy, *residual;
  float* dx;
  float rstd;
};

// One row's dx, once the sum of dy w x over it is known.
void write_dx(const Row& row, const float* weight, int64_t D, float dot) {
  const float *x = row.x, *dy = row.dy, *residual = row.residual;
  float* dx = row.dx;
  const float rstd = row.rstd, slope = -rstd * rstd * rstd * dot / static_cast<float>(D);
  if (residual) {
#pragma omp simd
    for (int64_t j = 0; j < D; ++j) dx[j] = rstd * (dy[j] * weight[j]) + x[j] * slope + residual[j];
  } else {
#pragma omp simd
    for (int64_t j = 0; j < D; ++j) dx[j] = rstd * (dy[j] * weight[j]) + x[j] * slope;
  }
}

void grad_one(const Row& a, const float* weight, int64_t D, float* dweight) {
  const float *x = a.x, *dy = a.dy;
  const float rstd = a.rstd;
  float dot = 0;
#pragma omp simd reduction(+ : dot)
  for (int64_t j = 0; j < D; ++j) {
    const float product = dy[j] * x[j];
    dot += product * weight[j];
    dweight[j] += product * rstd;
  }
  write_dx(a, weight, D, dot);
}

// Four rows together: four independent sums, and the partial gradient is touched once for all.
void grad_four(const Row* rows, const float* weight, int64_t D, float* dweight) {
  const float *ax = rows[0].x, *bx = rows[1].x, *cx = rows[2].x, *dx = rows[3].x;
  const float *ady = rows[0].dy, *bdy = rows[1].dy, *cdy = rows[2].dy, *ddy = rows[3].dy;
  const float a_rstd = rows[0].rstd, b_rstd = rows[1].rstd;
  const float c_rstd = rows[2].rstd, d_rstd = rows[3].rstd;
  float a_dot = 0, b_dot = 0, c_dot = 0, d_dot = 0;
#pragma omp simd reduction(+ : a_dot, b_dot, c_dot, d_dot)
  for (int64_t j = 0; j < D; ++j) {
    const float a = ady[j] * ax[j], b = bdy[j] * bx[j], c = cdy[j] * cx[j], d = ddy[j] * dx[j];
    a_dot += a * weight[j];
    b_dot += b * weight[j];
    c_dot += c * weight[j];
    d_dot += d * weight[j];
    dweight[j] += (a * a_rstd + b * b_rstd) + (c * c_rstd + d * d_rstd);
  }
  write_dx(rows[0], weight, D, a_dot);
  write_dx(rows[1], weight, D, b_dot);
  write_dx(rows[2], weight, D, c_dot);
  write_dx(rows[3], weight, D, d_dot);
}

int64_t grad_workspace_bytes(const OpSite& site) {
  return chunk_count(site.in[2].numel()) * site.in[0].shape.last() * 4;
}

void run_grad(const Call& c) {
  const int64_t D = c.in_shape(0).last(), rows = c.in_shape(2).numel();
  const bool has_residual = c.attrs().integer("residual", 0) != 0;
  const float* weight = c.in(1);
  const int64_t step = chunk_rows(rows), chunks = chunk_count(rows);
  auto row = [&](int64_t i) {
    return Row{c.in(0) + i * D, c.in(3) + i * D, has_residual ? c.in(4) + i * D : nullptr,
               c.out(0) + i * D, c.in(2)[i]};
  };
  parallel_tasks(chunks, [&](int64_t chunk) {
    float* dweight = c.scratch() + chunk * D;
    std::fill_n(dweight, D, 0.0f);
    const int64_t end = std::min(rows, (chunk + 1) * step);
    int64_t i = chunk * step;
    for (; i + 4 <= end; i += 4) {
      const Row four[] = {row(i), row(i + 1), row(i + 2), row(i + 3)};
      grad_four(four, weight, D, dweight);
    }
    for (; i < end; ++i) grad_one(row(i), weight, D, dweight);
  });
  parallel_ranges(D, 256, [&](int64_t begin, int64_t end) {
    float* total = c.out(1);
    std::fill(total + begin, total + end, 0.0f);
    for (int64_t chunk = 0; chunk < chunks; ++chunk) {
      const float* part = c.scratch() + chunk * D;
#pragma omp simd
      for (int64_t j = begin; j < end; ++j) total[j] += part[j];
    }
  });
}

}  // namespace
}  // namespace millrace::cpu::MR_ISA

MR_CPU_KERNELS(rms_norm, {.name = "rows", .run = run})
MR_CPU_KERNELS(rms_norm_grad,
               {.name = "rows", .workspace_bytes = grad_workspace_bytes, .run = run_grad})
