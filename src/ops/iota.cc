// 0, 1, 2, …: the positions of a sequence.
#include "ops/card.h"

namespace millrace {
namespace {

std::string infer(const Attrs& attrs, std::span<const TensorType> in,
                  std::vector<TensorType>& out) {
  out = {{{attrs.integer("size")}, DType::i32}};
  return expect_inputs(in, 0);
}

template <typename T>
void reference(const RefCall<T>& c) {
  auto* out = static_cast<int32_t*>(c.out_data[0]);
  for (int64_t i = 0; i < c.out_shape(0).numel(); ++i) out[i] = static_cast<int32_t>(i);
}

std::vector<OpCase> cases() {
  return {{{}, {{"size", 1}}}, {{}, {{"size", 37}}}, {{}, {{"size", 0}}}};
}

}  // namespace

extern const OpCard iota_card;
const OpCard iota_card = {.name = "iota",
                          .summary = "0, 1, 2, … as i32",
                          .infer = infer,
                          .no_gradient = "it depends on nothing",
                          MR_REFERENCE,
                          .cases = cases};

}  // namespace millrace
