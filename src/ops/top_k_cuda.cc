// top_k on a GPU: the hooks.
#include "ops/top_k_cuda.h"

#include "cuda/kernel.h"

namespace millrace::cuda {
namespace {

void run(const Call& call) {
  launch_top_k(call.in(0), call.in_shape(0).rows(), call.in_shape(0).last(),
               call.out_shape(0).last(), call.out(0), static_cast<int32_t*>(call.out_data[1]),
               call.stream);
}

}  // namespace
}  // namespace millrace::cuda

MR_CUDA_KERNELS(top_k, {.name = "rows", .run = run})
