// adam on a GPU: the hooks.
#include "ops/adam_cuda.h"

#include "ops/optimizer_common_cuda.h"

namespace millrace::cuda {
namespace {

void run(const Call& call) {
  const OptimizerUpdate* update = update_of(call);
  if (update == nullptr) return;
  const Attrs& attrs = call.attrs();
  launch_adam(*update,
              {.beta1 = attrs.number("beta1"),
               .beta2 = attrs.number("beta2"),
               .eps = attrs.number("eps"),
               .decoupled = attrs.integer("decoupled") != 0},
              call.stream);
}

}  // namespace
}  // namespace millrace::cuda

MR_CUDA_KERNELS(
    adam, {.name = "chunks", .decline = decline_update, .prepare = prepare_update, .run = run})
