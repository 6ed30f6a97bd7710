// iota on the GPU.
#include "ops/iota_cuda.h"

#include "cuda/kernel.h"

namespace millrace::cuda {
namespace {

void run(const Call& c) {
  launch_iota(c.site.in.empty() ? nullptr : c.ids(0), static_cast<int32_t*>(c.out_data[0]),
              c.out_shape(0).numel(), c.attrs().integer("size"), c.stream);
}

}  // namespace
}  // namespace millrace::cuda

MR_CUDA_KERNELS(iota, {.name = "count", .run = run})
