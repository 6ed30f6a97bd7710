// The loss head in one op: logits = x w^T, softmax, cross-entropy and, in the same pass, the
// gradients of x and w for a cotangent of one (as Liger-Kernel's fused linear cross-entropy, arXiv
// 2410.10989). Only `chunk_rows` rows of logits exist at a time; they become their own gradient in
// place. With `copy` it is the loss of a pointer-generator (See et al., arXiv 1704.04368): a word
// is generated with probability s(gate), s the sigmoid, or else copied, which gives the target word
// the probability `mass` (op copy_mass).
#include "ops/linear_cross_entropy.h"

#include "ops/card.h"
#include "ops/label_smoothing.h"
#include "ops/type_rules.h"

namespace millrace {
namespace {

bool copies(const Attrs& attrs) { return attrs.integer("copy", 0) != 0; }
bool is_frozen(const Attrs& attrs) { return attrs.integer("frozen", 0) != 0; }

// in: x [.., D], w [V, D], targets i32 [..] (negative: ignored), scale [] ; loss = scale * sum of
// -log p. out: loss [], and with `gradients` also dx [.., D], dw [V, D]; no dw when w is `frozen`.
// `smoothing`: see ops/label_smoothing.h.
// With `copy`: in also gate [..] and mass [..], p = s(gate) softmax_y + (1 - s(gate)) mass, and a
// target from V on is a word that can only be copied; out also dgate [..], dmass [..].
std::string infer(const Attrs& attrs, std::span<const TensorType> in,
                  std::vector<TensorType>& out) {
  if (auto fault = expect_inputs(in, copies(attrs) ? 6 : 4); !fault.empty()) return fault;
  const Shape &x = in[0].shape, &w = in[1].shape;
  if (x.rank() < 2 || w.rank() != 2 || x.last() != w[1])
    return fmt::format("x {} and w {}", x.str(), w.str());
  if (in[2].dtype != DType::i32 || in[2].numel() != x.rows())
    return fmt::format("targets {} for {} rows", in[2].str(), x.rows());
  if (in[3].numel() != 1) return "scale must be one number";
  if (auto fault = check_smoothing(attrs); !fault.empty()) return fault;
  if (copies(attrs) && attrs.number("smoothing", 0) > 0)
    return "smoothing and copy: a word that is copied is no class among others";
  if (copies(attrs) && is_frozen(attrs)) return "frozen and copy";
  const TensorType row_numbers{in[2].shape, DType::f32};
  if (copies(attrs))
    if (auto fault = first_fault(
            {expect_type("gate", in[4], row_numbers), expect_type("mass", in[5], row_numbers)});
        !fault.empty())
      return fault;
  out = {{Shape{}, DType::f32}};
  if (attrs.integer("gradients")) {
    out.push_back(in[0]);
    if (!is_frozen(attrs)) out.push_back(in[1]);
    if (copies(attrs)) out.insert(out.end(), 2, row_numbers);
  }
  return "";
}

void vjp(GradContext& g) {
  if (!g.node.attrs.integer("gradients"))
    return g.b.fail("linear_cross_entropy was built without gradients");
  const std::vector<size_t> has_gradient = copies(g.node.attrs) ? std::vector<size_t>{0, 1, 4, 5}
                                           : is_frozen(g.node.attrs) ? std::vector<size_t>{0}
                                                                     : std::vector<size_t>{0, 1};
  if (is_frozen(g.node.attrs) && g.wants(1)) return g.b.fail("the gradient of a frozen weight");
  for (size_t k = 0; k < has_gradient.size(); ++k) {
    if (g.grad(k + 1).valid()) return g.b.fail("linear_cross_entropy is differentiated once");
    const size_t i = has_gradient[k];
    if (g.wants(i)) g.set(i, g.b.mul(g.out(k + 1), g.grad(0)));
  }
}

std::vector<Value> expand(Builder& b, const Attrs& attrs, std::span<const Value> in) {
  if (copies(attrs)) return {};  // no plain op tells targets from V on from ignored ones
  const int64_t rows = b.shape(in[0]).rows(), D = b.shape(in[0]).last();
  const Value x = b.reshape(in[0], {rows, D}), w = in[1], targets = b.reshape(in[2], {rows});
  const Value logits = b.matmul(x, w, false, true);
  Attrs smoothing;
  if (const double share = attrs.number("smoothing", 0); share > 0)
    smoothing.set({"smoothing", share});
  const auto loss = b.op_all("cross_entropy", {logits, targets, in[3]}, smoothing);
  if (!attrs.integer("gradients")) return {loss[0]};
  const Value dlogits =
      b.op("cross_entropy_grad", {logits, targets, in[3], loss[1], b.constant(1)}, smoothing);
  const Value dx = b.reshape(b.matmul(dlogits, w), b.shape(in[0]));
  if (is_frozen(attrs)) return {loss[0], dx};
  return {loss[0], dx, b.matmul(dlogits, x, true, false)};
}

// A row whose word may be generated, with log-probability log_p (-inf: never), or copied.
template <typename T>
struct Mixture {
  Mixture(T log_p, T gate, T mass) {
    const T floor = static_cast<T>(kMassFloor), softplus = std::log1p(std::exp(-std::fabs(gate)));
    const T log_gate = std::min(gate, T(0)) - softplus;
    const T generated = log_gate + log_p;
    const T copied = std::min(-gate, T(0)) - softplus + std::log(mass < floor ? floor : mass);
    const T log_all =
        std::max(generated, copied) + std::log1p(std::exp(-std::fabs(generated - copied)));
    loss = -log_all;
    share = std::exp(generated - log_all);
    dgate = std::exp(log_gate) - share;
    dmass = mass < floor ? T(0) : -std::exp(copied - log_all) / mass;
  }
  T loss, share;  // share: of the generator in the probability
  T dgate, dmass;
};

template <typename T>
void reference(const RefCall<T>& c) {
  const int64_t N = c.in_shape(0).rows(), D = c.in_shape(0).last(), V = c.in_shape(1)[0];
  const bool gradients = c.attrs().integer("gradients") != 0, copy = copies(c.attrs()),
             frozen = is_frozen(c.attrs());
  const LabelShares label(c.attrs(), V);
  const T *x = c.in(0), *w = c.in(1), scale = c.in(3)[0];
  if (gradients) {
    std::fill_n(c.out(1), N * D, T(0));
    if (!frozen) std::fill_n(c.out(2), V * D, T(0));
    for (size_t o = 3; copy && o < 5; ++o) std::fill_n(c.out(o), N, T(0));
  }
  std::vector<T> p(static_cast<size_t>(V));
  T loss = 0;
  for (int64_t i = 0; i < N; ++i) {
    const int32_t target = c.ids(2)[i];
    if (target < 0 || (target >= V && !copy)) continue;
    T top = -std::numeric_limits<T>::infinity(), sum = 0, total = 0;
    for (int64_t v = 0; v < V; ++v) {
      T logit = 0;
      for (int64_t d = 0; d < D; ++d) logit += x[i * D + d] * w[v * D + d];
      p[static_cast<size_t>(v)] = logit;
      top = std::max(top, logit);
      total += logit;
    }
    for (T logit : p) sum += std::exp(logit - top);
    T row_loss = target < V ? top + std::log(sum) -
                                  wanted_logit(label, p[static_cast<size_t>(target)], total)
                            : std::numeric_limits<T>::infinity();
    T row_scale = scale;
    if (copy) {
      const Mixture<T> mixture(-row_loss, c.in(4)[i], c.in(5)[i]);
      row_loss = mixture.loss;
      row_scale = scale * mixture.share;
      if (gradients) {
        c.out(3)[i] = scale * mixture.dgate;
        c.out(4)[i] = scale * mixture.dmass;
      }
    }
    loss += scale * row_loss;
    if (!gradients || target >= V) continue;
    for (int64_t v = 0; v < V; ++v) {
      const T wanted = v == target ? T(label.on + label.off) : T(label.off);
      const T g = row_scale * (std::exp(p[static_cast<size_t>(v)] - top) / sum - wanted);
      for (int64_t d = 0; d < D; ++d) {
        c.out(1)[i * D + d] += g * w[v * D + d];
        if (!frozen) c.out(2)[v * D + d] += g * x[i * D + d];
      }
    }
  }
  c.out(0)[0] = loss;
}

Cost cost(const OpSite& site) {
  const auto N = static_cast<double>(site.in[0].shape.rows()),
             D = static_cast<double>(site.in[0].shape.last()),
             V = static_cast<double>(site.in[1].shape[0]);
  const double products = !site.attrs.integer("gradients") ? 1 : is_frozen(site.attrs) ? 2 : 3;
  return {2 * products * N * D * V, traffic(site)};
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

  for (const auto& [N, V, chunk] : {std::array<int64_t, 3>{5, 7, 0},
                                    {9, 5, 4},
                                    {130, 301, 64},
                                    {70, 1001, 32},
                                    {3, 13000, 0}}) {
    add({N, 12}, V, chunk, true, true, false);
    list.back().attrs.set({"frozen", 1});
  }

  auto add_smooth = [&](Shape x, int64_t V, int64_t chunk, double smoothing, bool gradients,
                        bool check = true) {
    add(x, V, chunk, true, gradients, check);
    list.back().attrs.set({"smoothing", smoothing});
  };
  add_smooth({5, 3}, 7, 0, 0.1, true);
  add_smooth({2, 4, 3}, 6, 3, 0.5, true);
  add_smooth({2, 1}, 2, 0, 0.9, true);
  add_smooth({6, 4}, 9, 0, 0.1, false);
  add_smooth({130, 16}, 301, 64, 0.1, true, false);
  // The rows of logits as the CUDA kernels tell them apart: a warp's, a block's registers, shared
  // memory, longer. The scale keeps the gradient among the normal numbers of f16.
  for (const auto& [N, V, chunk] : {std::array<int64_t, 3>{200, 70, 0},
                                    {70, 1001, 32},
                                    {50, 3001, 0},
                                    {5, 13000, 0},
                                    {4, 30000, 0},
                                    {2, 130000, 0}}) {
    add_smooth({N, 4}, V, chunk, 0.1, true, false);
    list.back().in[3] = constant_input({}, 8);
  }
  add_smooth({40, 16}, 9000, 16, 0.1, false);

  // Targets up to V + 3, so that some words can only be copied.
  auto add_copy = [&](Shape x, int64_t V, int64_t chunk, bool ignored, bool gradients,
                      bool check = true) {
    add(x, V, chunk, ignored, gradients, check);
    OpCase& c = list.back();
    const Shape rows = c.in[2].type.shape;
    c.in[2].value = static_cast<double>(V + 3);
    c.in.push_back(normal_input(rows));
    c.in.push_back(positive_input(rows));
    c.attrs.set({"copy", 1});
  };
  add_copy({5, 3}, 7, 0, false, true);
  add_copy({2, 6, 3}, 4, 5, true, true);
  add_copy({1, 1}, 2, 0, false, true);
  add_copy({9, 2}, 5, 4, true, true);
  add_copy({6, 4}, 9, 0, true, false);
  // Gates all but open and shut, masses below the floor and above it: constants carry no gradient.
  for (const auto& [gate, mass] : {std::array{30.0, 0.0}, {-30.0, 0.0}, {0.5, 1e-25}}) {
    add_copy({7, 3}, 5, 3, true, true);
    list.back().in[4] = constant_input({7}, gate);
    list.back().in[5] = constant_input({7}, mass);
  }
  add_copy({130, 4}, 301, 64, true, true, false);
  // Masses as small as the softmax, or the generator's share would vanish in 16 bits, and a scale
  // that keeps its gradient among the normal numbers of f16.
  for (const auto& [N, V, chunk] :
       {std::array<int64_t, 3>{70, 1001, 32}, {50, 3001, 0}, {5, 13000, 0}, {4, 30000, 0}}) {
    add_copy({N, 4}, V, chunk, true, true, false);
    list.back().in[3] = constant_input({}, 8);
    list.back().in[5] = constant_input({N}, 1.0 / static_cast<double>(V));
  }
  add_copy({40, 16}, 9000, 16, true, false);
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
    .summary =
        "loss head: linear, softmax, cross-entropy, with `smoothing` as cross_entropy, and their "
        "gradients, chunk by chunk; with copy, the word may also come from the source, with the "
        "probability copy_mass gives",
    .infer = infer,
    .vjp = vjp,
    .expand = expand,
    MR_REFERENCE,
    .cost = cost,
    .cases = cases,
    .benchmarks = benchmarks,
    .full_in = 0b110000,
    .full_out = 0b11000,
    .multiplies = true};

}  // namespace millrace
