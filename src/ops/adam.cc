// adam: Kingma & Ba, arXiv 1412.6980, with decoupled weight decay (AdamW) of Loshchilov & Hutter,
// arXiv 1711.05101, in the form of PyTorch:
//   decoupled: p = p (1 - lr decay);   else: g = g + decay p
//   m = beta1 m + (1 - beta1) g,  v = beta2 v + (1 - beta2) g^2
//   p = p - lr / (1 - beta1^t) * m / (sqrt(v) / sqrt(1 - beta2^t) + eps)
#include <cmath>

#include "ops/card.h"
#include "ops/optimizer_common.h"

namespace millrace {
namespace {

std::string infer(const Attrs& attrs, std::span<const TensorType> in,
                  std::vector<TensorType>& out) {
  return infer_optimizer(attrs, in, out, 2);
}

// Scalars of the step are formed in double for both types: in float 1 - 0.999^t loses digits.
template <typename T>
void reference(const RefCall<T>& c) {
  const auto n = static_cast<size_t>(c.attrs().integer("n"));
  const double lr = *c.in(4 * n), step = *c.in(4 * n + 2);
  const T scale = *c.in(4 * n + 1);
  if (!std::isfinite(scale)) return leave_unchanged(c.site, c.in_data, c.out_data, sizeof(T));
  const double beta1 = c.attrs().number("beta1"), beta2 = c.attrs().number("beta2");
  const bool decoupled = c.attrs().integer("decoupled") != 0;
  const T eps = static_cast<T>(c.attrs().number("eps"));
  const T step_size = static_cast<T>(lr / (1 - std::pow(beta1, step)));
  const T correction = static_cast<T>(std::sqrt(1 - std::pow(beta2, step)));
  const auto decay = decay_from_text(c.attrs().text("decay"), static_cast<int64_t>(n)).value();
  for (size_t i = 0; i < n; ++i)
    for (int64_t j = 0; j < c.in_shape(i).numel(); ++j) {
      const T p = c.in(i)[j];
      const T g = c.in(n + i)[j] * scale + (decoupled ? T(0) : static_cast<T>(decay[i]) * p);
      const T m = static_cast<T>(beta1) * c.in(2 * n + i)[j] + static_cast<T>(1 - beta1) * g;
      const T v = static_cast<T>(beta2) * c.in(3 * n + i)[j] + static_cast<T>(1 - beta2) * g * g;
      const T kept = decoupled ? static_cast<T>(1 - lr * decay[i]) * p : p;
      c.out(i)[j] = kept - step_size * m / (std::sqrt(v) / correction + eps);
      c.out(n + i)[j] = m;
      c.out(2 * n + i)[j] = v;
    }
  copy_shadows(c);
}

Cost cost(const OpSite& site) {
  double elements = 0;
  for (size_t i = 0; i < static_cast<size_t>(site.attrs.integer("n")); ++i)
    elements += static_cast<double>(site.out[i].numel());
  return {16 * elements, traffic(site)};
}

std::vector<OpCase> cases() {
  const std::vector<Shape> one{{5, 3}}, three{{1}, {7, 3}, {2, 2, 2}}, empty{{0}, {3}};
  const std::vector<Shape> large{{130, 127}, {31}};  // over one chunk
  auto attrs = [](double beta2, bool decoupled, const char* decay, int n) {
    return Attrs{{"n", n},      {"beta1", 0.9},           {"beta2", beta2},
                 {"eps", 1e-8}, {"decoupled", decoupled}, {"decay", decay}};
  };
  return {
      {optimizer_case(one, 2, 0.1, 1, 1), attrs(0.95, true, "0.1", 1)},
      {optimizer_case(one, 2, 0.1, 1, 1), attrs(0.999, false, "0.1", 1)},
      {optimizer_case(one, 2, 3e-4, 0.5, 1000), attrs(0.999, true, "0", 1)},
      {optimizer_case(three, 2, 0.01, 0.25, 2), attrs(0.95, true, "0.1;0;0.5", 3)},
      {optimizer_case(three, 2, 0.01, 2, 3), attrs(0.95, false, "0;0.25;0", 3)},
      {optimizer_case(three, 2, 0.01, INFINITY, 3), attrs(0.95, true, "0.1;0.1;0.1", 3)},
      {optimizer_case(empty, 2, 0.01, 1, 3), attrs(0.95, true, "0.1;0.1", 2)},
      with_shadows({optimizer_case(three, 2, 0.01, 0.25, 2), attrs(0.95, true, "0.1;0;0.5", 3)},
                   "0;2"),
      with_shadows({optimizer_case(large, 2, 0.01, INFINITY, 2), attrs(0.95, true, "0.1;0", 2)},
                   "0"),
      with_shadows({optimizer_case(large, 2, 0.01, 1, 2), attrs(0.95, true, "0.1;0", 2)}, "0;1"),
      {optimizer_case(large, 2, 0.01, 0.75, 7), attrs(0.95, true, "0.1;0", 2)},
  };
}

std::vector<OpCase> benchmarks() {
  const std::vector<Shape> shapes{{4096, 2048}, {2048, 4096}};
  return {{optimizer_case(shapes, 2, 1e-3, 0.5, 10),
           {{"n", 2},
            {"beta1", 0.9},
            {"beta2", 0.95},
            {"eps", 1e-8},
            {"decoupled", 1},
            {"decay", "0.1;0.1"}},
           false}};
}

}  // namespace

extern const OpCard adam_card;
const OpCard adam_card = {
    .name = "adam",
    .summary =
        "one step of Adam (Kingma & Ba, arXiv 1412.6980) or, with decoupled=1, AdamW (Loshchilov "
        "& Hutter, arXiv 1711.05101) on n tensors, as PyTorch computes it",
    .infer = infer,
    .no_gradient = "applied after differentiation",
    MR_REFERENCE,
    .cost = cost,
    .cases = cases,
    .benchmarks = benchmarks,
    .in_place = optimizer_in_place,
    .keeps_shadows = true,
};

}  // namespace millrace
