// layer_norm and its gradient on a GPU: the hooks.
#include "ops/layer_norm_cuda.h"

#include "ops/norm_hooks_cuda.h"

namespace millrace::cuda {
namespace {

bool has(const Attrs& attrs, std::string_view part) { return attrs.integer(part, 0) != 0; }

void run(const Call& call) {
  const NormForward of{.x = call.in_data[0],
                       .weight = call.in(1),
                       .bias = has(call.attrs(), "bias") ? call.in(2) : nullptr,
                       .y = call.out_data[0],
                       .mean = call.out(1),
                       .rstd = call.out(2),
                       .eps = static_cast<float>(call.attrs().number("eps"))};
  launch_layer_norm(norm_rows(call.site, multiprocessors_of(call)), of, call.stream);
}

std::string decline_grad(const OpSite& site, Context&) {
  const DType x = site.in[0].dtype;
  return decline_mixed(
      {x, site.in[4].dtype, has(site.attrs, "residual") ? site.in[5].dtype : x, site.out[0].dtype});
}

int64_t grad_workspace_bytes(const OpSite& site, Context& context) {
  const NormRows rows = norm_rows(site, context.device().multiprocessors);
  return norm_backward_grid(rows).blocks * (has(site.attrs, "sums") ? 3 : 2) * rows.length * 4;
}

NormBackward backward_of(const Call& call) {
  const bool bias = has(call.attrs(), "bias");
  return {.x = call.in_data[0],
          .dy = call.in_data[4],
          .residual = has(call.attrs(), "residual") ? call.in_data[5] : nullptr,
          .weight = call.in(1),
          .mean = call.in(2),
          .rstd = call.in(3),
          .dx = call.out_data[0],
          .dweight = call.out(1),
          .dbias = bias ? call.out(2) : nullptr,
          .sums = has(call.attrs(), "sums") ? call.out(bias ? 3 : 2) : nullptr,
          .partial = static_cast<float*>(call.workspace)};
}

void run_grad(const Call& call) {
  launch_layer_norm_grad(norm_rows(call.site, multiprocessors_of(call)), backward_of(call),
                         call.stream);
}
void run_grad_end(const Call& call) {
  launch_layer_norm_grad_end(norm_rows(call.site, multiprocessors_of(call)), backward_of(call),
                             call.stream);
}

}  // namespace
}  // namespace millrace::cuda

MR_CUDA_KERNELS(layer_norm, {.name = "rows",
                             .decline = decline_norm,
                             .prepare = prepare_multiprocessors,
                             .run = run})
MR_CUDA_KERNELS(layer_norm_grad, {.name = "rows",
                                  .decline = decline_grad,
                                  .workspace_bytes = grad_workspace_bytes,
                                  .prepare = prepare_multiprocessors,
                                  .run = run_grad,
                                  .run_end = run_grad_end,
                                  .end_from = 1})
