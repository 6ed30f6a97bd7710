// sgd on a GPU: the hooks.
#include "ops/sgd_cuda.h"

#include "ops/optimizer_common_cuda.h"

namespace millrace::cuda {
namespace {

void run(const Call& call) {
  const OptimizerUpdate* update = update_of(call);
  if (update == nullptr) return;
  launch_sgd(*update, static_cast<float>(call.attrs().number("momentum")),
             call.attrs().integer("nesterov", 0) != 0, call.stream);
}

}  // namespace
}  // namespace millrace::cuda

MR_CUDA_KERNELS(
    sgd, {.name = "chunks", .decline = decline_update, .prepare = prepare_update, .run = run})
