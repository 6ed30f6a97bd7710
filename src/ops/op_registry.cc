// The tables behind find_op_card and cpu::kernels_of, expanded from op_list.inc: a missing card or kernel
// list is a link error, not a silent gap.
#include <map>

#include "cpu/kernel.h"
#include "graph/op.h"

namespace millrace {

#define MR_OP(name, kernels) extern const OpCard name##_card;
#include "ops/op_list.inc"
#undef MR_OP

std::span<const OpCard* const> all_op_cards() {
  static const OpCard* const cards[] = {
#define MR_OP(name, kernels) &name##_card,
#include "ops/op_list.inc"
#undef MR_OP
  };
  return cards;
}

const OpCard* find_op_card(std::string_view name) {
  static const auto* index = [] {
    auto* map = new std::map<std::string_view, const OpCard*>;
    for (const OpCard* card : all_op_cards()) (*map)[card->name] = card;
    return map;
  }();
  const auto found = index->find(name);
  return found == index->end() ? nullptr : found->second;
}

namespace cpu {

#define MR_DECLARE_none(name)
#define MR_DECLARE_cpu(name) extern const Kernel name##_kernels[]; extern const size_t name##_kernel_count;
#define MR_OP(name, kernels) MR_DECLARE_##kernels(name)
namespace avx2 {
#include "ops/op_list.inc"
}
namespace avx512 {
#include "ops/op_list.inc"
}
#undef MR_OP

std::span<const Kernel> kernels_of(std::string_view op, Isa isa) {
#define MR_LOOKUP_none(name)
#define MR_LOOKUP_cpu(op_name)                                                                     \
  if (op == #op_name)                                                                              \
    return isa == Isa::avx512 ? std::span(avx512::op_name##_kernels, avx512::op_name##_kernel_count) \
                              : std::span(avx2::op_name##_kernels, avx2::op_name##_kernel_count);
#define MR_OP(name, kernels) MR_LOOKUP_##kernels(name)
#include "ops/op_list.inc"
#undef MR_OP
  return {};
}

}  // namespace cpu
}  // namespace millrace
