// The table behind cuda::kernels_of, expanded from op_list.inc: a kernel list that is missing is a
// link error.
#include "cuda/kernel.h"

namespace millrace::cuda {

#define MR_DECLARE_none(name)
#define MR_DECLARE_cuda(name)           \
  extern const Kernel name##_kernels[]; \
  extern const size_t name##_kernel_count;
#define MR_OP(name, kernels, device_kernels) MR_DECLARE_##device_kernels(name)
#include "ops/op_list.inc"
#undef MR_OP

std::span<const Kernel> kernels_of(std::string_view op) {
#define MR_LOOKUP_none(name)
#define MR_LOOKUP_cuda(op_name) \
  if (op == #op_name) return std::span(op_name##_kernels, op_name##_kernel_count);
#define MR_OP(name, kernels, device_kernels) MR_LOOKUP_##device_kernels(name)
#include "ops/op_list.inc"
#undef MR_OP
  return {};
}

}  // namespace millrace::cuda
