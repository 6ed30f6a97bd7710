// copy_mix on a GPU: the hooks.
#include "ops/copy_mix_cuda.h"

#include "cuda/kernel.h"

namespace millrace::cuda {
namespace {

void run(const Call& call) {
  const Shape &words = call.in_shape(0), &columns = call.in_shape(3);
  launch_copy_mix({.probabilities = call.in(0),
                   .gate = call.in(1),
                   .attention = call.in(2),
                   .columns = call.ids(3),
                   .lengths = call.ids(4),
                   .out = call.out(0),
                   .rows = words[0],
                   .words = words[1],
                   .groups = columns[0],
                   .places = columns[1]},
                  call.stream);
}

}  // namespace
}  // namespace millrace::cuda

MR_CUDA_KERNELS(copy_mix, {.name = "rows", .run = run})
