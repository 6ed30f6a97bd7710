// The same storage under another shape.
#include "ops/card.h"

namespace millrace {
namespace {

std::string infer(const Attrs& attrs, std::span<const TensorType> in,
                  std::vector<TensorType>& out) {
  if (auto fault = expect_inputs(in, 1); !fault.empty()) return fault;
  const Shape shape = shape_from_text(attrs.text("shape"));
  out = {{shape, in[0].dtype}};
  return shape.numel() == in[0].numel()
             ? ""
             : fmt::format("{} has not the size of {}", in[0].shape.str(), shape.str());
}

void vjp(GradContext& g) { g.set(0, g.b.reshape(g.grad(0), g.b.shape(g.in(0)))); }

template <typename T>
void reference(const RefCall<T>& c) {
  const int64_t n = c.in_shape(0).numel();
  if (c.site.in[0].dtype == DType::i32)
    std::copy_n(c.ids(0), n, static_cast<int32_t*>(c.out_data[0]));
  else
    std::copy_n(c.in(0), n, c.out(0));
}

std::vector<OpCase> cases() {
  return {{{normal_input({2, 6})}, {{"shape", "3x4"}}},
          {{normal_input({1})}, {{"shape", ""}}},
          {{normal_input({7})}, {{"shape", "1x7x1"}}},
          {{index_input({2, 3}, 9)}, {{"shape", "6"}}}};
}

}  // namespace

extern const OpCard reshape_card;
const OpCard reshape_card = {.name = "reshape",
                             .summary = "the same elements under another shape",
                             .infer = infer,
                             .vjp = vjp,
                             MR_REFERENCE,
                             .cases = cases,
                             .is_view = true};

}  // namespace millrace
