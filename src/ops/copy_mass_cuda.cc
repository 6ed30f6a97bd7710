// copy_mass and its gradient on a GPU: the hooks.
#include "ops/copy_mass_cuda.h"

#include "cuda/kernel.h"

namespace millrace::cuda {
namespace {

CopyRows rows_of(const Call& call) {
  const Shape& source = call.in_shape(1);
  return {.source = call.ids(1),
          .targets = call.ids(2),
          .rows = call.in_shape(2).numel(),
          .sources = source[0],
          .length = source[1]};
}

void run(const Call& call) {
  launch_copy_mass(rows_of(call), call.in(0), call.out(0), call.stream);
}

void run_grad(const Call& call) {
  launch_copy_mass_grad(rows_of(call), call.in(0), call.out(0), call.stream);
}

}  // namespace
}  // namespace millrace::cuda

MR_CUDA_KERNELS(copy_mass, {.name = "rows", .run = run})
MR_CUDA_KERNELS(copy_mass_grad, {.name = "rows", .run = run_grad})
