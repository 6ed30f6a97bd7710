// rms_norm and its gradient. Zhang & Sennrich, "Root mean square layer normalization", arXiv
// 1910.07467:
//   y = x rstd w,  rstd = 1 / sqrt(mean(x^2) + eps);
//   dx = rstd (dy w - x rstd^2 mean(dy w x)),  dw = sum dy x rstd.
#include <cmath>

#include "ops/card.h"
#include "ops/type_rules.h"

namespace millrace {
namespace {

bool has_residual(const Attrs& attrs) { return attrs.integer("residual", 0) != 0; }

// x [..,D], weight [D] -> y [..,D], rstd [..]
std::string infer(const Attrs&, std::span<const TensorType> in, std::vector<TensorType>& out) {
  if (std::string fault = expect_inputs(in, 2); !fault.empty()) return fault;
  if (std::string fault = expect_f32("x", in[0], 1); !fault.empty()) return fault;
  const int64_t D = in[0].shape.last();
  if (D == 0) return "the normalised dimension is empty";
  out = {in[0], {without_last(in[0].shape), DType::f32}};
  return expect_type("weight", in[1], {{D}, DType::f32});
}

template <typename T>
void reference(const RefCall<T>& c) {
  const int64_t D = c.in_shape(0).last(), rows = c.out_shape(1).numel();
  const T eps = static_cast<T>(c.attrs().number("eps"));
  for (int64_t i = 0; i < rows; ++i) {
    const T* x = c.in(0) + i * D;
    T squares = 0;
    for (int64_t j = 0; j < D; ++j) squares += x[j] * x[j];
    const T rstd = T(1) / std::sqrt(squares / static_cast<T>(D) + eps);
    for (int64_t j = 0; j < D; ++j) c.out(0)[i * D + j] = x[j] * rstd * c.in(1)[j];
    c.out(1)[i] = rstd;
  }
}

void vjp(GradContext& g) {
  MR_CHECK(!g.grad(1).valid(), "the kept statistic has no gradient");
  const auto d =
      g.b.op_all("rms_norm_grad", {g.in(0), g.in(1), g.out(1), g.grad(0)}, {{"residual", 0}});
  for (size_t i = 0; i < 2; ++i)
    if (g.wants(i)) g.set(i, d[i]);
}

Cost cost(const OpSite& site) {
  return {4.0 * static_cast<double>(site.in[0].numel()), traffic(site)};
}

std::vector<OpCase> cases() {
  std::vector<OpCase> list;
  for (const Shape& x : {Shape{1, 1}, Shape{1, 5}, Shape{3, 7}, Shape{13}, Shape{2, 3, 16},
                         Shape{5, 1, 33}, Shape{67, 6}, Shape{2, 127}, Shape{9, 211}, Shape{0, 4}})
    list.push_back({{normal_input(x), normal_input({x.last()})}, {{"eps", 1e-5}}});
  list.push_back({{normal_input({4, 12}), normal_input({12})}, {{"eps", 0.1}}});
  return list;
}

std::vector<OpCase> benchmarks() {
  std::vector<OpCase> list;
  for (const Shape& x : {Shape{4096, 256}, Shape{1024, 512}})
    list.push_back({{normal_input(x), normal_input({x[1]})}, {{"eps", 1e-5}}, false});
  return list;
}

std::vector<InPlace> in_place(const OpSite&) { return {{0, 0}}; }

// x [..,D], weight [D], rstd [..], dy [..,D], [r [..,D]] -> dx, dweight
std::string grad_infer(const Attrs& attrs, std::span<const TensorType> in,
                       std::vector<TensorType>& out) {
  const bool residual = has_residual(attrs);
  if (std::string fault = expect_inputs(in, residual ? 5 : 4); !fault.empty()) return fault;
  if (std::string fault = expect_f32("x", in[0], 1); !fault.empty()) return fault;
  const int64_t D = in[0].shape.last();
  if (D == 0) return "the normalised dimension is empty";
  const TensorType parameter{{D}, DType::f32};
  out = {in[0], parameter};
  return first_fault({expect_type("weight", in[1], parameter),
                      expect_type("rstd", in[2], {without_last(in[0].shape), DType::f32}),
                      expect_type("dy", in[3], in[0]),
                      residual ? expect_type("residual gradient", in[4], in[0]) : ""});
}

// dx may stand in the storage of dy or r, so each row of dy is used up before its dx is written.
template <typename T>
void grad_reference(const RefCall<T>& c) {
  const int64_t D = c.in_shape(0).last(), rows = c.in_shape(2).numel();
  const T *weight = c.in(1), *residual = has_residual(c.attrs()) ? c.in(4) : nullptr;
  T* dweight = c.out(1);
  for (int64_t j = 0; j < D; ++j) dweight[j] = 0;
  for (int64_t i = 0; i < rows; ++i) {
    const T *x = c.in(0) + i * D, *dy = c.in(3) + i * D;
    const T rstd = c.in(2)[i];
    T dot = 0;
    for (int64_t j = 0; j < D; ++j) {
      dot += dy[j] * weight[j] * x[j];
      dweight[j] += dy[j] * x[j] * rstd;
    }
    dot /= static_cast<T>(D);
    for (int64_t j = 0; j < D; ++j)
      c.out(0)[i * D + j] = rstd * (dy[j] * weight[j] - x[j] * rstd * rstd * dot) +
                            (residual ? residual[i * D + j] : T(0));
  }
}

Cost grad_cost(const OpSite& site) {
  return {10.0 * static_cast<double>(site.in[0].numel()), traffic(site)};
}

std::vector<OpCase> grad_cases() {
  std::vector<OpCase> list;
  for (const Shape& x : {Shape{1, 1}, Shape{1, 5}, Shape{3, 7}, Shape{13}, Shape{2, 3, 16},
                         Shape{131, 33}, Shape{2, 1, 1021}, Shape{0, 4}})
    for (bool residual : {false, true}) {
      OpCase c{{normal_input(x), normal_input({x.last()}), positive_input(without_last(x)),
                normal_input(x)},
               {{"residual", residual}}};
      if (residual) c.in.push_back(normal_input(x));
      list.push_back(c);
    }
  return list;
}

std::vector<OpCase> grad_benchmarks() {
  std::vector<OpCase> list;
  for (const Shape& x : {Shape{4096, 256}, Shape{1024, 512}})
    for (bool residual : {false, true}) {
      OpCase c{{normal_input(x), normal_input({x[1]}), positive_input({x[0]}), normal_input(x)},
               {{"residual", residual}},
               false};
      if (residual) c.in.push_back(normal_input(x));
      list.push_back(c);
    }
  return list;
}

std::vector<InPlace> grad_in_place(const OpSite& site) {
  if (has_residual(site.attrs)) return {{0, 4}, {0, 3}};
  return {{0, 3}};
}

}  // namespace

extern const OpCard rms_norm_card;
const OpCard rms_norm_card = {
    .name = "rms_norm",
    .summary =
        "y = x / sqrt(mean(x^2) + eps) * weight over the last dimension; also "
        "1/sqrt(mean(x^2) + eps). Zhang & Sennrich, arXiv 1910.07467",
    .infer = infer,
    .vjp = vjp,
    MR_REFERENCE,
    .cost = cost,
    .cases = cases,
    .benchmarks = benchmarks,
    .in_place = in_place,
    .cheap = true,
    .full_in = 0b10,
    .full_out = 0b10,
};

extern const OpCard rms_norm_grad_card;
const OpCard rms_norm_grad_card = {
    .name = "rms_norm_grad",
    .summary =
        "gradients of rms_norm for x and weight; with residual=1 the gradient of a residual "
        "connection around the norm is added to that of x",
    .infer = grad_infer,
    .no_gradient = "first derivatives only",
    .reference_f32 = grad_reference<float>,
    .reference_f64 = grad_reference<double>,
    .cost = grad_cost,
    .cases = grad_cases,
    .benchmarks = grad_benchmarks,
    .in_place = grad_in_place,
    .full_in = 0b110,
    .full_out = 0b10,
};

}  // namespace millrace
