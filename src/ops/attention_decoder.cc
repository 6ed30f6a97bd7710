// attention_decoder and its gradient: the LSTM decoder of a pointer-generator (See et al., "Get to
// the point", arXiv 1704.04368) over a whole target that is known, with additive attention
// (Bahdanau et al., arXiv 1409.0473), the context as an input of the next step (Luong et al., arXiv
// 1508.04025) and, if wanted, coverage. From context = 0 and coverage = 0 (resumed=1: from those
// given), for every step:
//   z = x + [h; context] w;  i, f, o = sigmoid(z), g = tanh(z);  c = f c + i g;  h = o tanh(c)
//   q = h wq;  e_s = sum_a v_a tanh(keys_sa + q_a + coverage_s wc_a);  attention = softmax(e)
//   context = sum_s attention_s memory_s;  overlap = sum_s min(attention_s, coverage_s);
//   coverage += attention
// beams=K: sequences stand in groups of K, each of which has one memory, keys and length.
#include "ops/attention_decoder.h"

#include <cmath>

#include "graph/scalar_functions.h"
#include "ops/card.h"
#include "ops/type_rules.h"

namespace millrace {
namespace {

std::string check_inputs(const Attrs& attrs, std::span<const TensorType> in, size_t wc) {
  const Shape &x = in[kDecoderX].shape, &memory = in[kDecoderMemory].shape,
              &wq = in[kDecoderWq].shape;
  if (x.rank() != 3 || memory.rank() != 3 || wq.rank() != 2)
    return fmt::format("x {}, memory {}, wq {}", x.str(), memory.str(), wq.str());
  const int64_t T = x[0], B = x[1], S = memory[1], M = memory[2], H = wq[0], A = wq[1];
  const int64_t beams = attrs.integer("beams", 1);
  if (beams < 1 || B % beams != 0) return fmt::format("{} sequences in groups of {}", B, beams);
  const int64_t E = B / beams;
  if (H == 0 || M == 0 || A == 0) return "no hidden units, no memory or no attention units";
  auto f32 = [](Shape shape) { return TensorType{shape, DType::f32}; };
  return first_fault({expect_type("x", in[kDecoderX], f32({T, B, 4 * H})),
                      expect_type("w", in[kDecoderW], f32({H + M, 4 * H})),
                      expect_type("memory", in[kDecoderMemory], f32({E, S, M})),
                      expect_type("keys", in[kDecoderKeys], f32({E, S, A})),
                      expect_type("wq", in[kDecoderWq], f32({H, A})),
                      expect_type("v", in[kDecoderV], f32({A})),
                      expect_type("lengths", in[kDecoderLengths], {{E}, DType::i32}),
                      expect_type("h0", in[kDecoderH0], f32({B, H})),
                      expect_type("c0", in[kDecoderC0], f32({B, H})),
                      attrs.integer("coverage") ? expect_type("wc", in[wc], f32({A})) : ""});
}

std::string infer(const Attrs& attrs, std::span<const TensorType> in,
                  std::vector<TensorType>& out) {
  if (in.size() < kDecoderWc) return expect_inputs(in, kDecoderWc);
  const DecoderSite s({attrs, in, {}});
  if (auto fault = expect_inputs(in, s.inputs()); !fault.empty()) return fault;
  if (auto fault = check_inputs(attrs, in, kDecoderWc); !fault.empty()) return fault;
  for (const Shape& shape : {Shape{s.T, s.B, s.H}, Shape{s.T, s.B, s.M}, Shape{s.T, s.B, s.S},
                             Shape{s.T, s.B, 4 * s.H}, Shape{s.T, s.B, s.H}})
    out.push_back({shape, DType::f32});
  if (s.coverage) out.push_back({{s.T, s.B}, DType::f32});
  if (!s.resumed) return "";
  return first_fault(
      {expect_type("context0", in[s.context0()], {{s.B, s.M}, DType::f32}),
       s.coverage ? expect_type("covered0", in[s.covered0()], {{s.B, s.S}, DType::f32}) : ""});
}

template <typename T>
void reference(const RefCall<T>& c) {
  const DecoderSite s(c.site);
  const T *w = c.in(kDecoderW), *v = c.in(kDecoderV), *wc = s.coverage ? c.in(kDecoderWc) : nullptr;
  std::vector<T> z(static_cast<size_t>(4 * s.H)), q(static_cast<size_t>(s.A)),
      coverage(static_cast<size_t>(s.S));
  for (int64_t b = 0; b < s.B; ++b) {
    const int64_t group = b / s.beams;
    const T *memory = c.in(kDecoderMemory) + group * s.S * s.M,
            *keys = c.in(kDecoderKeys) + group * s.S * s.A;
    const int64_t places = s.places(c.ids(kDecoderLengths)[group]);
    std::fill(coverage.begin(), coverage.end(), T(0));
    if (s.resumed && s.coverage) std::copy_n(c.in(s.covered0()) + b * s.S, s.S, coverage.begin());
    for (int64_t t = 0; t < s.T; ++t) {
      const int64_t at = t * s.B + b, before = at - s.B;
      const T *h_before = t ? c.out(0) + before * s.H : c.in(kDecoderH0) + b * s.H,
              *c_before = t ? c.out(4) + before * s.H : c.in(kDecoderC0) + b * s.H,
              *context_before = t           ? c.out(1) + before * s.M
                                : s.resumed ? c.in(s.context0()) + b * s.M
                                            : nullptr;
      T *h = c.out(0) + at * s.H, *context = c.out(1) + at * s.M, *a = c.out(2) + at * s.S,
        *gates = c.out(3) + at * 4 * s.H, *cell = c.out(4) + at * s.H;
      for (int64_t n = 0; n < 4 * s.H; ++n) {
        T sum = c.in(kDecoderX)[at * 4 * s.H + n];
        for (int64_t k = 0; k < s.H; ++k) sum += h_before[k] * w[k * 4 * s.H + n];
        for (int64_t k = 0; context_before && k < s.M; ++k)
          sum += context_before[k] * w[(s.H + k) * 4 * s.H + n];
        gates[n] = n / s.H == 2 ? std::tanh(sum) : sigmoid(sum);
      }
      for (int64_t j = 0; j < s.H; ++j) {
        cell[j] = gates[s.H + j] * c_before[j] + gates[j] * gates[2 * s.H + j];
        h[j] = gates[3 * s.H + j] * std::tanh(cell[j]);
      }
      for (int64_t n = 0; n < s.A; ++n) {
        T sum = 0;
        for (int64_t k = 0; k < s.H; ++k) sum += h[k] * c.in(kDecoderWq)[k * s.A + n];
        q[static_cast<size_t>(n)] = sum;
      }
      T top = -std::numeric_limits<T>::infinity(), total = 0, overlap = 0;
      std::fill_n(a, s.S, T(0));
      std::fill_n(context, s.M, T(0));
      for (int64_t p = 0; p < places; ++p) {
        for (int64_t n = 0; n < s.A; ++n)
          a[p] += v[n] * std::tanh(keys[p * s.A + n] + q[static_cast<size_t>(n)] +
                                   (wc ? coverage[static_cast<size_t>(p)] * wc[n] : T(0)));
        top = std::max(top, a[p]);
      }
      for (int64_t p = 0; p < places; ++p) total += a[p] = std::exp(a[p] - top);
      for (int64_t p = 0; p < places; ++p) {
        a[p] /= total;
        for (int64_t m = 0; m < s.M; ++m) context[m] += a[p] * memory[p * s.M + m];
        T& covered = coverage[static_cast<size_t>(p)];
        overlap += std::min(a[p], covered);
        covered += a[p];
      }
      if (s.coverage) c.out(5)[at] = overlap;
    }
  }
}

void vjp(GradContext& g) {
  MR_CHECK(!g.grad(3).valid() && !g.grad(4).valid(), "the kept gates and cells have no gradient");
  MR_CHECK(g.node.attrs.integer("resumed", 0) == 0 && g.node.attrs.integer("beams", 1) == 1,
           "a decoder that searches has no gradient");
  const bool coverage = g.node.attrs.integer("coverage") != 0;
  std::vector<Value> in;
  for (size_t i = 0; i < kDecoderWc; ++i) in.push_back(g.in(i));
  for (size_t o = 0; o < 5; ++o) in.push_back(g.out(o));
  if (coverage) in.push_back(g.in(kDecoderWc));
  int64_t given = 0;
  const size_t from[kCotangents] = {0, 1, 2, 5};
  for (int i = 0; i < (coverage ? kCotangents : kGivenOverlap); ++i) {
    if (!g.grad(from[i]).valid()) continue;
    in.push_back(g.grad(from[i]));
    given |= int64_t{1} << i;
  }
  const auto d =
      g.b.op_all("attention_decoder_grad", in, {{"coverage", coverage}, {"given", given}});
  size_t next = 0;
  for (size_t i = 0; i < g.node.in.size(); ++i) {
    if (i == kDecoderLengths) continue;
    if (g.wants(i)) g.set(i, d[next]);
    ++next;
  }
}

// Of a step of one sequence: the recurrent product, the query, and for each place tanh (as many as
// its kernels take) and the sum of the memory.
double step_flops(const DecoderSite& s) {
  const auto S = static_cast<double>(s.S), H = static_cast<double>(s.H),
             M = static_cast<double>(s.M), A = static_cast<double>(s.A);
  return 8 * H * (H + M) + 2 * H * A + S * (2 * M + 20 * A);
}

Cost cost(const OpSite& site) {
  const DecoderSite s(site);
  return {static_cast<double>(s.T * s.B) * step_flops(s), traffic(site)};
}

struct CaseSizes {
  int64_t T, B, S, H, M, A;
};

OpCase forward_case(const CaseSizes& s, bool coverage, bool gradient) {
  OpCase c{{normal_input({s.T, s.B, 4 * s.H}), normal_input({s.H + s.M, 4 * s.H}),
            normal_input({s.B, s.S, s.M}), normal_input({s.B, s.S, s.A}), normal_input({s.H, s.A}),
            normal_input({s.A}), index_input({s.B}, s.S + 1, true), normal_input({s.B, s.H}),
            normal_input({s.B, s.H})},
           {{"coverage", coverage}},
           gradient};
  if (coverage) c.in.push_back(normal_input({s.A}));
  return c;
}

// B sequences, so many to a memory, which go on from where they are.
OpCase search_case(const CaseSizes& s, bool coverage, int64_t beams) {
  OpCase c = forward_case(s, coverage, false);
  const int64_t E = s.B / beams;
  c.attrs = {{"coverage", coverage}, {"resumed", 1}, {"beams", beams}};
  c.in[kDecoderMemory] = normal_input({E, s.S, s.M});
  c.in[kDecoderKeys] = normal_input({E, s.S, s.A});
  c.in[kDecoderLengths] = index_input({E}, s.S + 1, true);
  c.in.push_back(normal_input({s.B, s.M}));
  if (coverage) c.in.push_back(positive_input({s.B, s.S}));
  return c;
}

std::vector<OpCase> cases() {
  std::vector<OpCase> list;
  for (bool coverage : {false, true}) {
    for (const CaseSizes& s : {CaseSizes{1, 1, 1, 1, 1, 1},
                               {3, 2, 5, 3, 4, 2},
                               {4, 3, 9, 5, 3, 7},
                               {5, 1, 6, 2, 5, 3},
                               {2, 2, 0, 2, 3, 2},
                               {0, 2, 3, 2, 2, 2},
                               {2, 0, 3, 2, 2, 2}})
      list.push_back(forward_case(s, coverage, true));
    for (const CaseSizes& s : {CaseSizes{4, 5, 70, 32, 64, 48}, {3, 2, 150, 24, 40, 17}})
      list.push_back(forward_case(s, coverage, false));
  }
  list.push_back(forward_case({2, 18, 40, 8, 16, 8}, false, false));
  for (bool coverage : {false, true}) {
    list.push_back(search_case({1, 6, 9, 5, 3, 7}, coverage, 3));
    list.push_back(search_case({2, 4, 70, 32, 64, 48}, coverage, 2));
    list.push_back(search_case({1, 18, 21, 8, 16, 8}, coverage, 1));
  }
  return list;
}

std::vector<OpCase> benchmarks() {
  std::vector<OpCase> list;
  for (int64_t B : {1, 16}) list.push_back(forward_case({32, B, 768, 256, 512, 512}, true, false));
  return list;
}

std::string grad_infer(const Attrs& attrs, std::span<const TensorType> in,
                       std::vector<TensorType>& out) {
  const DecoderRest rest(attrs);
  const bool coverage = attrs.integer("coverage") != 0;
  if (auto fault = expect_inputs(in, rest.inputs); !fault.empty()) return fault;
  if (auto fault = check_inputs(attrs, in, rest.wc); !fault.empty()) return fault;
  const DecoderSite s({attrs, in, {}});
  auto f32 = [](Shape shape) { return TensorType{shape, DType::f32}; };
  const TensorType h = f32({s.T, s.B, s.H}), context = f32({s.T, s.B, s.M}),
                   attention = f32({s.T, s.B, s.S}), overlap = f32({s.T, s.B});
  auto cotangent = [&](DecoderCotangent which, std::string_view name, const TensorType& type) {
    const size_t at = rest.cotangent[which];
    return at ? expect_type(name, in[at], type) : "";
  };
  if (rest.cotangent[kGivenOverlap] && !coverage) return "an overlap without coverage";
  for (size_t i = 0; i < kDecoderWc; ++i)
    if (i != kDecoderLengths) out.push_back(in[i]);
  if (coverage) out.push_back(in[rest.wc]);
  return first_fault({expect_type("h", in[kDecoderH], h),
                      expect_type("context", in[kDecoderContext], context),
                      expect_type("attention", in[kDecoderAttention], attention),
                      expect_type("gates", in[kDecoderGates], in[kDecoderX]),
                      expect_type("cells", in[kDecoderCells], h), cotangent(kGivenH, "dh", h),
                      cotangent(kGivenContext, "dcontext", context),
                      cotangent(kGivenAttention, "dattention", attention),
                      cotangent(kGivenOverlap, "doverlap", overlap)});
}

template <typename T>
void grad_reference(const RefCall<T>& c) {
  const DecoderSite s(c.site);
  const DecoderRest rest(c.attrs());
  auto given = [&](DecoderCotangent which) {
    return rest.cotangent[which] ? c.in(rest.cotangent[which]) : nullptr;
  };
  const T *dh_given = given(kGivenH), *dcontext_given = given(kGivenContext),
          *da_given = given(kGivenAttention), *doverlap = given(kGivenOverlap);
  const T *w = c.in(kDecoderW), *wq = c.in(kDecoderWq), *v = c.in(kDecoderV),
          *wc = s.coverage ? c.in(rest.wc) : nullptr;
  T *dx = c.out(0), *dw = c.out(1), *dwq = c.out(4), *dv = c.out(5),
    *dwc = s.coverage ? c.out(8) : nullptr;
  for (size_t o = 1; o < c.site.out.size(); ++o)
    std::fill_n(c.out(o), c.out_shape(o).numel(), T(0));

  auto zeros = [](int64_t n) { return std::vector<T>(static_cast<size_t>(n)); };
  for (int64_t b = 0; b < s.B; ++b) {
    const T *memory = c.in(kDecoderMemory) + b * s.S * s.M,
            *keys = c.in(kDecoderKeys) + b * s.S * s.A;
    T *dmemory = c.out(2) + b * s.S * s.M, *dkeys = c.out(3) + b * s.S * s.A;
    const int64_t places = s.places(c.ids(kDecoderLengths)[b]);
    std::vector<T> covered = zeros(s.T * s.S);  // before each step
    for (int64_t t = 1; t < s.T; ++t)
      for (int64_t p = 0; p < s.S; ++p)
        covered[static_cast<size_t>(t * s.S + p)] =
            covered[static_cast<size_t>((t - 1) * s.S + p)] +
            c.in(kDecoderAttention)[((t - 1) * s.B + b) * s.S + p];
    // What the steps behind this one ask of h, c, the context and the coverage.
    std::vector<T> dh = zeros(s.H), dc = zeros(s.H), dcontext = zeros(s.M), dcovered = zeros(s.S);
    std::vector<T> da = zeros(s.S), q = zeros(s.A), dq = zeros(s.A);
    for (int64_t t = s.T - 1; t >= 0; --t) {
      const int64_t at = t * s.B + b, before = at - s.B;
      const T *h = c.in(kDecoderH) + at * s.H, *a = c.in(kDecoderAttention) + at * s.S,
              *gates = c.in(kDecoderGates) + at * 4 * s.H, *cell = c.in(kDecoderCells) + at * s.H;
      const T *h_before = t ? c.in(kDecoderH) + before * s.H : c.in(kDecoderH0) + b * s.H,
              *c_before = t ? c.in(kDecoderCells) + before * s.H : c.in(kDecoderC0) + b * s.H,
              *context_before = t ? c.in(kDecoderContext) + before * s.M : nullptr;
      const T* cover = covered.data() + t * s.S;
      for (int64_t m = 0; dcontext_given && m < s.M; ++m)
        dcontext[static_cast<size_t>(m)] += dcontext_given[at * s.M + m];
      for (int64_t j = 0; dh_given && j < s.H; ++j)
        dh[static_cast<size_t>(j)] += dh_given[at * s.H + j];

      for (int64_t p = 0; p < s.S; ++p)
        for (int64_t m = 0; m < s.M; ++m)
          dmemory[p * s.M + m] += a[p] * dcontext[static_cast<size_t>(m)];
      T dot = 0;
      for (int64_t p = 0; p < places; ++p) {
        T sum = dcovered[static_cast<size_t>(p)] + (da_given ? da_given[at * s.S + p] : T(0));
        if (doverlap && a[p] < cover[p]) sum += doverlap[at];
        for (int64_t m = 0; m < s.M; ++m)
          sum += dcontext[static_cast<size_t>(m)] * memory[p * s.M + m];
        da[static_cast<size_t>(p)] = sum;
        dot += a[p] * sum;
      }
      for (int64_t n = 0; n < s.A; ++n) {
        q[static_cast<size_t>(n)] = dq[static_cast<size_t>(n)] = 0;
        for (int64_t j = 0; j < s.H; ++j) q[static_cast<size_t>(n)] += h[j] * wq[j * s.A + n];
      }
      for (int64_t p = 0; p < places; ++p) {
        const T de = a[p] * (da[static_cast<size_t>(p)] - dot);
        for (int64_t n = 0; n < s.A; ++n) {
          const T y = std::tanh(keys[p * s.A + n] + q[static_cast<size_t>(n)] +
                                (wc ? cover[p] * wc[n] : T(0)));
          const T du = de * v[n] * (1 - y * y);
          dv[n] += de * y;
          dkeys[p * s.A + n] += du;
          dq[static_cast<size_t>(n)] += du;
          if (!wc) continue;
          dwc[n] += du * cover[p];
          dcovered[static_cast<size_t>(p)] += du * wc[n];
        }
        if (doverlap && !(a[p] < cover[p])) dcovered[static_cast<size_t>(p)] += doverlap[at];
      }
      for (int64_t j = 0; j < s.H; ++j)
        for (int64_t n = 0; n < s.A; ++n) {
          dh[static_cast<size_t>(j)] += dq[static_cast<size_t>(n)] * wq[j * s.A + n];
          dwq[j * s.A + n] += h[j] * dq[static_cast<size_t>(n)];
        }

      T* dz = dx + at * 4 * s.H;
      for (int64_t j = 0; j < s.H; ++j) {
        const T i = gates[j], f = gates[s.H + j], g = gates[2 * s.H + j], o = gates[3 * s.H + j];
        const T y = std::tanh(cell[j]), dhj = dh[static_cast<size_t>(j)];
        const T dcj = dc[static_cast<size_t>(j)] + dhj * o * (1 - y * y);
        dz[j] = dcj * g * i * (1 - i);
        dz[s.H + j] = dcj * c_before[j] * f * (1 - f);
        dz[2 * s.H + j] = dcj * i * (1 - g * g);
        dz[3 * s.H + j] = dhj * y * o * (1 - o);
        dc[static_cast<size_t>(j)] = dcj * f;
      }
      auto back = [&](int64_t row, T value) {
        T sum = 0;
        for (int64_t n = 0; n < 4 * s.H; ++n) {
          sum += dz[n] * w[row * 4 * s.H + n];
          dw[row * 4 * s.H + n] += value * dz[n];
        }
        return sum;
      };
      for (int64_t j = 0; j < s.H; ++j) dh[static_cast<size_t>(j)] = back(j, h_before[j]);
      for (int64_t m = 0; m < s.M; ++m)
        dcontext[static_cast<size_t>(m)] = back(s.H + m, t ? context_before[m] : T(0));
    }
    std::copy(dh.begin(), dh.end(), c.out(6) + b * s.H);
    std::copy(dc.begin(), dc.end(), c.out(7) + b * s.H);
  }
}

Cost grad_cost(const OpSite& site) {
  const DecoderSite s(site);
  return {2.5 * static_cast<double>(s.T * s.B) * step_flops(s), traffic(site)};
}

// Numbers that do not belong together: what is kept of the forward pass is no softmax and no gate.
// Where there are many of them constants keep the gradients inside what 16 bits hold.
OpCase grad_case(const CaseSizes& s, bool coverage, int64_t given, bool tame) {
  OpCase c = forward_case(s, false, false);
  c.attrs = {{"coverage", coverage}, {"given", given}};
  const Shape attention = {s.T, s.B, s.S}, gates = {s.T, s.B, 4 * s.H};
  c.in.push_back(normal_input({s.T, s.B, s.H}));
  c.in.push_back(normal_input({s.T, s.B, s.M}));
  c.in.push_back(tame ? constant_input(attention, 0.01) : positive_input(attention));
  c.in.push_back(tame ? constant_input(gates, 0.5) : normal_input(gates));
  c.in.push_back(normal_input({s.T, s.B, s.H}));
  if (coverage) c.in.push_back(normal_input({s.A}));
  const Shape cotangents[] = {{s.T, s.B, s.H}, {s.T, s.B, s.M}, attention, {s.T, s.B}};
  for (int i = 0; i < kCotangents; ++i)
    if (given >> i & 1) c.in.push_back(normal_input(cotangents[i]));
  return c;
}

std::vector<OpCase> grad_cases() {
  std::vector<OpCase> list;
  for (bool coverage : {false, true}) {
    const int64_t all = coverage ? 0b1111 : 0b111;
    list.push_back(grad_case({1, 1, 1, 1, 1, 1}, coverage, all, false));
    list.push_back(grad_case({2, 2, 5, 3, 4, 2}, coverage, all, false));
    list.push_back(grad_case({5, 3, 9, 5, 3, 7}, coverage, all, true));
    list.push_back(grad_case({2, 2, 0, 2, 3, 2}, coverage, all, false));
    list.push_back(grad_case({0, 2, 3, 2, 2, 2}, coverage, all, false));
    list.push_back(grad_case({2, 0, 3, 2, 2, 2}, coverage, all, false));
    list.push_back(grad_case({3, 5, 70, 32, 64, 48}, coverage, all, true));
    list.push_back(grad_case({3, 2, 150, 24, 40, 17}, coverage, all, true));
    for (int64_t given = 0; given < all; ++given)
      list.push_back(grad_case({2, 1, 4, 3, 2, 3}, coverage, given, false));
  }
  list.push_back(grad_case({2, 18, 40, 8, 16, 8}, false, 0b11, true));
  return list;
}

std::vector<OpCase> grad_benchmarks() {
  std::vector<OpCase> list;
  for (int64_t B : {1, 16})
    list.push_back(grad_case({32, B, 768, 256, 512, 512}, true, 0b1111, true));
  return list;
}

constexpr uint32_t kFullParameters = 1u << kDecoderV | 1u << kDecoderH0 | 1u << kDecoderC0;

}  // namespace

extern const OpCard attention_decoder_card;
const OpCard attention_decoder_card = {
    .name = "attention_decoder",
    .summary =
        "LSTM decoder over a known target with additive attention over a memory, the context fed "
        "to the next step and, with coverage=1, what was attended to before as a part of the "
        "scores; also what its gradient needs. resumed=1 goes on from a context and a coverage, "
        "and "
        "beams=K sequences read one memory: a step of a search. See et al., arXiv 1704.04368",
    .infer = infer,
    .vjp = vjp,
    MR_REFERENCE,
    .cost = cost,
    .cases = cases,
    .benchmarks = benchmarks,
    .full_in = kFullParameters | 0b111u << kDecoderWc,
    .full_out = 0b110100,
    .gradients_of = 0b100111,
};

extern const OpCard attention_decoder_grad_card;
const OpCard attention_decoder_grad_card = {
    .name = "attention_decoder_grad",
    .summary =
        "gradients of attention_decoder for all its inputs but the lengths; `given` says which "
        "cotangents (of h, context, attention, overlap) there are",
    .infer = grad_infer,
    .no_gradient = "first derivatives only",
    .reference_f32 = grad_reference<float>,
    .reference_f64 = grad_reference<double>,
    .cost = grad_cost,
    .cases = grad_cases,
    .benchmarks = grad_benchmarks,
    .full_in = kFullParameters | 1u << kDecoderAttention | 1u << kDecoderCells |
               ~((1u << kDecoderRest) - 1),
    .full_out = 0b111100000,
};

}  // namespace millrace
