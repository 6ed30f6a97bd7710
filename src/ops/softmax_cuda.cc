// softmax and its gradient on a GPU: the hooks.
#include "ops/softmax_cuda.h"

#include "ops/row_hooks_cuda.h"

namespace millrace::cuda {
namespace {

SoftmaxRows rows_of(const Call& call, bool causal) {
  const TensorType& x = call.in_type(0);
  return {x.dtype, x.shape.rows(), x.shape.last(), causal ? x.shape.last(1) : 0,
          multiprocessors_of(call)};
}

std::string decline(const OpSite& site, Context&) {
  return decline_mixed({site.in[0].dtype, site.out[0].dtype});
}

void run(const Call& call) {
  const bool causal = call.attrs().integer("causal", 0) != 0;
  launch_softmax(rows_of(call, causal), call.in_data[0], call.out_data[0], call.stream);
}

std::string decline_grad(const OpSite& site, Context&) {
  return decline_mixed({site.in[0].dtype, site.in[1].dtype, site.out[0].dtype});
}

void run_grad(const Call& call) {
  launch_softmax_grad(rows_of(call, false), call.in_data[0], call.in_data[1], call.out_data[0],
                      call.stream);
}

}  // namespace
}  // namespace millrace::cuda

MR_CUDA_KERNELS(
    softmax, {.name = "rows", .decline = decline, .prepare = prepare_multiprocessors, .run = run})
MR_CUDA_KERNELS(softmax_grad, {.name = "rows",
                               .decline = decline_grad,
                               .prepare = prepare_multiprocessors,
                               .run = run_grad})
