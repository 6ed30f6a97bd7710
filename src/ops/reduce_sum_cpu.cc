// Column sums in strips of 64 rows whose partial sums are added in order; sums of a whole tensor in
// double precision, because millions of addends leave a float little to be right with. All else is
// left to the reference loop (small tensors only).
#include "cpu/kernel.h"
#include "cpu/parallel.h"
#include "ops/elementwise.h"

namespace millrace::cpu::MR_ISA {
namespace {

constexpr int64_t kMaxStrips = 32;  // a few per core; more would only cost partial sums

int64_t strip_rows(int64_t rows) {
  return std::max<int64_t>(64, (rows + kMaxStrips - 1) / kMaxStrips);
}
int64_t strips(int64_t rows) { return (rows + strip_rows(rows) - 1) / strip_rows(rows); }

std::string decline(const OpSite& site) {
  OperandLayout l;
  operand_layout(site.out[0], site.in[0].shape, l);
  if (l.kind != Broadcast::suffix) return "sums other than over leading dimensions";
  return site.in[0].numel() == 0 ? "nothing to sum" : "";
}

int64_t workspace_bytes(const OpSite& site) {
  const int64_t width = site.out[0].numel();
  return strips(site.in[0].numel() / width) * width * 4;
}

void run(const Call& c) {
  const int64_t width = c.out_shape(0).numel(), rows = c.in_shape(0).numel() / width;
  const int64_t height = strip_rows(rows), count = strips(rows);
  float* partial = c.scratch();
  const float* x = c.in(0);
  parallel_tasks(count, [&](int64_t s) {
    float* sum = partial + s * width;
    const int64_t begin = s * height, end = std::min(rows, begin + height);
    std::copy_n(x + begin * width, width, sum);
    for (int64_t r = begin + 1; r < end; ++r) {
      const float* row = x + r * width;
#pragma omp simd
      for (int64_t i = 0; i < width; ++i) sum[i] += row[i];
    }
  });
  float* out = c.out(0);
  std::copy_n(partial, width, out);
  for (int64_t s = 1; s < count; ++s) {
    const float* sum = partial + s * width;
#pragma omp simd
    for (int64_t i = 0; i < width; ++i) out[i] += sum[i];
  }
}

constexpr int64_t kPiece = 1 << 16;  // of a whole tensor, for a task

std::string decline_whole(const OpSite& site) {
  return site.out[0].numel() == 1 ? "" : "more than one sum";
}
int64_t whole_workspace_bytes(const OpSite& site) {
  return pieces(site.in[0].numel(), kPiece) * static_cast<int64_t>(sizeof(double));
}

// A function of its own: inlined twice, it might be summed in two orders.
[[gnu::noinline]] double sum_of(const float* x, int64_t count) {
  double sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < count; ++i) sum += static_cast<double>(x[i]);
  return sum;
}

void run_whole(const Call& c) {
  const int64_t count = c.in_shape(0).numel();
  auto* const partial = static_cast<double*>(c.workspace);
  parallel_ranges(count, kPiece, [&](int64_t begin, int64_t end) {
    partial[begin / kPiece] = sum_of(c.in(0) + begin, end - begin);
  });
  double sum = 0;
  for (int64_t i = 0; i < pieces(count, kPiece); ++i) sum += partial[i];
  c.out(0)[0] = static_cast<float>(sum);
}

}  // namespace
}  // namespace millrace::cpu::MR_ISA

MR_CPU_KERNELS(
    reduce_sum,
    {.name = "strips", .decline = decline, .workspace_bytes = workspace_bytes, .run = run},
    {.name = "whole",
     .decline = decline_whole,
     .workspace_bytes = whole_workspace_bytes,
     .run = run_whole})
