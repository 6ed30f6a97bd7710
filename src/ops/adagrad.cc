// adagrad: Duchi, Hazan, Singer, JMLR 12 (2011), as in PyTorch without learning rate decay:
//   g = g + decay p,  s = s + g^2,  p = p - lr g / (sqrt(s) + eps)
#include <cmath>

#include "ops/card.h"
#include "ops/optimizer_common.h"

namespace millrace {
namespace {

std::string infer(const Attrs& attrs, std::span<const TensorType> in,
                  std::vector<TensorType>& out) {
  return infer_optimizer(attrs, in, out, 1);
}

template <typename T>
void reference(const RefCall<T>& c) {
  const auto n = static_cast<size_t>(c.attrs().integer("n"));
  const T lr = *c.in(3 * n), scale = *c.in(3 * n + 1);
  if (!std::isfinite(scale)) return leave_unchanged(c.site, c.in_data, c.out_data, sizeof(T));
  const T eps = static_cast<T>(c.attrs().number("eps"));
  const auto decay = decay_from_text(c.attrs().text("decay"), static_cast<int64_t>(n)).value();
  for (size_t i = 0; i < n; ++i)
    for (int64_t j = 0; j < c.in_shape(i).numel(); ++j) {
      const T p = c.in(i)[j];
      const T g = c.in(n + i)[j] * scale + static_cast<T>(decay[i]) * p;
      const T sum = c.in(2 * n + i)[j] + g * g;
      c.out(i)[j] = p - lr * g / (std::sqrt(sum) + eps);
      c.out(n + i)[j] = sum;
    }
  copy_shadows(c);
}

Cost cost(const OpSite& site) {
  double elements = 0;
  for (size_t i = 0; i < static_cast<size_t>(site.attrs.integer("n")); ++i)
    elements += static_cast<double>(site.out[i].numel());
  return {10 * elements, traffic(site)};
}

std::vector<OpCase> cases() {
  const std::vector<Shape> one{{5, 3}}, three{{1}, {7, 3}, {2, 2, 2}}, empty{{0}, {3}};
  const std::vector<Shape> large{{130, 127}, {31}};  // over one chunk
  auto attrs = [](double eps, const char* decay, int n) {
    return Attrs{{"n", n}, {"eps", eps}, {"decay", decay}};
  };
  return {
      {optimizer_case(one, 1, 0.1, 1, 1), attrs(1e-10, "0", 1)},
      {optimizer_case(one, 1, 0.1, 1, 2), attrs(1e-10, "0.1", 1)},
      {optimizer_case(one, 1, 0.1, 1, 2), attrs(0.5, "0.1", 1)},
      {optimizer_case(three, 1, 0.01, 0.25, 2), attrs(1e-10, "0.1;0;0.5", 3)},
      {optimizer_case(three, 1, 0.01, 2, 3), attrs(1e-10, "0;0.25;0", 3)},
      {optimizer_case(three, 1, 0.01, INFINITY, 3), attrs(1e-10, "0.1;0.1;0.1", 3)},
      {optimizer_case(empty, 1, 0.01, 1, 3), attrs(1e-10, "0.1;0.1", 2)},
      with_shadows({optimizer_case(large, 1, 0.01, 1, 3), attrs(1e-10, "0.1;0.1", 2)}, "1"),
      {optimizer_case(large, 1, 0.01, 0.75, 7), attrs(1e-10, "0.1;0", 2)},
  };
}

}  // namespace

extern const OpCard adagrad_card;
const OpCard adagrad_card = {
    .name = "adagrad",
    .summary =
        "one step of Adagrad (Duchi et al., JMLR 2011) on n tensors, as PyTorch computes it; decay "
        "is added to the gradient",
    .infer = infer,
    .no_gradient = "applied after differentiation",
    MR_REFERENCE,
    .cost = cost,
    .cases = cases,
    .in_place = optimizer_in_place,
    .keeps_shadows = true,
};

}  // namespace millrace
