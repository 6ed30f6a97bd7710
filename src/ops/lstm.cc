// lstm over whole sequences, one or both directions, and its gradient. Hochreiter & Schmidhuber,
// Neural Computation 9 (1997), with the forget gate of Gers et al. (2000); gates in the order
// i, f, g, o, as PyTorch and cuDNN have them. The inputs are projected before, all at once:
//   z = x_t + h' r;  c = sigmoid(z_f) c' + sigmoid(z_i) tanh(z_g);  h = sigmoid(z_o) tanh(c)
// with h', c' of the step before, which for direction 1 is the one behind in time. Places from a
// row's length on are not there: direction 1 begins at length - 1, and their results are zero. So
// h' and c' of a place are always what `y` and `cells` hold beside it.
#include <cmath>

#include "graph/scalar_functions.h"
#include "ops/card.h"
#include "ops/type_rules.h"

namespace millrace {
namespace {

struct Sizes {
  Sizes(const Shape& x, const Shape& r) : T(x[0]), B(x[1]), D(x[2]), H(r[1]) {}
  int64_t T, B, D, H;
  int64_t row(int64_t t, int64_t b, int64_t d) const { return (t * B + b) * D + d; }
  // The place before t in direction d; -1: there is none.
  int64_t before(int64_t t, int64_t d) const {
    const int64_t at = d == 0 ? t - 1 : t + 1;
    return at < T ? at : -1;
  }
  // The place of the last step: of none when the row is empty.
  int64_t last(int64_t length, int64_t d) const {
    return d == 0 ? length - 1 : length > 0 ? 0 : -1;
  }
  int64_t length(const int32_t* lengths, int64_t b) const {
    return std::clamp<int64_t>(lengths[b], 0, T);
  }
};

std::string check_weights(const TensorType& x, const TensorType& r, const TensorType& lengths) {
  if (std::string fault = expect_f32("r", r, 3); !fault.empty()) return fault;
  const int64_t D = r.shape[0], H = r.shape[1];
  if (r.shape.rank() != 3 || r.shape[2] != 4 * H || H == 0 || D < 1 || D > 2)
    return fmt::format("r is {}, wants [1 or 2, H, 4 H]", r.str());
  if (x.shape.rank() != 4) return fmt::format("x is {}, wants [T, B, D, 4 H]", x.str());
  const int64_t T = x.shape[0], B = x.shape[1];
  return first_fault({expect_type("x", x, {{T, B, D, 4 * H}, DType::f32}),
                      expect_type("lengths", lengths, {{B}, DType::i32})});
}

// x [T,B,D,4H], r [D,H,4H], lengths i32 [B] -> y [T,B,D,H], last h and last c [B,D,H], and kept:
// gates [T,B,D,4H] after their functions, cells [T,B,D,H]
std::string infer(const Attrs&, std::span<const TensorType> in, std::vector<TensorType>& out) {
  if (std::string fault = expect_inputs(in, 3); !fault.empty()) return fault;
  if (std::string fault = check_weights(in[0], in[1], in[2]); !fault.empty()) return fault;
  const Sizes s(in[0].shape, in[1].shape);
  const TensorType state{{s.T, s.B, s.D, s.H}, DType::f32}, last{{s.B, s.D, s.H}, DType::f32};
  out = {state, last, last, in[0], state};
  return "";
}

template <typename T>
void reference(const RefCall<T>& c) {
  const Sizes s(c.in_shape(0), c.in_shape(1));
  const int64_t H = s.H;
  T *const y = c.out(0), *const gates = c.out(3), *const cells = c.out(4);
  std::fill_n(y, s.T * s.B * s.D * H, T(0));
  std::fill_n(gates, s.T * s.B * s.D * 4 * H, T(0));
  std::fill_n(cells, s.T * s.B * s.D * H, T(0));
  for (int64_t b = 0; b < s.B; ++b)
    for (int64_t d = 0; d < s.D; ++d) {
      const int64_t length = s.length(c.ids(2), b);
      const T* r = c.in(1) + d * H * 4 * H;
      for (int64_t step = 0; step < length; ++step) {
        const int64_t t = d == 0 ? step : length - 1 - step, at = s.row(t, b, d);
        const int64_t before = s.before(t, d);
        for (int64_t j = 0; j < H; ++j) {
          T z[4];
          for (int64_t g = 0; g < 4; ++g) {
            z[g] = c.in(0)[at * 4 * H + g * H + j];
            for (int64_t k = 0; k < H && before >= 0; ++k)
              z[g] += y[s.row(before, b, d) * H + k] * r[k * 4 * H + g * H + j];
          }
          const T i = sigmoid(z[0]), f = sigmoid(z[1]), g = std::tanh(z[2]), o = sigmoid(z[3]);
          const T cell = i * g + (before >= 0 ? f * cells[s.row(before, b, d) * H + j] : T(0));
          T* to = gates + at * 4 * H + j;
          to[0] = i, to[H] = f, to[2 * H] = g, to[3 * H] = o;
          cells[at * H + j] = cell;
          y[at * H + j] = o * std::tanh(cell);
        }
      }
      const int64_t last = s.last(length, d);
      for (int64_t j = 0; j < H; ++j) {
        const int64_t to = (b * s.D + d) * H + j, from = last < 0 ? 0 : s.row(last, b, d) * H + j;
        c.out(1)[to] = last < 0 ? T(0) : y[from];
        c.out(2)[to] = last < 0 ? T(0) : cells[from];
      }
    }
}

void vjp(GradContext& g) {
  MR_CHECK(!g.grad(3).valid() && !g.grad(4).valid(), "what lstm keeps has no gradient");
  auto cotangent = [&](size_t o) {
    return g.grad(o).valid() ? g.grad(o) : g.b.constant(0, g.b.shape(g.out(o)));
  };
  const auto d = g.b.op_all("lstm_grad", {g.in(1), g.in(2), g.out(0), g.out(3), g.out(4),
                                          cotangent(0), cotangent(1), cotangent(2)});
  for (size_t i = 0; i < 2; ++i)
    if (g.wants(i)) g.set(i, d[i]);
}

Cost cost_of(const OpSite& site, const Shape& x, const Shape& r, double products) {
  const Sizes s(x, r);
  const auto units = static_cast<double>(s.T * s.B * s.D * s.H);
  return {products * 8 * units * static_cast<double>(s.H) + 30 * units, traffic(site)};
}
Cost cost(const OpSite& site) { return cost_of(site, site.in[0].shape, site.in[1].shape, 1); }

std::vector<OpCase> case_list(const std::vector<std::array<int64_t, 4>>& sizes, bool gradient) {
  std::vector<OpCase> list;
  for (const auto& [T, B, D, H] : sizes)
    list.push_back(
        {{normal_input({T, B, D, 4 * H}), normal_input({D, H, 4 * H}), index_input({B}, T + 1)},
         {},
         gradient});
  return list;
}

std::vector<OpCase> cases() {
  std::vector<OpCase> list = case_list({{1, 1, 1, 1},
                                        {4, 2, 1, 3},
                                        {3, 3, 2, 2},
                                        {6, 1, 2, 5},
                                        {2, 5, 2, 1},
                                        {0, 2, 2, 3},
                                        {3, 0, 1, 2}},
                                       true);
  for (OpCase& c : case_list({{7, 14, 2, 9}, {5, 3, 1, 33}, {4, 2, 2, 64}, {6, 17, 2, 32}}, false))
    list.push_back(std::move(c));
  return list;
}

std::vector<OpCase> benchmarks() { return case_list({{768, 1, 2, 256}, {768, 16, 2, 256}}, false); }

// r [D,H,4H], lengths i32 [B], y, gates, cells; cotangents of y, last h, last c
// -> dx [T,B,D,4H], dr [D,H,4H]
std::string grad_infer(const Attrs&, std::span<const TensorType> in, std::vector<TensorType>& out) {
  if (std::string fault = expect_inputs(in, 8); !fault.empty()) return fault;
  if (std::string fault = check_weights(in[3], in[0], in[1]); !fault.empty()) return fault;
  const Sizes s(in[3].shape, in[0].shape);
  const TensorType state{{s.T, s.B, s.D, s.H}, DType::f32}, last{{s.B, s.D, s.H}, DType::f32};
  out = {in[3], in[0]};
  return first_fault({expect_type("y", in[2], state), expect_type("cells", in[4], state),
                      expect_type("dy", in[5], state),
                      expect_type("gradient of last h", in[6], last),
                      expect_type("gradient of last c", in[7], last)});
}

template <typename T>
void grad_reference(const RefCall<T>& c) {
  const Sizes s(c.in_shape(3), c.in_shape(0));
  const int64_t H = s.H;
  const T *const y = c.in(2), *const gates = c.in(3), *const cells = c.in(4), *const dy = c.in(5);
  T *const dx = c.out(0), *const dr = c.out(1);
  std::fill_n(dx, s.T * s.B * s.D * 4 * H, T(0));
  std::fill_n(dr, s.D * H * 4 * H, T(0));
  std::vector<T> dh(static_cast<size_t>(H)), dc(static_cast<size_t>(H));
  for (int64_t b = 0; b < s.B; ++b)
    for (int64_t d = 0; d < s.D; ++d) {
      const int64_t length = s.length(c.ids(1), b);
      const T* r = c.in(0) + d * H * 4 * H;
      for (int64_t j = 0; j < H; ++j) {
        dh[static_cast<size_t>(j)] = c.in(6)[(b * s.D + d) * H + j];
        dc[static_cast<size_t>(j)] = c.in(7)[(b * s.D + d) * H + j];
      }
      for (int64_t step = 0; step < length; ++step) {
        const int64_t t = d == 0 ? length - 1 - step : step, at = s.row(t, b, d);
        const int64_t before = s.before(t, d);
        T* const dz = dx + at * 4 * H;
        for (int64_t j = 0; j < H; ++j) {
          const T *gate = gates + at * 4 * H + j, i = gate[0], f = gate[H], g = gate[2 * H],
                  o = gate[3 * H];
          const T from_y = dh[static_cast<size_t>(j)] + dy[at * H + j];
          const T squashed = std::tanh(cells[at * H + j]);
          const T cell = dc[static_cast<size_t>(j)] + from_y * o * (T(1) - squashed * squashed);
          const T earlier = before >= 0 ? cells[s.row(before, b, d) * H + j] : T(0);
          dz[j] = cell * g * i * (T(1) - i);
          dz[H + j] = cell * earlier * f * (T(1) - f);
          dz[2 * H + j] = cell * i * (T(1) - g * g);
          dz[3 * H + j] = from_y * squashed * o * (T(1) - o);
          dc[static_cast<size_t>(j)] = cell * f;
        }
        for (int64_t k = 0; k < H; ++k) {
          T sum = 0;
          for (int64_t n = 0; n < 4 * H; ++n) {
            sum += dz[n] * r[k * 4 * H + n];
            if (before >= 0) dr[(d * H + k) * 4 * H + n] += y[s.row(before, b, d) * H + k] * dz[n];
          }
          dh[static_cast<size_t>(k)] = sum;
        }
      }
    }
}

Cost grad_cost(const OpSite& site) { return cost_of(site, site.in[3].shape, site.in[0].shape, 2); }

std::vector<OpCase> grad_case_list(const std::vector<std::array<int64_t, 4>>& sizes) {
  std::vector<OpCase> list;
  for (const auto& [T, B, D, H] : sizes)
    list.push_back(
        {{normal_input({D, H, 4 * H}), index_input({B}, T + 1), normal_input({T, B, D, H}),
          constant_input({T, B, D, 4 * H}, 0.4), normal_input({T, B, D, H}),
          normal_input({T, B, D, H}), normal_input({B, D, H}), normal_input({B, D, H})},
         {},
         false});
  return list;
}
// Gates of random size would let gradients grow without bound: here they are all 0.4. Different
// ones are in the gradient check of lstm.
std::vector<OpCase> grad_cases() {
  return grad_case_list({{1, 1, 1, 1},
                         {4, 2, 1, 3},
                         {3, 3, 2, 2},
                         {6, 1, 2, 5},
                         {0, 2, 2, 3},
                         {3, 0, 1, 2},
                         {7, 14, 2, 9},
                         {5, 3, 1, 33},
                         {4, 2, 2, 64},
                         {6, 17, 2, 32}});
}
std::vector<OpCase> grad_benchmarks() {
  return grad_case_list({{768, 1, 2, 256}, {768, 16, 2, 256}});
}

}  // namespace

extern const OpCard lstm_card;
const OpCard lstm_card = {
    .name = "lstm",
    .summary =
        "long short-term memory over whole sequences of projected inputs, one direction or both at "
        "once, each row to its own length. Hochreiter & Schmidhuber 1997",
    .infer = infer,
    .vjp = vjp,
    MR_REFERENCE,
    .cost = cost,
    .cases = cases,
    .benchmarks = benchmarks,
    .full_out = 0b10110,
    .gradients_of = 0b111,
};

extern const OpCard lstm_grad_card;
const OpCard lstm_grad_card = {
    .name = "lstm_grad",
    .summary = "gradients of lstm for its projected inputs and recurrent weights",
    .infer = grad_infer,
    .no_gradient = "first derivatives only",
    .reference_f32 = grad_reference<float>,
    .reference_f64 = grad_reference<double>,
    .cost = grad_cost,
    .cases = grad_cases,
    .benchmarks = grad_benchmarks,
    .full_in = 0b11010000,
    .full_out = 0b10,
    .multiplies = true,
};

}  // namespace millrace
