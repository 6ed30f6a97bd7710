// The table behind find_op_card, expanded from op_list.inc: a missing card is a link error, not a
// silent gap.
#include <map>

#include "graph/op.h"

namespace millrace {

#define MR_OP(name, kernels, device_kernels) extern const OpCard name##_card;
#include "ops/op_list.inc"
#undef MR_OP

std::span<const OpCard* const> all_op_cards() {
  static const OpCard* const cards[] = {
#define MR_OP(name, kernels, device_kernels) &name##_card,
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

}  // namespace millrace
