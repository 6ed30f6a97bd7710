// constant on the GPU.
#include "ops/constant_cuda.h"

#include "cuda/kernel.h"

namespace millrace::cuda {
namespace {

void run(const Call& c) {
  launch_constant(c.out_type(0).dtype, c.out_data[0], c.out_shape(0).numel(),
                  static_cast<float>(c.attrs().number("value")), c.stream);
}

}  // namespace
}  // namespace millrace::cuda

MR_CUDA_KERNELS(constant, {.name = "fill", .run = run})
