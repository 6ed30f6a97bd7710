// Matrix product, with an optional epilogue: an element-wise expression of the product (operand a0)
// and further inputs (bias, residual, saved pre-activation), put there by the epilogue fusion pass.
#include "ops/matmul.h"

#include <array>

#include "ops/card.h"
#include "ops/elementwise.h"

namespace millrace {
namespace {

std::string infer(const Attrs& attrs, std::span<const TensorType> in,
                  std::vector<TensorType>& out) {
  if (in.size() < 2) return "wants two inputs";
  const Shape &a = in[0].shape, &b = in[1].shape;
  const bool batched = attrs.integer("batched", 0) != 0;
  if (a.rank() < 2 || b.rank() < 2)
    return fmt::format("wants matrices, got {} and {}", a.str(), b.str());
  if (batched && (a.rank() != 3 || b.rank() != 3 || a[0] != b[0]))
    return fmt::format("batched: {} and {} need three dimensions and one batch", a.str(), b.str());
  const MatmulSizes s = matmul_sizes(attrs, a, b);
  if (s.k != s.k_of_b) return fmt::format("inner sizes {} and {}", s.k, s.k_of_b);
  Shape shape;
  if (batched)
    shape = {s.batch, s.m, s.n};
  else if (s.ta)
    shape = {s.m, s.n};
  else {
    for (int i = 0; i + 1 < a.rank(); ++i) shape.push_back(a[i]);
    shape.push_back(s.n);
  }
  size_t results = 1;
  if (attrs.find("expr")) {
    results = Expression::parse(attrs.text("expr"), static_cast<int>(in.size()) - 1).results.size();
    for (size_t i = 2; i < in.size(); ++i) {
      OperandLayout layout;
      if (auto fault = operand_layout(in[i], shape, layout); !fault.empty())
        return "epilogue: " + fault;
    }
  } else if (in.size() != 2) {
    return "more than two inputs without an epilogue";
  }
  out.assign(results, {shape, DType::f32});
  return "";
}

void vjp(GradContext& g) {
  const Value a = g.in(0), b = g.in(1), dc = g.grad(0);
  if (g.node.attrs.find("expr")) return g.b.fail("a fused matmul is not differentiated again");
  const bool ta = g.node.attrs.integer("ta", 0) != 0, tb = g.node.attrs.integer("tb", 0) != 0;
  const int64_t batched = g.node.attrs.integer("batched", 0);
  auto product = [&](Value x, Value y, bool tx, bool ty, Value like) {
    Attrs attrs{{"ta", tx}, {"tb", ty}};
    if (batched) attrs.set({"batched", 1});
    return g.b.reshape(g.b.op("matmul", {x, y}, attrs), g.b.shape(like));
  };
  if (g.wants(0)) g.set(0, ta ? product(b, dc, tb, true, a) : product(dc, b, false, !tb, a));
  if (g.wants(1)) g.set(1, tb ? product(dc, a, true, ta, b) : product(a, dc, !ta, false, b));
}

template <typename T>
void reference(const RefCall<T>& c) {
  const MatmulSizes s = matmul_sizes(c.attrs(), c.in_shape(0), c.in_shape(1));
  std::vector<T> product(static_cast<size_t>(s.batch * s.m * s.n));
  for (int64_t q = 0; q < s.batch; ++q) {
    const T *a = c.in(0) + q * s.m * s.k, *b = c.in(1) + q * s.k * s.n;
    for (int64_t i = 0; i < s.m; ++i)
      for (int64_t j = 0; j < s.n; ++j) {
        T sum = 0;
        for (int64_t k = 0; k < s.k; ++k)
          sum +=
              (s.ta ? a[k * s.m + i] : a[i * s.k + k]) * (s.tb ? b[j * s.k + k] : b[k * s.n + j]);
        product[static_cast<size_t>((q * s.m + i) * s.n + j)] = sum;
      }
  }
  if (!c.attrs().find("expr")) {
    std::copy(product.begin(), product.end(), c.out(0));
    return;
  }
  // The epilogue is an element-wise node over (product, in 2, in 3, …).
  std::vector<TensorType> in{c.site.out[0]};
  std::vector<const void*> data{product.data()};
  for (size_t i = 2; i < c.site.in.size(); ++i) {
    in.push_back(c.site.in[i]);
    data.push_back(c.in_data[i]);
  }
  const OpCard* elementwise = find_op_card("elementwise");
  const RefCall<T> call{{c.attrs(), in, c.site.out}, data, c.out_data};
  if constexpr (sizeof(T) == 4)
    elementwise->reference_f32(call);
  else
    elementwise->reference_f64(call);
}

Cost cost(const OpSite& site) {
  const MatmulSizes s = matmul_sizes(site.attrs, site.in[0].shape, site.in[1].shape);
  return {2.0 * static_cast<double>(s.batch) * static_cast<double>(s.m) * static_cast<double>(s.n) *
              static_cast<double>(s.k),
          traffic(site)};
}

std::vector<OpCase> cases() {
  std::vector<OpCase> list;
  for (const bool ta : {false, true})
    for (const bool tb : {false, true}) {
      const Shape a = ta ? Shape{5, 7} : Shape{7, 5}, b = tb ? Shape{9, 5} : Shape{5, 9};
      list.push_back({{normal_input(a), normal_input(b)}, {{"ta", ta}, {"tb", tb}}});
      const Shape a3 = ta ? Shape{2, 5, 7} : Shape{2, 7, 5},
                  b3 = tb ? Shape{2, 3, 5} : Shape{2, 5, 3};
      list.push_back(
          {{normal_input(a3), normal_input(b3)}, {{"ta", ta}, {"tb", tb}, {"batched", 1}}});
      const Shape al = ta ? Shape{130, 70} : Shape{70, 130},
                  bl = tb ? Shape{400, 130} : Shape{130, 400};
      list.push_back({{normal_input(al), normal_input(bl)}, {{"ta", ta}, {"tb", tb}}, false});
    }
  list.push_back({{normal_input({1, 1}), normal_input({1, 1})}, {}});
  list.push_back({{normal_input({2, 3, 5}), normal_input({5, 4})}, {}});
  list.push_back({{normal_input({2, 3, 4}), normal_input({2, 3, 5})}, {{"ta", 1}}});
  list.push_back({{normal_input({0, 3}), normal_input({3, 4})}, {}});
  list.push_back({{normal_input({4, 0}), normal_input({0, 3})}, {}});
  // Few rows: whole vectors and rests, more than one task, both layouts of B.
  for (const bool tb : {false, true})
    for (const auto& [m, n, k] : {std::array<int64_t, 3>{1, 5, 7},
                                  {1, 1061, 70},
                                  {2, 300, 33},
                                  {3, 257, 130},
                                  {4, 1100, 41},
                                  {1, 40, 5000}})
      list.push_back({{normal_input({m, k}), normal_input(tb ? Shape{n, k} : Shape{k, n})},
                      {{"tb", tb}},
                      m * n * k < 1000});
  list.push_back({{normal_input({1, 3, 40}), normal_input({40, 600}), normal_input({600}),
                   normal_input({1, 3, 600})},
                  {{"expr", "t0=add(a0,a1);t1=gelu_tanh(t0);t2=add(t1,a2)->t2,t0"}},
                  false});
  list.push_back({{normal_input({1, 50}), normal_input({700, 50}), normal_input({700})},
                  {{"tb", 1}, {"expr", "t0=add(a0,a1)->t0"}},
                  false});
  const Shape full{6, 5};
  list.push_back({{normal_input({6, 3}), normal_input({3, 5}), normal_input({5})},
                  {{"expr", "t0=add(a0,a1)->t0"}},
                  false});
  list.push_back(
      {{normal_input({6, 3}), normal_input({3, 5}), normal_input({5}), normal_input(full),
        index_input({4}, 99)},
       {{"expr",
         "t0=add(a0,a1);t1=gelu_tanh(t0);t2=keep(a3,0.5,1);t3=mul(t1,t2);t4=add(t3,a2)->t4,t0"}},
       false});
  list.push_back(
      {{normal_input({70, 60}), normal_input({400, 60}), normal_input({70, 400}), normal_input({})},
       {{"tb", 1}, {"expr", "t0=gelu_grad(a1);t1=mul(a0,t0);t2=mul(t1,a2)->t2"}},
       false});
  // A feed-forward layer in training, in evaluation, and its gradient: whole tiles and rests.
  for (const auto& [m, n, k] :
       {std::array<int64_t, 3>{64, 256, 64}, {300, 264, 72}, {129, 1032, 200}})
    for (const bool tb : {false, true}) {
      const CaseInput a = normal_input({m, k}), b = normal_input(tb ? Shape{n, k} : Shape{k, n});
      list.push_back({{a, b, normal_input({n})},
                      {{"tb", tb}, {"expr", "t0=add(a0,a1);t1=gelu_tanh(t0)->t1,t0"}},
                      false});
      list.push_back({{a, b, normal_input({n})},
                      {{"tb", tb}, {"expr", "t0=add(a0,a1);t1=gelu_tanh(t0)->t1"}},
                      false});
      list.push_back({{a, b, normal_input({m, n})},
                      {{"tb", tb}, {"expr", "t0=gelu_tanh_grad(a1);t1=mul(a0,t0)->t1"}},
                      false});
    }
  return list;
}

// 2 layers x 256 and 6 layers x 512 at 4096 and 1024 tokens: forward, input gradient, weight
// gradient, and a linear layer with bias and GELU; then one token of GPT-2 124M.
std::vector<OpCase> benchmarks() {
  std::vector<OpCase> list;
  for (const auto& [M, D] : {std::pair<int64_t, int64_t>{4096, 256}, {1024, 512}}) {
    const int64_t F = 4 * D;
    list.push_back({{normal_input({M, D}), normal_input({D, F})}, {}, false});
    list.push_back({{normal_input({M, F}), normal_input({D, F})}, {{"tb", 1}}, false});
    list.push_back({{normal_input({M, D}), normal_input({M, F})}, {{"ta", 1}}, false});
    list.push_back({{normal_input({M, D}), normal_input({D, F}), normal_input({F})},
                    {{"expr", "t0=add(a0,a1);t1=gelu_tanh(t0)->t1,t0"}},
                    false});
  }
  for (const auto& [n, k] :
       {std::pair<int64_t, int64_t>{2304, 768}, {768, 768}, {3072, 768}, {768, 3072}})
    list.push_back({{normal_input({1, k}), normal_input({k, n})}, {}, false});
  list.push_back({{normal_input({1, 768}), normal_input({50257, 768})}, {{"tb", 1}}, false});
  return list;
}

}  // namespace

extern const OpCard matmul_card;
const OpCard matmul_card = {.name = "matmul",
                            .summary = "C = op(A) op(B), then an element-wise epilogue",
                            .infer = infer,
                            .vjp = vjp,
                            MR_REFERENCE,
                            .cost = cost,
                            .cases = cases,
                            .benchmarks = benchmarks,
                            .multiplies = true};

}  // namespace millrace
