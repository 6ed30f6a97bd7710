// cross_entropy and its gradient on a GPU: the hooks.
#include "ops/cross_entropy_cuda.h"

#include "ops/label_smoothing.h"
#include "ops/row_hooks_cuda.h"

namespace millrace::cuda {
namespace {

CrossEntropyRows rows_of(const OpSite& site, int multiprocessors) {
  const TensorType& logits = site.in[0];
  return {logits.dtype, logits.shape[0], logits.shape[1], multiprocessors};
}

LabelFloats label_of(const OpSite& site) {
  const LabelShares label(site.attrs, site.in[0].shape[1]);
  return {static_cast<float>(label.on), static_cast<float>(label.off)};
}

std::string decline(const OpSite& site, Context&) {
  if (site.in[2].dtype != DType::f32 || site.out[0].dtype != DType::f32)
    return "a loss or scale that is not f32";
  return decline_mixed({site.in[0].dtype});
}

int64_t workspace_bytes(const OpSite& site, Context& context) {
  return cross_entropy_blocks(rows_of(site, context.device().multiprocessors)) * 8;
}

void run(const Call& call) {
  const CrossEntropyForward of{.logits = call.in_data[0],
                               .targets = call.ids(1),
                               .scale = call.in(2),
                               .loss = call.out(0),
                               .log_sum_exp = call.out(1),
                               .partial = static_cast<double*>(call.workspace),
                               .label = label_of(call.site)};
  launch_cross_entropy(rows_of(call.site, multiprocessors_of(call)), of, call.stream);
}

std::string decline_grad(const OpSite& site, Context&) {
  if (site.in[2].dtype != DType::f32 || site.in[4].dtype != DType::f32)
    return "a loss or scale that is not f32";
  return decline_mixed({site.in[0].dtype, site.out[0].dtype});
}

void run_grad(const Call& call) {
  const CrossEntropyBackward of{.logits = call.in_data[0],
                                .targets = call.ids(1),
                                .scale = call.in(2),
                                .log_sum_exp = call.in(3),
                                .dloss = call.in(4),
                                .dlogits = call.out_data[0],
                                .label = label_of(call.site)};
  launch_cross_entropy_grad(rows_of(call.site, multiprocessors_of(call)), of, call.stream);
}

}  // namespace
}  // namespace millrace::cuda

MR_CUDA_KERNELS(cross_entropy, {.name = "rows",
                                .decline = decline,
                                .workspace_bytes = workspace_bytes,
                                .prepare = prepare_multiprocessors,
                                .run = run})
MR_CUDA_KERNELS(cross_entropy_grad, {.name = "rows",
                                     .decline = decline_grad,
                                     .prepare = prepare_multiprocessors,
                                     .run = run_grad})
