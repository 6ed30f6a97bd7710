// The table behind cpu::kernels_of, expanded from op_list.inc; op_registry.cc is its twin for the
// cards. Compiled once: it names the kernels of every instruction set.
#include "cpu/kernel.h"

namespace millrace::cpu {

#define MR_DECLARE_none(name)
#define MR_DECLARE_cpu(name)            \
  extern const Kernel name##_kernels[]; \
  extern const size_t name##_kernel_count;
#define MR_OP(name, kernels, device_kernels) MR_DECLARE_##kernels(name)
namespace avx2 {
#include "ops/op_list.inc"
}
namespace avx512 {
#include "ops/op_list.inc"
}
#undef MR_OP

std::span<const Kernel> kernels_of(std::string_view op, Isa isa) {
#define MR_LOOKUP_none(name)
#define MR_LOOKUP_cpu(op_name)                                                        \
  if (op == #op_name)                                                                 \
    return isa == Isa::avx512                                                         \
               ? std::span(avx512::op_name##_kernels, avx512::op_name##_kernel_count) \
               : std::span(avx2::op_name##_kernels, avx2::op_name##_kernel_count);
#define MR_OP(name, kernels, device_kernels) MR_LOOKUP_##kernels(name)
#include "ops/op_list.inc"
#undef MR_OP
  return {};
}

}  // namespace millrace::cpu
