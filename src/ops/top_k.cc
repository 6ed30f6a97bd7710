// top_k: the largest numbers of every row and where they stand, for searches that would otherwise
// read whole rows back. Largest first; of equal ones the earlier; a NaN comes before all, so that
// nobody overlooks it.
#include <algorithm>
#include <cmath>

#include "ops/card.h"
#include "ops/type_rules.h"

namespace millrace {
namespace {

// x [..,V] -> values [..,k], places i32 [..,k]
std::string infer(const Attrs& attrs, std::span<const TensorType> in,
                  std::vector<TensorType>& out) {
  if (std::string fault = expect_inputs(in, 1); !fault.empty()) return fault;
  const Shape& x = in[0].shape;
  const int64_t k = attrs.integer("k");
  if (in[0].dtype != DType::f32 || x.rank() == 0 || k < 0 || k > x.last())
    return fmt::format("the {} largest of the rows of {}", k, in[0].str());
  std::vector<int64_t> sizes(x.begin(), x.end());
  sizes.back() = k;
  const Shape kept(sizes);
  out = {{kept, DType::f32}, {kept, DType::i32}};
  return "";
}

template <typename T>
void reference(const RefCall<T>& c) {
  const int64_t V = c.in_shape(0).last(), k = c.out_shape(0).last();
  auto* const places = static_cast<int32_t*>(c.out_data[1]);
  std::vector<int32_t> order(static_cast<size_t>(V));
  for (int64_t row = 0; row < c.in_shape(0).rows(); ++row) {
    const T* x = c.in(0) + row * V;
    for (size_t i = 0; i < order.size(); ++i) order[i] = static_cast<int32_t>(i);
    std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
      if (std::isnan(x[a]) || std::isnan(x[b])) return std::isnan(x[a]) && !std::isnan(x[b]);
      return x[a] > x[b];
    });
    for (int64_t i = 0; i < k; ++i) {
      places[row * k + i] = order[static_cast<size_t>(i)];
      c.out(0)[row * k + i] = x[order[static_cast<size_t>(i)]];
    }
  }
}

Cost cost(const OpSite& site) { return {0, traffic(site)}; }

std::vector<OpCase> cases() {
  std::vector<OpCase> list;
  auto add = [&](CaseInput x, int64_t k) { list.push_back({{std::move(x)}, {{"k", k}}}); };
  add(normal_input({1, 1}), 1);
  add(normal_input({3, 7}), 7);
  add(normal_input({2, 3, 100}), 5);
  add(normal_input({5, 64}), 9);
  add(constant_input({2, 300}, 0.25), 17);  // all equal: the first ones
  add(positive_input({4, 5003}), 16);
  add(normal_input({2, 20001}), 40);
  add(normal_input({0, 5}), 2);
  add(normal_input({3, 5}), 0);
  return list;
}

std::vector<OpCase> benchmarks() { return {{{positive_input({256, 50000})}, {{"k", 16}}, false}}; }

}  // namespace

extern const OpCard top_k_card;
const OpCard top_k_card = {
    .name = "top_k",
    .summary = "the `k` largest of every row, largest first, and their places",
    .infer = infer,
    .no_gradient = "it is for searches",
    MR_REFERENCE,
    .cost = cost,
    .cases = cases,
    .benchmarks = benchmarks,
    .full_in = 0b1,
    .full_out = 0b1,
};

}  // namespace millrace
