// adagrad on a GPU: the hooks.
#include "ops/adagrad_cuda.h"

#include "ops/optimizer_common_cuda.h"

namespace millrace::cuda {
namespace {

void run(const Call& call) {
  const OptimizerUpdate* update = update_of(call);
  if (update == nullptr) return;
  launch_adagrad(*update, static_cast<float>(call.attrs().number("eps")), call.stream);
}

}  // namespace
}  // namespace millrace::cuda

MR_CUDA_KERNELS(
    adagrad, {.name = "chunks", .decline = decline_update, .prepare = prepare_update, .run = run})
