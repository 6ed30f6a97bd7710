// Element-wise arithmetic: any expression over operands that broadcast to one shape. Fusion makes
// large expressions out of small ones; the gradient is the expression's symbolic derivative.
#include "ops/elementwise.h"

#include "graph/scalar_functions.h"
#include "ops/card.h"

namespace millrace {
namespace {

Expression expression_of(const Attrs& attrs, size_t operands) {
  return Expression::parse(attrs.text("expr"), static_cast<int>(operands));
}

std::string infer(const Attrs& attrs, std::span<const TensorType> in,
                  std::vector<TensorType>& out) {
  if (in.empty()) return "wants at least one operand";
  const Shape shape = broadcast_shape(in);
  for (size_t i = 0; i < in.size(); ++i) {
    OperandLayout layout;
    if (auto fault = operand_layout(in[i], shape, layout); !fault.empty()) return fault;
  }
  out.assign(expression_of(attrs, in.size()).results.size(), {shape, DType::f32});
  return "";
}

void vjp(GradContext& g) {
  const Expression e = expression_of(g.node.attrs, g.node.in.size());
  std::vector<int> wanted;
  for (size_t i = 0; i < g.node.in.size(); ++i)
    if (g.wants(i)) wanted.push_back(static_cast<int>(i));
  std::vector<Value> in = g.node.in;
  Expression d = differentiate(e, wanted);
  for (size_t r = 0; r < e.results.size(); ++r)
    in.push_back(g.grad(r).valid() ? g.grad(r) : g.b.constant(0, g.node.out[r].shape));
  // One node per wanted operand: fusion joins those that belong together.
  for (size_t w = 0; w < wanted.size(); ++w) {
    ExpressionBuilder b(d.operands);
    std::vector<Term> operands;
    for (int i = 0; i < d.operands; ++i) operands.push_back(Term::operand(i));
    const Term result = b.inline_expression(d, operands)[w];
    std::vector<int> operand_of, same_as(in.size());
    for (size_t i = 0; i < in.size(); ++i) same_as[i] = static_cast<int>(i);
    const Expression one = compact_operands(b.finish({result}), same_as, operand_of);
    const auto i = static_cast<size_t>(wanted[w]);
    const Shape& shape = g.b.shape(g.in(i));
    Value full;
    if (one.operands == 0) {  // the derivative is a number
      full = g.b.constant(one.code.at(0).number, g.node.out[0].shape);
    } else {
      std::vector<Value> used(static_cast<size_t>(one.operands));
      for (size_t k = 0; k < in.size(); ++k)
        if (operand_of[k] >= 0) used[static_cast<size_t>(operand_of[k])] = in[k];
      full = one.passthrough(0) >= 0 ? used[static_cast<size_t>(one.passthrough(0))]
                                     : g.b.elementwise(one, used);
    }
    if (g.b.shape(full).numel() < g.node.out[0].numel())  // only broadcast operands were left in it
      full = g.b.add(full, g.b.constant(0, g.node.out[0].shape));
    g.set(i, g.b.reduce_to(full, shape));
  }
}

template <typename T>
void reference(const RefCall<T>& c) {
  const Expression e = expression_of(c.attrs(), c.site.in.size());
  const Shape& shape = c.out_shape(0);
  std::vector<OperandLayout> layouts(c.site.in.size());
  for (size_t i = 0; i < layouts.size(); ++i) operand_layout(c.site.in[i], shape, layouts[i]);
  std::vector<T> value(e.code.size());
  const int64_t n = shape.numel();
  for (int64_t index = 0; index < n; ++index) {
    auto operand = [&](int i) -> T {
      const OperandLayout& l = layouts[static_cast<size_t>(i)];
      const T* p = c.in(static_cast<size_t>(i));
      switch (l.kind) {
        case Broadcast::full:
          return p[index];
        case Broadcast::scalar:
          return p[0];
        case Broadcast::suffix:
          return p[index % l.period];
        case Broadcast::prefix:
          return p[index / l.period];
        case Broadcast::random_key:
          break;
      }
      return T(0);
    };
    auto term = [&](Term t) {
      return t.is_operand() ? operand(t.index()) : value[static_cast<size_t>(t.index())];
    };
    for (size_t k = 0; k < e.code.size(); ++k) {
      const Instruction& i = e.code[k];
      if (i.function == Function::constant) {
        value[k] = static_cast<T>(i.number);
      } else if (i.function == Function::keep) {
        const bool kept = keep_element(c.ids(static_cast<size_t>(i.a.index())), i.stream, index,
                                       keep_threshold(i.number));
        value[k] = kept ? static_cast<T>(keep_scale(i.number)) : T(0);
      } else {
        value[k] = scalar_function<T>(i.function, term(i.a),
                                      function_arity(i.function) == 2 ? term(i.b) : T(0));
      }
    }
    std::vector<T>
        done;  // all of them first: a result may stand in the storage of an operand that is one
    for (Term t : e.results) done.push_back(term(t));
    for (size_t r = 0; r < done.size(); ++r) c.out(r)[index] = done[r];
  }
}

Cost cost(const OpSite& site) {
  const auto e = expression_of(site.attrs, site.in.size());
  return {static_cast<double>(e.code.size()) * static_cast<double>(site.out[0].numel()),
          traffic(site)};
}

// A kernel reads an element of every operand before it writes that element of any result.
std::vector<InPlace> in_place(const OpSite& site) {
  std::vector<InPlace> pairs;
  for (size_t o = 0; o < site.out.size(); ++o)
    for (size_t i = 0; i < site.in.size(); ++i)
      if (site.in[i] == site.out[o])
        pairs.push_back({static_cast<int>(o), static_cast<int>(i)});
  return pairs;
}

std::vector<OpCase> cases() {
  std::vector<OpCase> list;
  // Every function at a shape with a tail; `max`/`min`/`step`/`relu` have kinks that random inputs
  // miss.
  auto unary = [&](const char* f, bool gradient) {
    const bool positive = std::string_view(f) == "log" || std::string_view(f) == "sqrt";
    const Shape shape{3, 13};
    list.push_back({{positive ? positive_input(shape) : normal_input(shape)},
                    {{"expr", fmt::format("t0={}(a0)->t0", f)}},
                    gradient});
  };
  for (const char* f :
       {"neg", "exp", "log", "sqrt", "tanh", "sigmoid", "relu", "silu", "gelu", "gelu_tanh"})
    unary(f, true);
  for (const char* f : {"step", "silu_grad", "gelu_grad", "gelu_tanh_grad"}) unary(f, false);
  for (const char* f : {"add", "sub", "mul", "max", "min"})
    list.push_back({{normal_input({5, 7}), normal_input({5, 7})},
                    {{"expr", fmt::format("t0={}(a0,a1)->t0", f)}}});
  list.push_back({{normal_input({5, 7}), positive_input({5, 7})}, {{"expr", "t0=div(a0,a1)->t0"}}});
  list.push_back({{normal_input({4, 6, 5}), normal_input({5}), normal_input({6, 5})},
                  {{"expr", "t0=add(a0,a1);t1=mul(t0,a2)->t1,t0"}}});
  list.push_back({{normal_input({4, 6}), normal_input({4, 1}), normal_input({})},
                  {{"expr", "t0=mul(a0,a1);t1=add(t0,a2)->t1"}}});
  list.push_back({{normal_input({2, 17}), index_input({4}, 1000)},
                  {{"expr", "t0=keep(a1,0.25,3);t1=mul(a0,t0)->t1"}}});
  list.push_back({{normal_input({1}), normal_input({1})},
                  {{"expr", "t0=constant(0.5);t1=mul(a0,t0);t2=tanh(t1);t3=add(t2,a1)->t3"}}});
  list.push_back({{normal_input({0, 3}), normal_input({3})}, {{"expr", "t0=add(a0,a1)->t0"}}});
  list.push_back({{normal_input({0, 3}), normal_input({0, 1})}, {{"expr", "t0=mul(a0,a1)->t0"}}});
  list.push_back({{normal_input({3, 700}), normal_input({700}), normal_input({3, 700})},
                  {{"expr", "t0=add(a0,a1);t1=gelu_tanh(t0);t2=add(t1,a2)->t2,t0"}},
                  false});
  return list;
}

std::vector<OpCase> benchmarks() {
  const Shape shape{4096, 1024};
  std::vector<OpCase> list;
  for (const char* f :
       {"exp", "log", "tanh", "sigmoid", "gelu", "gelu_tanh", "gelu_tanh_grad", "silu"})
    list.push_back({{normal_input(shape)}, {{"expr", fmt::format("t0={}(a0)->t0", f)}}, false});
  list.push_back(
      {{normal_input(shape), normal_input(shape)}, {{"expr", "t0=add(a0,a1)->t0"}}, false});
  list.push_back({{normal_input(shape), index_input({4}, 1000)},
                  {{"expr", "t0=keep(a1,0.1,3);t1=mul(a0,t0)->t1"}},
                  false});
  return list;
}

}  // namespace

extern const OpCard elementwise_card;
const OpCard elementwise_card = {
    .name = "elementwise",
    .summary = "an expression of scalar functions over broadcast operands",
    .infer = infer,
    .vjp = vjp,
    MR_REFERENCE,
    .cost = cost,
    .cases = cases,
    .benchmarks = benchmarks,
    .in_place = in_place,
    .cheap = true,
    .gradients_of = ~0u};

}  // namespace millrace
