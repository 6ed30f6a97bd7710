// Values that come from nowhere: leaves (inputs, parameters, optimizer state) and constants.
#include "ops/card.h"

namespace millrace {
namespace {

std::string infer_leaf(const Attrs&, std::span<const TensorType>, std::vector<TensorType>&) {
  return "a leaf is declared, not inferred";
}

std::string infer_constant(const Attrs& attrs, std::span<const TensorType> in,
                           std::vector<TensorType>& out) {
  out = {{shape_from_text(attrs.text("shape")), DType::f32}};
  return expect_inputs(in, 0);
}

template <typename T>
void reference(const RefCall<T>& c) {
  std::fill_n(c.out(0), c.out_shape(0).numel(), static_cast<T>(c.attrs().number("value")));
}

std::vector<OpCase> constant_cases() {
  return {{{}, {{"shape", ""}, {"value", 1.0}}}, {{}, {{"shape", "3x5"}, {"value", -0.25}}}};
}

}  // namespace

extern const OpCard leaf_card;
const OpCard leaf_card = {.name = "leaf",
                          .summary = "an input, parameter or state tensor",
                          .infer = infer_leaf,
                          .no_gradient = "it is where gradients end"};

extern const OpCard constant_card;
const OpCard constant_card = {
    .name = "constant",
    .summary = "a tensor filled with one number",
    .infer = infer_constant,
    .no_gradient = "it depends on nothing",
    MR_REFERENCE,
    .cases = constant_cases,
    .full_out = 0b1,
};

}  // namespace millrace
