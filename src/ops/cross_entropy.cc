// cross_entropy of a softmax over logits, and its gradient: the loss of row i is log sum_j e^x_ij -
// x_it. The log-sum-exp of each row is kept, so the gradient softmax(x) - onehot(t) needs one pass.
// A target outside [0, V) marks an ignored row: no loss, no gradient, its logits are not read.
// `smoothing`: see ops/label_smoothing.h.
#include <cmath>

#include "ops/card.h"
#include "ops/label_smoothing.h"
#include "ops/type_rules.h"

namespace millrace {
namespace {

std::string logits_and_targets(const Attrs& attrs, std::span<const TensorType> in) {
  const TensorType &logits = in[0], &targets = in[1], &scale = in[2];
  if (logits.dtype != DType::f32 || logits.shape.rank() != 2)
    return fmt::format("logits are {}, wants f32 of rank 2", logits.str());
  return first_fault({expect_type("targets", targets, {{logits.shape[0]}, DType::i32}),
                      expect_type("scale", scale, {{}, DType::f32}), check_smoothing(attrs)});
}

// logits [N,V], targets [N], scale [] -> loss [], log-sum-exp [N]
std::string infer(const Attrs& attrs, std::span<const TensorType> in,
                  std::vector<TensorType>& out) {
  if (std::string fault = expect_inputs(in, 3); !fault.empty()) return fault;
  if (std::string fault = logits_and_targets(attrs, in); !fault.empty()) return fault;
  out = {{{}, DType::f32}, {{in[0].shape[0]}, DType::f32}};
  return "";
}

template <typename T>
void reference(const RefCall<T>& c) {
  const int64_t N = c.in_shape(0)[0], V = c.in_shape(0)[1];
  const LabelShares label(c.attrs(), V);
  T loss = 0;
  for (int64_t i = 0; i < N; ++i) {
    const T* x = c.in(0) + i * V;
    const int32_t target = c.ids(1)[i];
    c.out(1)[i] = 0;
    if (target < 0 || target >= V) continue;
    T largest = -INFINITY, sum = 0, total = 0;
    for (int64_t j = 0; j < V; ++j) {
      largest = x[j] > largest ? x[j] : largest;
      total += x[j];
    }
    for (int64_t j = 0; j < V; ++j) sum += std::exp(x[j] - largest);
    c.out(1)[i] = largest + std::log(sum);
    loss += (largest - wanted_logit(label, x[target], total)) + std::log(sum);
  }
  *c.out(0) = *c.in(2) * loss;
}

void vjp(GradContext& g) {
  MR_CHECK(!g.grad(1).valid(), "the kept log-sum-exp has no gradient");
  if (g.wants(0))
    g.set(0, g.b.op("cross_entropy_grad", {g.in(0), g.in(1), g.in(2), g.out(1), g.grad(0)},
                    g.node.attrs));
  if (g.wants(2)) g.set(2, g.b.apply(Function::div, g.b.mul(g.grad(0), g.out(0)), g.in(2)));
}

Cost cost(const OpSite& site) {
  return {4.0 * static_cast<double>(site.in[0].numel()), traffic(site)};
}

// Every second case once more, with smoothing.
std::vector<OpCase> with_smoothing(std::vector<OpCase> list) {
  for (size_t i = 1, plain = list.size(); i < plain; i += 2) {
    list.push_back(list[i]);
    list.back().attrs.set({"smoothing", 0.1});
  }
  return list;
}

std::vector<OpCase> cases() {
  std::vector<OpCase> list;
  for (const Shape& x : {Shape{1, 1}, Shape{1, 7}, Shape{5, 2}, Shape{13, 11}, Shape{3, 67},
                         Shape{2, 997}, Shape{0, 5}})
    for (bool ignored : {false, true})
      list.push_back({{normal_input(x), index_input({x[0]}, x[1], ignored),
                       constant_input({}, ignored ? 0.25 : 1.0)},
                      {}});
  return with_smoothing(std::move(list));
}

std::vector<OpCase> benchmarks() {
  return {{{normal_input({4096, 10000}), index_input({4096}, 10000), constant_input({}, 1)},
           {},
           false}};
}

// logits [N,V], targets [N], scale [], log-sum-exp [N], dloss [] -> dlogits [N,V]
std::string grad_infer(const Attrs& attrs, std::span<const TensorType> in,
                       std::vector<TensorType>& out) {
  if (std::string fault = expect_inputs(in, 5); !fault.empty()) return fault;
  if (std::string fault = logits_and_targets(attrs, in); !fault.empty()) return fault;
  out = {in[0]};
  return first_fault({expect_type("log-sum-exp", in[3], {{in[0].shape[0]}, DType::f32}),
                      expect_type("dloss", in[4], {{}, DType::f32})});
}

template <typename T>
void grad_reference(const RefCall<T>& c) {
  const int64_t N = c.in_shape(0)[0], V = c.in_shape(0)[1];
  const LabelShares label(c.attrs(), V);
  const T factor = *c.in(4) * *c.in(2);
  for (int64_t i = 0; i < N; ++i) {
    const int32_t target = c.ids(1)[i];
    const bool ignored = target < 0 || target >= V;
    const T lse = c.in(3)[i];
    for (int64_t j = 0; j < V; ++j) {
      const T x = c.in(0)[i * V + j];
      const T wanted = T(j == target ? label.on + label.off : label.off);
      c.out(0)[i * V + j] = ignored ? T(0) : factor * (std::exp(x - lse) - wanted);
    }
  }
}

Cost grad_cost(const OpSite& site) {
  return {3.0 * static_cast<double>(site.in[0].numel()), traffic(site)};
}

std::vector<OpCase> grad_cases() {
  std::vector<OpCase> list;
  for (const Shape& x : {Shape{1, 1}, Shape{1, 7}, Shape{5, 2}, Shape{13, 11}, Shape{3, 67},
                         Shape{37, 499}, Shape{0, 5}})
    for (bool ignored : {false, true})
      list.push_back(
          {{normal_input(x), index_input({x[0]}, x[1], ignored), constant_input({}, 0.25),
            normal_input({x[0]}), constant_input({}, ignored ? -3.0 : 1.0)},
           {}});
  return with_smoothing(std::move(list));
}

std::vector<OpCase> grad_benchmarks() {
  return {{{normal_input({4096, 10000}), index_input({4096}, 10000), constant_input({}, 1),
            constant_input({4096}, 10), constant_input({}, 1)},
           {},
           false}};
}

std::vector<InPlace> grad_in_place(const OpSite&) { return {{0, 0}}; }

}  // namespace

extern const OpCard cross_entropy_card;
const OpCard cross_entropy_card = {
    .name = "cross_entropy",
    .summary =
        "scale * sum over rows of (log sum exp(logits) - logits[target]), and each row's "
        "log-sum-exp (0 for ignored rows); a target outside [0, V) ignores its row; `smoothing` of "
        "the target's probability is spread over all classes",
    .infer = infer,
    .vjp = vjp,
    MR_REFERENCE,
    .cost = cost,
    .cases = cases,
    .benchmarks = benchmarks,
    .full_out = 0b10,
};

extern const OpCard cross_entropy_grad_card;
const OpCard cross_entropy_grad_card = {
    .name = "cross_entropy_grad",
    .summary =
        "gradient of cross_entropy for the logits: dloss * scale * (softmax - onehot, smoothed), 0 "
        "in ignored rows",
    .infer = grad_infer,
    .no_gradient = "first derivatives only",
    .reference_f32 = grad_reference<float>,
    .reference_f64 = grad_reference<double>,
    .cost = grad_cost,
    .cases = grad_cases,
    .benchmarks = grad_benchmarks,
    .in_place = grad_in_place,
    .full_in = 0b1000,
};

}  // namespace millrace
