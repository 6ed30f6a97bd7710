// reduce_sum on the GPU: sums of the columns or of the rows of a matrix.
#include "ops/reduce_sum_cuda.h"

#include "cuda/kernel.h"
#include "ops/elementwise.h"

namespace millrace::cuda {
namespace {

struct Matrix {
  bool columns;  // are summed; otherwise rows
  int64_t rows, width;
};

Matrix matrix_of(const OpSite& site) {
  OperandLayout layout;
  operand_layout(site.out[0], site.in[0].shape, layout);
  const int64_t count = site.in[0].numel(), out = site.out[0].numel();
  if (layout.kind == Broadcast::full) return {true, 1, count};  // a copy, perhaps to another type
  if (layout.kind == Broadcast::suffix) return {true, out > 0 ? count / out : 0, out};
  return {false, out, out > 0 ? count / out : 0};
}

int64_t workspace_bytes(const OpSite& site, Context&) {
  const Matrix m = matrix_of(site);
  return m.columns ? column_sums_workspace(site.in[0].dtype, m.rows, m.width)
                   : row_sums_workspace(m.rows, m.width);
}

void run(const Call& call) {
  const Matrix m = matrix_of(call.site);
  const auto launch = m.columns ? launch_column_sums : launch_row_sums;
  launch(call.in_type(0).dtype, call.in_data[0], m.rows, m.width, call.out_type(0).dtype,
         call.out_data[0], call.workspace, call.stream);
}

}  // namespace
}  // namespace millrace::cuda

MR_CUDA_KERNELS(reduce_sum, {.name = "shares", .workspace_bytes = workspace_bytes, .run = run})
