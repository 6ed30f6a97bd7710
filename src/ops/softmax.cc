// softmax over the last dimension and its gradient: y = e^(x - max) / sum e^(x - max),
// dx = y (dy - sum(dy y)). The causal form lets query i of T see key j of S up to j = i + (S - T).
#include <algorithm>
#include <cmath>

#include "ops/card.h"
#include "ops/type_rules.h"

namespace millrace {
namespace {

bool is_causal(const Attrs& attrs) { return attrs.integer("causal", 0) != 0; }

// x [..,S], or [..,T,S] when causal -> y
std::string infer(const Attrs& attrs, std::span<const TensorType> in,
                  std::vector<TensorType>& out) {
  if (std::string fault = expect_inputs(in, 1); !fault.empty()) return fault;
  out = {in[0]};
  return expect_f32("x", in[0], is_causal(attrs) ? 2 : 1);
}

// A row that may see nothing is all zeros.
template <typename T>
void reference(const RefCall<T>& c) {
  const Shape& shape = c.in_shape(0);
  const int64_t S = shape.last(), rows = S == 0 ? 0 : shape.numel() / S;
  for (int64_t i = 0; i < rows; ++i) {
    const T* x = c.in(0) + i * S;
    T* y = c.out(0) + i * S;
    int64_t seen = S;
    if (is_causal(c.attrs())) {
      const int64_t time = shape.last(1);
      seen = std::clamp<int64_t>(i % time + (S - time) + 1, 0, S);
    }
    T largest = -INFINITY, sum = 0;
    for (int64_t j = 0; j < seen; ++j) largest = x[j] > largest ? x[j] : largest;
    for (int64_t j = 0; j < seen; ++j) sum += std::exp(x[j] - largest);
    for (int64_t j = 0; j < S; ++j) y[j] = j < seen ? std::exp(x[j] - largest) / sum : T(0);
  }
}

void vjp(GradContext& g) {
  if (g.wants(0)) g.set(0, g.b.op("softmax_grad", {g.out(0), g.grad(0)}));
}

Cost cost(const OpSite& site) {
  return {5.0 * static_cast<double>(site.in[0].numel()), traffic(site)};
}

std::vector<OpCase> cases() {
  std::vector<OpCase> list;
  for (const Shape& x : {Shape{1}, Shape{7}, Shape{3, 1}, Shape{2, 17}, Shape{2, 3, 8},
                         Shape{5, 67}, Shape{1, 1021}, Shape{0, 3}, Shape{3, 0}})
    list.push_back({{normal_input(x)}, {{"causal", 0}}});
  for (const Shape& x : {Shape{1, 1}, Shape{5, 5}, Shape{3, 7}, Shape{7, 3}, Shape{2, 4, 4},
                         Shape{2, 2, 3, 5}, Shape{19, 101}, Shape{0, 3}})
    list.push_back({{normal_input(x)}, {{"causal", 1}}});
  return list;
}

std::vector<OpCase> benchmarks() {
  return {{{normal_input({4096, 512})}, {{"causal", 0}}, false},
          {{normal_input({8, 512, 512})}, {{"causal", 1}}, false}};
}

std::vector<InPlace> in_place(const OpSite&) { return {{0, 0}}; }

// y [..,S], dy [..,S] -> dx
std::string grad_infer(const Attrs&, std::span<const TensorType> in, std::vector<TensorType>& out) {
  if (std::string fault = expect_inputs(in, 2); !fault.empty()) return fault;
  out = {in[0]};
  return first_fault({expect_f32("y", in[0], 1), expect_type("dy", in[1], in[0])});
}

template <typename T>
void grad_reference(const RefCall<T>& c) {
  const int64_t S = c.in_shape(0).last(), rows = S == 0 ? 0 : c.in_shape(0).numel() / S;
  for (int64_t i = 0; i < rows; ++i) {
    const T *y = c.in(0) + i * S, *dy = c.in(1) + i * S;
    T dot = 0;
    for (int64_t j = 0; j < S; ++j) dot += y[j] * dy[j];
    for (int64_t j = 0; j < S; ++j) c.out(0)[i * S + j] = y[j] * (dy[j] - dot);
  }
}

Cost grad_cost(const OpSite& site) {
  return {4.0 * static_cast<double>(site.in[0].numel()), traffic(site)};
}

std::vector<OpCase> grad_cases() {
  std::vector<OpCase> list;
  for (const Shape& x : {Shape{1}, Shape{7}, Shape{3, 1}, Shape{2, 17}, Shape{2, 3, 8},
                         Shape{5, 67}, Shape{131, 101}, Shape{1, 4099}, Shape{0, 3}, Shape{3, 0}})
    list.push_back({{positive_input(x), normal_input(x)}, {}});
  return list;
}

std::vector<OpCase> grad_benchmarks() {
  return {{{normal_input({4096, 512}), normal_input({4096, 512})}, {}, false}};
}

std::vector<InPlace> grad_in_place(const OpSite&) { return {{0, 1}, {0, 0}}; }

}  // namespace

extern const OpCard softmax_card;
const OpCard softmax_card = {
    .name = "softmax",
    .summary =
        "exp(x) / sum exp(x) over the last dimension, shifted by the largest element; causal=1 "
        "keeps key j of query i for j <= i + S - T only",
    .infer = infer,
    .vjp = vjp,
    MR_REFERENCE,
    .cost = cost,
    .cases = cases,
    .benchmarks = benchmarks,
    .in_place = in_place,
};

extern const OpCard softmax_grad_card;
const OpCard softmax_grad_card = {
    .name = "softmax_grad",
    .summary =
        "gradient of softmax out of its result: dx = y (dy - sum(y dy)); masked elements have "
        "y = 0 and get 0",
    .infer = grad_infer,
    .no_gradient = "first derivatives only",
    .reference_f32 = grad_reference<float>,
    .reference_f64 = grad_reference<double>,
    .cost = grad_cost,
    .cases = grad_cases,
    .benchmarks = grad_benchmarks,
    .in_place = grad_in_place,
};

}  // namespace millrace
