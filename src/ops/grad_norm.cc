// grad_norm: the 2-norm of many tensors taken as one vector, for clipping by global norm (Pascanu
// et al., arXiv 1211.5063).
#include <cmath>

#include "ops/card.h"
#include "ops/type_rules.h"

namespace millrace {
namespace {

// g1..gn, any shapes -> []
std::string infer(const Attrs&, std::span<const TensorType> in, std::vector<TensorType>& out) {
  if (in.empty()) return "wants at least one input";
  for (const TensorType& t : in)
    if (const std::string fault = expect_f32("gradient", t); !fault.empty()) return fault;
  out = {{{}, DType::f32}};
  return "";
}

template <typename T>
void reference(const RefCall<T>& c) {
  T sum = 0;
  for (size_t i = 0; i < c.site.in.size(); ++i)
    for (int64_t j = 0; j < c.in_shape(i).numel(); ++j) sum += c.in(i)[j] * c.in(i)[j];
  *c.out(0) = std::sqrt(sum);
}

Cost cost(const OpSite& site) { return {traffic(site) / 2, traffic(site)}; }

std::vector<OpCase> cases() {
  return {
      {{normal_input({1})}, {}},
      {{normal_input({})}, {}},
      {{normal_input({7, 3})}, {}},
      {{normal_input({2, 3, 5}), normal_input({11})}, {}},
      {{normal_input({0})}, {}},
      {{normal_input({0}), normal_input({5}), normal_input({1, 1})}, {}},
      {{constant_input({3, 3}, 0.0)}, {}},
      {{normal_input({127, 131})}, {}},  // over one chunk
      {{normal_input({9}), normal_input({129, 128}), normal_input({17})}, {}},
  };
}

std::vector<OpCase> benchmarks() {
  return {{{normal_input({4096, 2048}), normal_input({2048, 4096})}, {}, false}};
}

}  // namespace

extern const OpCard grad_norm_card;
const OpCard grad_norm_card = {
    .name = "grad_norm",
    .summary = "square root of the sum of squares over all elements of all inputs",
    .infer = infer,
    .no_gradient = "applied after differentiation",
    MR_REFERENCE,
    .cost = cost,
    .cases = cases,
    .benchmarks = benchmarks,
};

}  // namespace millrace
