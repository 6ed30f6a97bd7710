// Sums over the dimensions that `shape` lacks: leading ones (a bias gradient), trailing ones
// written as 1, or all of them. The gradient of broadcasting, and broadcast's own gradient is
// broadcasting.
#include "ops/card.h"
#include "ops/elementwise.h"

namespace millrace {
namespace {

std::string infer(const Attrs& attrs, std::span<const TensorType> in,
                  std::vector<TensorType>& out) {
  if (auto fault = expect_inputs(in, 1); !fault.empty()) return fault;
  const Shape target = shape_from_text(attrs.text("shape"));
  OperandLayout layout;
  out = {{target, DType::f32}};
  return operand_layout({target, DType::f32}, in[0].shape, layout);
}

void vjp(GradContext& g) { g.set(0, g.b.add(g.b.constant(0, g.b.shape(g.in(0))), g.grad(0))); }

template <typename T>
void reference(const RefCall<T>& c) {
  OperandLayout l;
  operand_layout(c.site.out[0], c.in_shape(0), l);
  std::fill_n(c.out(0), c.out_shape(0).numel(), T(0));
  const int64_t n = c.in_shape(0).numel();
  for (int64_t i = 0; i < n; ++i) {
    const int64_t to = l.kind == Broadcast::full     ? i
                       : l.kind == Broadcast::scalar ? 0
                       : l.kind == Broadcast::suffix ? i % l.period
                                                     : i / l.period;
    c.out(0)[to] += c.in(0)[i];
  }
}

Cost cost(const OpSite& site) { return {static_cast<double>(site.in[0].numel()), traffic(site)}; }

std::vector<OpCase> cases() {
  std::vector<OpCase> list;
  auto add = [&](Shape in, const char* shape) {
    list.push_back({{normal_input(in)}, {{"shape", shape}}});
  };
  add({5, 7}, "7");
  add({3, 4, 5}, "5");
  add({3, 4, 5}, "4x5");
  add({3, 4}, "3x1");
  add({2, 3, 4}, "2x3x1");
  add({2, 3, 4}, "2x1x1");
  add({6, 5}, "");
  add({1, 1}, "1");
  add({300, 3}, "3");
  add({0, 3}, "3");
  list.push_back({{normal_input({700, 70})}, {{"shape", "70"}}, false});
  list.push_back({{normal_input({2000, 170})}, {{"shape", ""}}, false});
  return list;
}

std::vector<OpCase> benchmarks() {
  return {{{normal_input({4096, 1024})}, {{"shape", "1024"}}, false}};
}

}  // namespace

extern const OpCard reduce_sum_card;
const OpCard reduce_sum_card = {
    .name = "reduce_sum",
    .summary = "sum over leading, trailing or all dimensions",
    .infer = infer,
    .vjp = vjp,
    MR_REFERENCE,
    .cost = cost,
    .cases = cases,
    .benchmarks = benchmarks,
    .full_out = 0b1,
};

}  // namespace millrace
