// layer_norm on the CPU: a row stays in the first-level cache between its passes, so memory is read
// and written once. Parameter gradients: one partial sum per fixed chunk of rows, added in order.
#include <algorithm>
#include <cmath>

#include "cpu/kernel.h"
#include "cpu/parallel.h"
#include "ops/row_math_cpu.h"

namespace millrace::cpu::MR_ISA {
namespace {

// About 64 KiB of a matrix: a task of some microseconds.
int64_t rows_per_task(int64_t D) { return std::max<int64_t>(1, 16384 / D); }

void normalise(const float* x, const float* weight, const float* bias, float* y, int64_t D,
               float mean, float rstd) {
  if (bias) {
#pragma omp simd
    for (int64_t j = 0; j < D; ++j) y[j] = (x[j] - mean) * rstd * weight[j] + bias[j];
  } else {
#pragma omp simd
    for (int64_t j = 0; j < D; ++j) y[j] = (x[j] - mean) * rstd * weight[j];
  }
}

void run(const Call& c) {
  const int64_t D = c.in_shape(0).last(), rows = c.out_shape(1).numel();
  const auto eps = static_cast<float>(c.attrs().number("eps"));
  const bool has_bias = c.attrs().integer("bias", 0) != 0;
  const float *weight = c.in(1), *bias = has_bias ? c.in(2) : nullptr;
  const float inverse = 1.0f / static_cast<float>(D);
  parallel_ranges(rows, rows_per_task(D), [&](int64_t begin, int64_t end) {
    int64_t i = begin;
    for (; i + 4 <= end; i += 4) {
      const float* x = c.in(0) + i * D;
      float *mean = c.out(1) + i, *rstd = c.out(2) + i;
      const FourRows rows_of_x(x, D);
      rows_of_x.sums(mean);
      for (int k = 0; k < 4; ++k) mean[k] *= inverse;
      rows_of_x.squared_distances(mean, rstd);
      for (int k = 0; k < 4; ++k) rstd[k] = 1.0f / std::sqrt(rstd[k] * inverse + eps);
      for (int k = 0; k < 4; ++k)
        normalise(x + k * D, weight, bias, c.out(0) + (i + k) * D, D, mean[k], rstd[k]);
    }
    for (; i < end; ++i) {
      const float* x = c.in(0) + i * D;
      const float mean = inverse * sum_over(D, [=](int64_t j) { return x[j]; });
      const float variance =
          inverse * sum_over(D, [=](int64_t j) { return (x[j] - mean) * (x[j] - mean); });
      const float rstd = 1.0f / std::sqrt(variance + eps);
      normalise(x, weight, bias, c.out(0) + i * D, D, mean, rstd);
      c.out(1)[i] = mean;
      c.out(2)[i] = rstd;
    }
  });
}

// At most 64 chunks, at least 16 rows each.
int64_t chunk_rows(int64_t rows) { return std::max<int64_t>(16, (rows + 63) / 64); }
int64_t chunk_count(int64_t rows) { return (rows + chunk_rows(rows) - 1) / chunk_rows(rows); }

struct Row {
  const float *x, *dy, *residual;
  float* dx;
  float mean, rstd;
};

// One row's dx, once the sums of dy w and dy w (x - mean) over it are known.
void write_dx(const Row& row, const float* weight, int64_t D, float sum, float dot) {
  const float *x = row.x, *dy = row.dy, *residual = row.residual;
  float* dx = row.dx;
  const float inverse = 1.0f / static_cast<float>(D), mean = row.mean, rstd = row.rstd;
  const float slope = -rstd * rstd * dot * inverse, shift = -sum * inverse;
  if (residual) {
#pragma omp simd
    for (int64_t j = 0; j < D; ++j)
      dx[j] = rstd * (dy[j] * weight[j] + shift + (x[j] - mean) * slope) + residual[j];
  } else {
#pragma omp simd
    for (int64_t j = 0; j < D; ++j)
      dx[j] = rstd * (dy[j] * weight[j] + shift + (x[j] - mean) * slope);
  }
}

void grad_one(const Row& a, const float* weight, int64_t D, float* dweight, float* dbias) {
  const float *x = a.x, *dy = a.dy;
  const float mean = a.mean, rstd = a.rstd;
  float sum = 0, dot = 0;
#pragma omp simd reduction(+ : sum, dot)
  for (int64_t j = 0; j < D; ++j) {
    const float centred = x[j] - mean, dxhat = dy[j] * weight[j];
    sum += dxhat;
    dot += dxhat * centred;
    dweight[j] += dy[j] * (centred * rstd);
    dbias[j] += dy[j];
  }
  write_dx(a, weight, D, sum, dot);
}

// Two rows together: twice the independent sums, and partial gradients are touched once for both.
void grad_two(const Row& a, const Row& b, const float* weight, int64_t D, float* dweight,
              float* dbias) {
  const float *ax = a.x, *ady = a.dy, *bx = b.x, *bdy = b.dy;
  const float a_mean = a.mean, a_rstd = a.rstd, b_mean = b.mean, b_rstd = b.rstd;
  float a_sum = 0, a_dot = 0, b_sum = 0, b_dot = 0;
#pragma omp simd reduction(+ : a_sum, a_dot, b_sum, b_dot)
  for (int64_t j = 0; j < D; ++j) {
    const float a_centred = ax[j] - a_mean, a_dxhat = ady[j] * weight[j];
    const float b_centred = bx[j] - b_mean, b_dxhat = bdy[j] * weight[j];
    a_sum += a_dxhat;
    b_sum += b_dxhat;
    a_dot += a_dxhat * a_centred;
    b_dot += b_dxhat * b_centred;
    dweight[j] += ady[j] * (a_centred * a_rstd) + bdy[j] * (b_centred * b_rstd);
    dbias[j] += ady[j] + bdy[j];
  }
  write_dx(a, weight, D, a_sum, a_dot);
  write_dx(b, weight, D, b_sum, b_dot);
}

// Of a chunk: dweight, dbias and the sums of dx.
constexpr int64_t kPartials = 3;
int64_t grad_workspace_bytes(const OpSite& site) {
  return chunk_count(site.in[2].numel()) * kPartials * site.in[0].shape.last() * 4;
}

void add_row(const float* row, int64_t D, float* sums) {
#pragma omp simd
  for (int64_t j = 0; j < D; ++j) sums[j] += row[j];
}

void run_grad(const Call& c) {
  const int64_t D = c.in_shape(0).last(), rows = c.in_shape(2).numel();
  const bool has_residual = c.attrs().integer("residual", 0) != 0;
  const bool has_bias = c.attrs().integer("bias", 0) != 0,
             has_sums = c.attrs().integer("sums", 0) != 0;
  const float* weight = c.in(1);
  const int64_t step = chunk_rows(rows), chunks = chunk_count(rows);
  auto row = [&](int64_t i) {
    return Row{c.in(0) + i * D,  c.in(4) + i * D, has_residual ? c.in(5) + i * D : nullptr,
               c.out(0) + i * D, c.in(2)[i],      c.in(3)[i]};
  };
  parallel_tasks(chunks, [&](int64_t chunk) {
    float* dweight = c.scratch() + chunk * kPartials * D;
    float *dbias = dweight + D, *sums = dbias + D;
    std::fill_n(dweight, kPartials * D, 0.0f);
    const int64_t end = std::min(rows, (chunk + 1) * step);
    int64_t i = chunk * step;
    for (; i + 2 <= end; i += 2) {
      grad_two(row(i), row(i + 1), weight, D, dweight, dbias);
      if (!has_sums) continue;
      add_row(c.out(0) + i * D, D, sums);
      add_row(c.out(0) + (i + 1) * D, D, sums);
    }
    if (i < end) grad_one(row(i), weight, D, dweight, dbias);
    if (i < end && has_sums) add_row(c.out(0) + i * D, D, sums);
  });
  float* const totals[kPartials] = {c.out(1), has_bias ? c.out(2) : nullptr,
                                    has_sums ? c.out(has_bias ? 3 : 2) : nullptr};
  parallel_ranges(D, 256, [&](int64_t begin, int64_t end) {
    for (int64_t p = 0; p < kPartials; ++p) {
      float* const total = totals[p];
      if (!total) continue;
      std::fill(total + begin, total + end, 0.0f);
      for (int64_t chunk = 0; chunk < chunks; ++chunk) {
        const float* part = c.scratch() + (chunk * kPartials + p) * D;
#pragma omp simd
        for (int64_t j = begin; j < end; ++j) total[j] += part[j];
      }
    }
  });
}

}  // namespace
}  // namespace millrace::cpu::MR_ISA

MR_CPU_KERNELS(layer_norm, {.name = "rows", .run = run})
MR_CPU_KERNELS(layer_norm_grad,
               {.name = "rows", .workspace_bytes = grad_workspace_bytes, .run = run_grad})
