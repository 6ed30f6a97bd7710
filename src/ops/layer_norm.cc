// layer_norm and its gradient. Ba, Kiros, Hinton, "Layer normalization", arXiv 1607.06450; the
// gradient is that of the formula, with xhat = (x - mean) rstd:
//   dx = rstd (dy w - mean(dy w) - xhat mean(dy w xhat)),  dw = sum dy xhat,  db = sum dy.
#include <cmath>

#include "ops/card.h"
#include "ops/type_rules.h"

namespace millrace {
namespace {

bool has_bias(const Attrs& attrs) { return attrs.integer("bias", 0) != 0; }
bool has_residual(const Attrs& attrs) { return attrs.integer("residual", 0) != 0; }
bool has_sums(const Attrs& attrs) { return attrs.integer("sums", 0) != 0; }

// x [..,D], weight [D], [bias [D]] -> y [..,D], mean [..], rstd [..]
std::string infer(const Attrs& attrs, std::span<const TensorType> in,
                  std::vector<TensorType>& out) {
  if (std::string fault = expect_inputs(in, has_bias(attrs) ? 3 : 2); !fault.empty()) return fault;
  if (std::string fault = expect_f32("x", in[0], 1); !fault.empty()) return fault;
  const int64_t D = in[0].shape.last();
  if (D == 0) return "the normalised dimension is empty";
  const TensorType parameter{{D}, DType::f32}, statistic{without_last(in[0].shape), DType::f32};
  out = {in[0], statistic, statistic};
  return first_fault({expect_type("weight", in[1], parameter),
                      has_bias(attrs) ? expect_type("bias", in[2], parameter) : ""});
}

template <typename T>
void reference(const RefCall<T>& c) {
  const int64_t D = c.in_shape(0).last(), rows = c.out_shape(1).numel();
  const T eps = static_cast<T>(c.attrs().number("eps"));
  const T *weight = c.in(1), *bias = has_bias(c.attrs()) ? c.in(2) : nullptr;
  for (int64_t i = 0; i < rows; ++i) {
    const T* x = c.in(0) + i * D;
    T* y = c.out(0) + i * D;
    T sum = 0, squares = 0;
    for (int64_t j = 0; j < D; ++j) sum += x[j];
    const T mean = sum / static_cast<T>(D);
    for (int64_t j = 0; j < D; ++j) squares += (x[j] - mean) * (x[j] - mean);
    const T rstd = T(1) / std::sqrt(squares / static_cast<T>(D) + eps);
    for (int64_t j = 0; j < D; ++j)
      y[j] = (x[j] - mean) * rstd * weight[j] + (bias ? bias[j] : T(0));
    c.out(1)[i] = mean;
    c.out(2)[i] = rstd;
  }
}

void vjp(GradContext& g) {
  MR_CHECK(!g.grad(1).valid() && !g.grad(2).valid(), "the kept statistics have no gradient");
  const bool bias = has_bias(g.node.attrs);
  const auto d = g.b.op_all("layer_norm_grad", {g.in(0), g.in(1), g.out(1), g.out(2), g.grad(0)},
                            {{"bias", bias}, {"residual", 0}});
  for (size_t i = 0; i < g.node.in.size(); ++i)
    if (g.wants(i)) g.set(i, d[i]);
}

Cost cost(const OpSite& site) {
  return {8.0 * static_cast<double>(site.in[0].numel()), traffic(site)};
}

std::vector<OpCase> cases() {
  std::vector<OpCase> list;
  for (const Shape& x : {Shape{1, 1}, Shape{1, 5}, Shape{3, 7}, Shape{13}, Shape{2, 3, 16},
                         Shape{5, 1, 33}, Shape{67, 6}, Shape{2, 127}, Shape{0, 4}})
    for (bool bias : {false, true}) {
      OpCase c{{normal_input(x), normal_input({x.last()})}, {{"eps", 1e-5}, {"bias", bias}}};
      if (bias) c.in.push_back(normal_input({x.last()}));
      list.push_back(c);
    }
  list.push_back({{normal_input({9, 211}), normal_input({211})}, {{"eps", 0.1}, {"bias", 0}}});
  return list;
}

std::vector<OpCase> benchmarks() {
  std::vector<OpCase> list;
  for (const Shape& x : {Shape{4096, 256}, Shape{1024, 512}}) {
    const CaseInput parameter = normal_input({x.last()});
    list.push_back({{normal_input(x), parameter, parameter}, {{"eps", 1e-5}, {"bias", 1}}, false});
  }
  return list;
}

std::vector<InPlace> in_place(const OpSite&) { return {{0, 0}}; }

// x [..,D], weight [D], mean [..], rstd [..], dy [..,D], [r [..,D]] -> dx, dweight, [dbias], [sums]
std::string grad_infer(const Attrs& attrs, std::span<const TensorType> in,
                       std::vector<TensorType>& out) {
  const bool residual = has_residual(attrs);
  if (std::string fault = expect_inputs(in, residual ? 6 : 5); !fault.empty()) return fault;
  if (std::string fault = expect_f32("x", in[0], 1); !fault.empty()) return fault;
  const int64_t D = in[0].shape.last();
  if (D == 0) return "the normalised dimension is empty";
  const TensorType parameter{{D}, DType::f32}, statistic{without_last(in[0].shape), DType::f32};
  out = {in[0], parameter};
  if (has_bias(attrs)) out.push_back(parameter);
  if (has_sums(attrs)) out.push_back(parameter);
  return first_fault({expect_type("weight", in[1], parameter),
                      expect_type("mean", in[2], statistic), expect_type("rstd", in[3], statistic),
                      expect_type("dy", in[4], in[0]),
                      residual ? expect_type("residual gradient", in[5], in[0]) : ""});
}

// dx may stand in the storage of dy or r, so each row of dy is used up before its dx is written.
template <typename T>
void grad_reference(const RefCall<T>& c) {
  const int64_t D = c.in_shape(0).last(), rows = c.in_shape(2).numel();
  const T *weight = c.in(1), *residual = has_residual(c.attrs()) ? c.in(5) : nullptr;
  T *dweight = c.out(1), *dbias = has_bias(c.attrs()) ? c.out(2) : nullptr;
  T* sums = has_sums(c.attrs()) ? c.out(dbias ? 3 : 2) : nullptr;
  for (int64_t j = 0; j < D; ++j) {
    dweight[j] = 0;
    if (dbias) dbias[j] = 0;
    if (sums) sums[j] = 0;
  }
  for (int64_t i = 0; i < rows; ++i) {
    const T *x = c.in(0) + i * D, *dy = c.in(4) + i * D;
    const T mean = c.in(2)[i], rstd = c.in(3)[i];
    T sum = 0, dot = 0;
    for (int64_t j = 0; j < D; ++j) {
      const T xhat = (x[j] - mean) * rstd;
      sum += dy[j] * weight[j];
      dot += dy[j] * weight[j] * xhat;
      dweight[j] += dy[j] * xhat;
      if (dbias) dbias[j] += dy[j];
    }
    sum /= static_cast<T>(D);
    dot /= static_cast<T>(D);
    for (int64_t j = 0; j < D; ++j) {
      const T xhat = (x[j] - mean) * rstd;
      const T dx =
          rstd * (dy[j] * weight[j] - sum - xhat * dot) + (residual ? residual[i * D + j] : T(0));
      c.out(0)[i * D + j] = dx;
      if (sums) sums[j] += dx;
    }
  }
}

Cost grad_cost(const OpSite& site) {
  return {15.0 * static_cast<double>(site.in[0].numel()), traffic(site)};
}

OpCase grad_case(const Shape& x, bool bias, bool residual, bool sums) {
  const Shape statistic = without_last(x);
  OpCase c{{normal_input(x), normal_input({x.last()}), normal_input(statistic),
            positive_input(statistic), normal_input(x)},
           {{"bias", bias}, {"residual", residual}}};
  if (residual) c.in.push_back(normal_input(x));
  if (sums) c.attrs.set({"sums", 1});
  return c;
}

std::vector<OpCase> grad_cases() {
  std::vector<OpCase> list;
  for (const Shape& x : {Shape{7, 1}, Shape{1, 5}, Shape{3, 7}, Shape{13}, Shape{2, 3, 16},
                         Shape{131, 33}, Shape{2, 1, 1021}, Shape{0, 4}})
    for (bool bias : {false, true})
      for (bool residual : {false, true}) list.push_back(grad_case(x, bias, residual, false));
  for (const Shape& x : {Shape{1, 5}, Shape{0, 4}, Shape{131, 33}, Shape{70, 768}, Shape{9, 7000}})
    for (bool bias : {false, true}) list.push_back(grad_case(x, bias, true, true));
  list.push_back(grad_case({67, 24}, true, false, true));
  return list;
}

std::vector<OpCase> grad_benchmarks() {
  std::vector<OpCase> list;
  for (const Shape& x : {Shape{4096, 256}, Shape{1024, 512}})
    for (bool residual : {false, true}) {
      list.push_back(grad_case(x, true, residual, residual));
      list.back().gradient = false;
    }
  return list;
}

std::vector<InPlace> grad_in_place(const OpSite& site) {
  if (has_residual(site.attrs)) return {{0, 5}, {0, 4}};
  return {{0, 4}};
}

}  // namespace

extern const OpCard layer_norm_card;
const OpCard layer_norm_card = {
    .name = "layer_norm",
    .summary =
        "y = (x - mean) / sqrt(variance + eps) * weight [+ bias] over the last dimension; "
        "also mean and 1/sqrt(variance + eps). Ba et al., arXiv 1607.06450",
    .infer = infer,
    .vjp = vjp,
    MR_REFERENCE,
    .cost = cost,
    .cases = cases,
    .benchmarks = benchmarks,
    .in_place = in_place,
    .cheap = true,
    .full_in = 0b110,
    .full_out = 0b110,
};

extern const OpCard layer_norm_grad_card;
const OpCard layer_norm_grad_card = {
    .name = "layer_norm_grad",
    .summary =
        "gradients of layer_norm for x, weight [and bias]; with residual=1 the gradient of a "
        "residual connection around the norm is added to that of x, with sums=1 the sums of its "
        "columns are made too",
    .infer = grad_infer,
    .no_gradient = "first derivatives only",
    .reference_f32 = grad_reference<float>,
    .reference_f64 = grad_reference<double>,
    .cost = grad_cost,
    .cases = grad_cases,
    .benchmarks = grad_benchmarks,
    .in_place = grad_in_place,
    .full_in = 0b1110,
    .full_out = 0b1110,
};

}  // namespace millrace
