// rms_norm and its gradient on a GPU: the hooks.
#include "ops/rms_norm_cuda.h"

#include "ops/norm_hooks_cuda.h"

namespace millrace::cuda {
namespace {

bool has_residual(const Attrs& attrs) { return attrs.integer("residual", 0) != 0; }

void run(const Call& call) {
  const NormForward of{.x = call.in_data[0],
                       .weight = call.in(1),
                       .bias = nullptr,
                       .y = call.out_data[0],
                       .mean = nullptr,
                       .rstd = call.out(1),
                       .eps = static_cast<float>(call.attrs().number("eps"))};
  launch_rms_norm(norm_rows(call.site, multiprocessors_of(call)), of, call.stream);
}

std::string decline_grad(const OpSite& site, Context&) {
  const DType x = site.in[0].dtype;
  return decline_mixed(
      {x, site.in[3].dtype, has_residual(site.attrs) ? site.in[4].dtype : x, site.out[0].dtype});
}

int64_t grad_workspace_bytes(const OpSite& site, Context& context) {
  const NormRows rows = norm_rows(site, context.device().multiprocessors);
  return norm_backward_grid(rows).blocks * rows.length * 4;
}

NormBackward backward_of(const Call& call) {
  return {.x = call.in_data[0],
          .dy = call.in_data[3],
          .residual = has_residual(call.attrs()) ? call.in_data[4] : nullptr,
          .weight = call.in(1),
          .mean = nullptr,
          .rstd = call.in(2),
          .dx = call.out_data[0],
          .dweight = call.out(1),
          .dbias = nullptr,
          .sums = nullptr,
          .partial = static_cast<float*>(call.workspace)};
}

void run_grad(const Call& call) {
  launch_rms_norm_grad(norm_rows(call.site, multiprocessors_of(call)), backward_of(call),
                       call.stream);
}
void run_grad_end(const Call& call) {
  launch_rms_norm_grad_end(norm_rows(call.site, multiprocessors_of(call)), backward_of(call),
                           call.stream);
}

}  // namespace
}  // namespace millrace::cuda

MR_CUDA_KERNELS(rms_norm, {.name = "rows",
                           .decline = decline_norm,
                           .prepare = prepare_multiprocessors,
                           .run = run})
MR_CUDA_KERNELS(rms_norm_grad, {.name = "rows",
                                .decline = decline_grad,
                                .workspace_bytes = grad_workspace_bytes,
                                .prepare = prepare_multiprocessors,
                                .run = run_grad,
                                .run_end = run_grad_end,
                                .end_from = 1})
