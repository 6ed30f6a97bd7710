// The loss head in one op: logits = x w^T, softmax, cross-entropy and, in the same pass, the
// gradients of x and w for a cotangent of one (as Liger-Kernel's fused linear cross-entropy, arXiv
// 2410.10989). Only `chunk_rows` rows of logits exist at a time; they become their own gradient in
// place.
#include "ops/card.h"

namespace millrace {
namespace {

// in: x [.., D], w [V, D], targets i32 [..] (negative: ignored), scale [] ; loss = scale * sum of
// -log p. out: loss [], and with `gradients` also dx [.., D], dw [V, D].
std::string infer(const Attrs& attrs, std::span<const TensorType> in,
                  std::vector<TensorType>& out) {
  if (auto fault = expect_inputs(in, 4); !fault.empty()) return fault;
  const Shape &x = in[0].shape, &w = in[1].shape;
  if (x.rank() < 2 || w.rank() != 2 || x.last() != w[1])
    return fmt::format("x {} and w {}", x.str(), w.str());
  if (in[2].dtype != DType::i32 || in[2].numel() != x.rows())
    return fmt::format("targets {} for {} rows", in[2].str(), x.rows());
  if (in[3].numel() != 1) return "scale must be one number";
  out = {{Shape{}, DType::f32}};
  if (attrs.integer("gradients")) {
    out.push_back(in[0]);
    out.push_back(in[1]);
  }
  return "";
}

void vjp(GradContext& g) {
  if (!g.node.attrs.integer("gradients"))
    return g.b.fail("linear_cross_entropy was built without gradients");
  if (g.grad(1).valid() || g.grad(2).valid())
    return g.b.fail("linear_cross_entropy is differentiated once");
  for (size_t i : {size_t{0}, size_t{1}})
    if (g.wants(i)) g.set(i, g.b.mul(g.out(i + 1), g.grad(0)));
}

std::vector<Value> expand(Builder& b, const Attrs& attrs, std::span<const Value> in) {
  const int64_t rows = b.shape(in[0]).rows(), D = b.shape(in[0]).last();
  const Value x = b.reshape(in[0], {rows, D}), w = in[1], targets = b.reshape(in[2], {rows});
  const Value logits = b.matmul(x, w, false, true);
  const auto loss = b.op_all("cross_entropy", {logits, targets, in[3]});
  if (!attrs.integer("gradients")) return {loss[0]};
  const Value dlogits =
      b.op("cross_entropy_grad", {logits, targets, in[3], loss[1], b.constant(1)});
  return {loss[0], b.reshape(b.matmul(dlogits, w), b.shape(in[0])),
          b.matmul(dlogits, x, true, false)};
}

template <typename T>
void reference(const RefCall<T>& c) {
  const int64_t N = c.in_shape(0).rows(), D = c.in_shape(0).last(), V = c.in_shape(1)[0];
  const bool gradients = c.attrs().integer("gradients") != 0;
  const T *x = c.in(0), *w = c.in(1), scale = c.in(3)[0];
  if (gradients) {
    std::fill_n(c.out(1), N * D, T(0));
    std::fill_n(c.out(2), V * D, T(0));
  }
  std::vector<T> p(static_cast<size_t>(V));
  T loss = 0;
  for (int64_t i = 0; i < N; ++i) {
    const int32_t target = c.ids(2)[i];
    if (target < 0 || target >= V) continue;
    T top = -std::numeric_limits<T>::infinity(), sum = 0;
    for (int64_t v = 0; v < V; ++v) {
      T logit = 0;
      for (int64_t d = 0; d < D; ++d) logit += x[i * D + d] * w[v * D + d];
      p[static_cast<size_t>(v)] = logit;
      top = std::max(top, logit);
    }
    for (T logit : p) sum += std::exp(logit - top);
    loss += scale * (top + std::log(sum) - p[static_cast<size_t>(target)]);
    if (!gradients) continue;
    for (int64_t v = 0; v < V; ++v) {
      const T g =
          scale * (std::exp(p[static_cast<size_t>(v)] - top) / sum - (v == target ? T(1) : T(0)));
      for (int64_t d = 0; d < D; ++d) {
        c.out(1)[i * D + d] += g * w[v * D + d];
        c.out(2)[v * D + d] += g * x[i * D + d];
      }
    }
  }
  c.out(0)[0] = loss;
}

Cost cost(const OpSite& site) {
  const auto N = static_cast<double>(site.in[0].shape.rows()),
             D = static_cast<double>(site.in[0].shape.last()),
             V = static_cast<double>(site.in[1].shape[0]);
  return {(site.attrs.integer("gradients") ? 6.0 : 2.0) * N * D * V, traffic(site)};
}

std::vector<OpCase> cases() {
  std::vector<OpCase> list;
  auto add = [&](Shape x, int64_t V, int64_t chunk, bool ignored, bool gradients,
                 bool check = true) {
    Shape rows;
    for (int i = 0; i + 1 < x.rank(); ++i) rows.push_back(x[i]);
    list.push_back({{normal_input(x), normal_input({V, x.last()}), index_input(rows, V, ignored),
                     constant_input({}, 0.125)},
                    {{"gradients", gradients}, {"chunk_rows", chunk}},
                    check && gradients});
  };
  add({5, 3}, 7, 0, false, true);
  add({2, 4, 3}, 6, 3, true, true);
  add({1, 1}, 2, 0, false, true);
  add({9, 2}, 5, 4, true, true);
  add({3, 4}, 11, 1, true, true);
  add({6, 4}, 9, 0, true, false);
  add({130, 16}, 301, 64, true, true, false);
  add({200, 24}, 70, 0, true, true, false);
  add({70, 20}, 1001, 32, true, true, false);
  add({3, 500}, 13000, 0, false, true, false);
  add({40, 16}, 900, 0, true, false);
  return list;
}

std::vector<OpCase> benchmarks() {
  std::vector<OpCase> list;
  for (const auto& [N, D, V] :
       {std::array<int64_t, 3>{4096, 256, 10000}, {1024, 512, 50000}, {4096, 128, 65}})
    list.push_back({{normal_input({N, D}), normal_input({V, D}), index_input({N}, V),
                     constant_input({}, 1e-3)},
                    {{"gradients", 1}, {"chunk_rows", 0}},
                    false});
  return list;
}

}  // namespace

extern const OpCard linear_cross_entropy_card;
const OpCard linear_cross_entropy_card = {
    .name = "linear_cross_entropy",
    .summary = "loss head: linear, softmax, cross-entropy and their gradients, chunk by chunk",
    .infer = infer,
    .vjp = vjp,
    .expand = expand,
    MR_REFERENCE,
    .cost = cost,
    .cases = cases,
    .benchmarks = benchmarks};

}  // namespace millrace
