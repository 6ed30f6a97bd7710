// sgd with momentum, in the form of PyTorch without dampening:
//   g = g + decay p;   with momentum: b = momentum b + g, and g = b or (Nesterov) g + momentum b;
//   p = p - lr g
// PyTorch starts b with the first gradient; b = 0 before the first step is the same.
#include <cmath>

#include "ops/card.h"
#include "ops/optimizer_common.h"

namespace millrace {
namespace {

bool has_momentum(const Attrs& attrs) { return attrs.number("momentum") != 0; }

std::string infer(const Attrs& attrs, std::span<const TensorType> in,
                  std::vector<TensorType>& out) {
  return infer_optimizer(attrs, in, out, has_momentum(attrs) ? 1 : 0);
}

template <typename T>
void reference(const RefCall<T>& c) {
  const auto n = static_cast<size_t>(c.attrs().integer("n"));
  const bool with_momentum = has_momentum(c.attrs());
  const size_t scalars = (with_momentum ? 3 : 2) * n;
  const T lr = *c.in(scalars), scale = *c.in(scalars + 1);
  if (!std::isfinite(scale)) return leave_unchanged(c.site, c.in_data, c.out_data, sizeof(T));
  const T momentum = static_cast<T>(c.attrs().number("momentum"));
  const bool nesterov = c.attrs().integer("nesterov", 0) != 0;
  const auto decay = decay_from_text(c.attrs().text("decay"), static_cast<int64_t>(n)).value();
  for (size_t i = 0; i < n; ++i)
    for (int64_t j = 0; j < c.in_shape(i).numel(); ++j) {
      const T p = c.in(i)[j];
      T g = c.in(n + i)[j] * scale + static_cast<T>(decay[i]) * p;
      if (with_momentum) {
        const T b = momentum * c.in(2 * n + i)[j] + g;
        c.out(n + i)[j] = b;
        g = nesterov ? g + momentum * b : b;
      }
      c.out(i)[j] = p - lr * g;
    }
  copy_shadows(c);
}

Cost cost(const OpSite& site) {
  double elements = 0;
  for (size_t i = 0; i < site.out.size() - shadow_list(site.attrs).size(); ++i)
    elements += static_cast<double>(site.out[i].numel());
  return {4 * elements, traffic(site)};
}

std::vector<OpCase> cases() {
  const std::vector<Shape> one{{5, 3}}, three{{1}, {7, 3}, {2, 2, 2}}, empty{{0}, {3}};
  const std::vector<Shape> large{{130, 127}, {31}};  // over one chunk
  std::vector<OpCase> list;
  for (double momentum : {0.0, 0.9})
    for (bool nesterov : {false, true}) {
      if (momentum == 0 && nesterov) continue;
      const int64_t states = momentum == 0 ? 0 : 1;
      auto attrs = [&](const char* decay, int n) {
        return Attrs{{"n", n}, {"momentum", momentum}, {"nesterov", nesterov}, {"decay", decay}};
      };
      list.push_back({optimizer_case(one, states, 0.1, 1, 1), attrs("0", 1)});
      list.push_back({optimizer_case(three, states, 0.01, 0.25, 2), attrs("0.1;0;0.5", 3)});
      list.push_back({optimizer_case(three, states, 0.01, INFINITY, 2), attrs("0.1;0;0.5", 3)});
      list.push_back({optimizer_case(empty, states, 0.01, 1, 3), attrs("0.1;0.1", 2)});
      list.push_back(
          with_shadows({optimizer_case(large, states, 0.01, 1, 3), attrs("0.1;0.1", 2)}, "0"));
      list.push_back({optimizer_case(large, states, 0.01, 0.75, 7), attrs("0.1;0", 2)});
    }
  return list;
}

}  // namespace

extern const OpCard sgd_card;
const OpCard sgd_card = {
    .name = "sgd",
    .summary =
        "one step of gradient descent on n tensors, with momentum or Nesterov momentum (Sutskever "
        "et al., ICML 2013) as PyTorch computes it; decay is added to the gradient",
    .infer = infer,
    .no_gradient = "applied after differentiation",
    MR_REFERENCE,
    .cost = cost,
    .cases = cases,
    .in_place = optimizer_in_place,
    .keeps_shadows = true,
};

}  // namespace millrace
