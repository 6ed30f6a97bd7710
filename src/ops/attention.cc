// Scaled dot-product attention over packed heads, never storing a T x S matrix. Forward keeps the
// log-sum-exp of each row; backward recomputes the probabilities from it. Formulas: Vaswani et al.,
// arXiv 1706.03762; Dao et al., FlashAttention, arXiv 2205.14135 (section 3, appendix B); grouped
// key/value heads: Ainslie et al., arXiv 2305.13245.
//
// Heads come from one tensor, qkv [B,T,(H+2G)K], or, with `cross`, keys and values are those of
// another sequence: q [B,T,HK] and kv [B,S,2GK], keys first. The gradient has as many outputs.
// attention_grad reads kv behind dout, so that the other inputs have the same place in both.
//
// A row without any unmasked key has out = 0 and lse = 0; backward applies the mask again, so such
// a row passes no gradient.
#include "ops/attention.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "graph/scalar_functions.h"
#include "ops/card.h"

namespace millrace {

namespace {

using Mask = AttentionSite::Mask;

bool crosses(const Attrs& attrs) { return attrs.integer("cross", 0) != 0; }

}  // namespace

AttentionSite attention_site(const OpSite& site, size_t tensors) {
  const Attrs& attrs = site.attrs;
  AttentionSite s;
  s.B = site.in[0].shape[0];
  s.T = site.in[0].shape[1];
  s.cross = crosses(attrs);
  s.S = s.cross ? site.in[tensors].shape[1] : s.T;
  s.kv_input = s.cross ? tensors : 0;
  s.kv_output = s.cross ? 1 : 0;
  s.H = attrs.integer("heads");
  s.G = attrs.integer("kv_heads");
  s.K = attrs.integer("head_dim");
  s.causal = attrs.integer("causal", 0) != 0;
  s.scale = attrs.number("scale", 1.0 / std::sqrt(static_cast<double>(s.K)));
  const std::string mask = attrs.text("mask", "none");
  s.mask = mask == "lengths" ? Mask::lengths : mask == "segments" ? Mask::segments : Mask::none;
  s.sequence_length =
      std::min(attrs.number("sequence_length", static_cast<double>(s.T)), static_cast<double>(s.T));
  s.dropout = attrs.number("dropout", 0);
  s.stream = attrs.integer("stream", 0);
  s.mask_input = tensors + (s.cross ? 1 : 0);
  s.key_input = s.mask_input + (s.mask == Mask::none ? 0 : 1);
  return s;
}

namespace {

// What attention and its gradient check alike: attributes, packing, optional inputs.
std::string check(const Attrs& attrs, std::span<const TensorType> in, size_t tensors) {
  const bool cross = crosses(attrs);
  if (in.size() < tensors + (cross ? 1 : 0))
    return fmt::format("wants {}{}{}, got {} inputs", cross ? "q" : "qkv",
                       tensors > 1 ? ", out, lse, dout" : "", cross ? ", kv" : "", in.size());
  const int64_t H = attrs.integer("heads"), G = attrs.integer("kv_heads"),
                K = attrs.integer("head_dim");
  if (H < 1 || G < 1 || K < 1 || H % G != 0)
    return fmt::format("heads {} must be a multiple of kv_heads {}, head_dim {} positive", H, G, K);
  const std::string mask = attrs.text("mask", "none");
  if (mask != "none" && mask != "lengths" && mask != "segments")
    return fmt::format("mask `{}` is none of none, lengths, segments", mask);
  if (cross && attrs.integer("causal", 0) != 0)
    return "causal: queries and keys of cross attention are of different sequences";
  if (cross && mask == "segments") return "mask `segments`: cross attention takes lengths only";
  const double p = attrs.number("dropout", 0);
  if (!(p >= 0 && p < 1) || keep_threshold(p) > 65535)
    return fmt::format("dropout {} outside [0, 1)", p);
  if (!std::isfinite(attrs.number("scale", 1))) return "scale is not finite";
  if (!(attrs.number("sequence_length", 1) >= 1)) return "sequence_length below 1";

  const auto packs = [](const TensorType& type, int64_t width) {
    return type.dtype == DType::f32 && type.shape.rank() == 3 && type.shape[2] == width;
  };
  const int64_t width = (cross ? H : H + 2 * G) * K;
  if (!packs(in[0], width))
    return fmt::format("{} wants f32 [B,T,{}], got {}", cross ? "q" : "qkv", width, in[0].str());
  if (cross && (!packs(in[tensors], 2 * G * K) || in[tensors].shape[0] != in[0].shape[0]))
    return fmt::format("kv wants f32 [{},S,{}], got {}", in[0].shape[0], 2 * G * K,
                       in[tensors].str());
  const AttentionSite s = attention_site({attrs, in, {}}, tensors);
  const bool keyed = s.dropout > 0;
  if (std::string fault = expect_inputs(in, s.key_input + (keyed ? 1 : 0)); !fault.empty())
    return fault;
  if (s.mask != Mask::none) {
    const TensorType wanted{s.mask == Mask::lengths ? Shape{s.B} : Shape{s.B, s.T}, DType::i32};
    if (in[s.mask_input] != wanted)
      return fmt::format("mask wants {}, got {}", wanted.str(), in[s.mask_input].str());
  }
  if (keyed && in[s.key_input] != TensorType{{4}, DType::i32})
    return fmt::format("random key wants i32[4], got {}", in[s.key_input].str());
  return "";
}

std::string infer(const Attrs& attrs, std::span<const TensorType> in,
                  std::vector<TensorType>& out) {
  if (std::string fault = check(attrs, in, 1); !fault.empty()) return fault;
  const AttentionSite s = attention_site({attrs, in, {}}, 1);
  out = {{{s.B, s.T, s.H * s.K}, DType::f32}, {{s.B, s.H, s.T}, DType::f32}};
  return "";
}

std::string grad_infer(const Attrs& attrs, std::span<const TensorType> in,
                       std::vector<TensorType>& out) {
  if (std::string fault = check(attrs, in, 4); !fault.empty()) return fault;
  const AttentionSite s = attention_site({attrs, in, {}}, 4);
  const TensorType heads{{s.B, s.T, s.H * s.K}, DType::f32}, rows{{s.B, s.H, s.T}, DType::f32};
  if (in[1] != heads || in[2] != rows || in[3] != heads)
    return fmt::format("out, lse, dout want {}, {}, {}, got {}, {}, {}", heads.str(), rows.str(),
                       heads.str(), in[1].str(), in[2].str(), in[3].str());
  out = {in[0]};
  if (s.cross) out.push_back(in[s.kv_input]);
  return "";
}

void vjp(GradContext& g) {
  if (g.grad(1).valid()) return g.b.fail("attention: lse is for its own backward, not for a loss");
  const bool wants_kv = crosses(g.node.attrs) && g.wants(1);
  if (!g.wants(0) && !wants_kv) return;
  std::vector<Value> in{g.in(0), g.out(0), g.out(1), g.grad(0)};
  in.insert(in.end(), g.node.in.begin() + 1, g.node.in.end());
  const std::vector<Value> grads = g.b.op_all("attention_grad", std::move(in), g.node.attrs);
  if (g.wants(0)) g.set(0, grads[0]);
  if (wants_kv) g.set(1, grads[1]);
}

// The scores of one query row and the factors its probabilities get from dropout.
template <typename T>
class Row {
 public:
  Row(const AttentionSite& s, const RefCall<T>& c)
      : s_(s),
        q_(c.in(0)),
        kv_(c.in(s.kv_input)),
        mask_(s.mask == Mask::none ? nullptr : c.ids(s.mask_input)),
        key_(s.dropout == 0 ? nullptr : c.ids(s.key_input)),
        score(static_cast<size_t>(s.S)),
        keep(score) {}

  const T* q(int64_t b, int64_t h, int64_t t) const { return q_ + s_.q_at(b, h, t); }
  const T* k(int64_t b, int64_t h, int64_t j) const { return kv_ + s_.k_at(b, s_.kv_head(h), j); }
  const T* v(int64_t b, int64_t h, int64_t j) const { return kv_ + s_.v_at(b, s_.kv_head(h), j); }

  bool masked(int64_t b, int64_t i, int64_t j) const {
    if (s_.causal && j > i) return true;
    if (s_.mask == Mask::lengths) return j >= mask_[b];
    return s_.mask == Mask::segments && mask_[b * s_.T + i] != mask_[b * s_.T + j];
  }

  void fill(int64_t b, int64_t h, int64_t i) {
    const uint32_t threshold = keep_threshold(s_.dropout);
    for (int64_t j = 0; j < s_.S; ++j) {
      T dot = 0;
      for (int64_t d = 0; d < s_.K; ++d) dot += q(b, h, i)[d] * k(b, h, j)[d];
      const auto at = static_cast<size_t>(j);
      score[at] = masked(b, i, j) ? -std::numeric_limits<T>::infinity() : dot * T(s_.scale);
      const bool kept =
          s_.dropout == 0 || keep_element(key_, s_.stream, s_.pair_at(b, h, i, j), threshold);
      keep[at] = kept ? T(s_.dropout == 0 ? 1 : keep_scale(s_.dropout)) : T(0);
    }
  }

 private:
  const AttentionSite& s_;
  const T *q_, *kv_;
  const int32_t *mask_, *key_;

 public:
  std::vector<T> score, keep;  // [S]; score is -inf where masked
};

template <typename T>
void reference(const RefCall<T>& c) {
  const AttentionSite s = attention_site(c.site, 1);
  const T nothing = -std::numeric_limits<T>::infinity();
  Row<T> row(s, c);
  for (int64_t b = 0; b < s.B; ++b)
    for (int64_t h = 0; h < s.H; ++h)
      for (int64_t i = 0; i < s.T; ++i) {
        row.fill(b, h, i);
        const T top = s.S == 0 ? nothing : *std::max_element(row.score.begin(), row.score.end());
        const bool empty = top == nothing;
        T sum = 0;
        for (T score : row.score) sum += empty ? T(0) : std::exp(score - top);
        T* out = c.out(0) + s.out_at(b, h, i);
        std::fill_n(out, s.K, T(0));
        c.out(1)[s.row_at(b, h, i)] = empty ? T(0) : top + std::log(sum);
        for (int64_t j = 0; j < s.S && !empty; ++j) {
          const auto at = static_cast<size_t>(j);
          const T p = std::exp(row.score[at] - top) / sum * row.keep[at];
          for (int64_t d = 0; d < s.K; ++d) out[d] += p * row.v(b, h, j)[d];
        }
      }
}

template <typename T>
void grad_reference(const RefCall<T>& c) {
  const AttentionSite s = attention_site(c.site, 4);
  Row<T> row(s, c);
  for (size_t o = 0; o <= s.kv_output; ++o) std::fill_n(c.out(o), c.out_shape(o).numel(), T(0));
  for (int64_t b = 0; b < s.B; ++b)
    for (int64_t h = 0; h < s.H; ++h)
      for (int64_t i = 0; i < s.T; ++i) {
        row.fill(b, h, i);
        const T lse = c.in(2)[s.row_at(b, h, i)];
        const T* out = c.in(1) + s.out_at(b, h, i);
        const T* dout = c.in(3) + s.out_at(b, h, i);
        T delta = 0;
        for (int64_t d = 0; d < s.K; ++d) delta += dout[d] * out[d];
        T* dq = c.out(0) + s.q_at(b, h, i);
        for (int64_t j = 0; j < s.S; ++j) {
          const auto at = static_cast<size_t>(j);
          const T p = std::exp(row.score[at] - lse);
          T* dk = c.out(s.kv_output) + s.k_at(b, s.kv_head(h), j);
          T* dv = c.out(s.kv_output) + s.v_at(b, s.kv_head(h), j);
          T dp = 0;
          for (int64_t d = 0; d < s.K; ++d) {
            dp += dout[d] * row.v(b, h, j)[d];
            dv[d] += p * row.keep[at] * dout[d];
          }
          const T ds = p * (dp * row.keep[at] - delta) * T(s.scale);
          for (int64_t d = 0; d < s.K; ++d) {
            dq[d] += ds * row.k(b, h, j)[d];
            dk[d] += ds * row.q(b, h, i)[d];
          }
        }
      }
}

// Two products of 2 K flops for each score forward (QK', PV), five backward (QK' again, dO V',
// P'dO, dS'Q, dS K); the exponentials are not counted.
Cost cost(const OpSite& site) {
  const AttentionSite s = attention_site(site, 1);
  return {4.0 * static_cast<double>(s.K * s.H) * s.pairs(), traffic(site)};
}

Cost grad_cost(const OpSite& site) {
  const AttentionSite s = attention_site(site, 4);
  return {10.0 * static_cast<double>(s.K * s.H) * s.pairs(), traffic(site)};
}

struct CaseSizes {
  int64_t B, T, H, G, K;
  bool causal;
  const char* mask;
  double dropout;
  int64_t S = -1;  // keys of another sequence; -1: of the same
};

// Blocks of the kernels are 64 keys wide and vectors 8 or 16, so sizes stand around those.
constexpr CaseSizes kCases[] = {
    {1, 1, 1, 1, 1, false, "none", 0},     {1, 1, 2, 1, 8, true, "none", 0},
    {2, 5, 2, 2, 3, false, "none", 0},     {1, 7, 3, 3, 4, true, "none", 0},
    {2, 6, 4, 2, 5, true, "none", 0},      {2, 5, 4, 1, 4, false, "lengths", 0},
    {3, 7, 2, 2, 3, true, "lengths", 0},   {2, 8, 2, 1, 4, true, "segments", 0},
    {1, 9, 2, 2, 3, false, "segments", 0}, {1, 8, 2, 1, 4, false, "none", 0.25},
    {2, 5, 2, 2, 3, true, "lengths", 0.5}, {1, 11, 2, 1, 2, true, "segments", 0.125},
    {1, 5, 1, 1, 65, true, "none", 0},     {1, 67, 1, 1, 2, true, "segments", 0},
    {1, 131, 1, 1, 2, true, "none", 0},    {1, 11, 1, 1, 40, false, "none", 0},
};
constexpr CaseSizes kCrossCases[] = {
    {2, 5, 2, 2, 3, false, "none", 0, 3},       {1, 4, 4, 2, 5, false, "none", 0, 9},
    {2, 6, 2, 1, 4, false, "none", 0, 1},       {3, 1, 2, 2, 7, false, "lengths", 0, 6},
    {3, 7, 4, 2, 3, false, "lengths", 0, 4},    {1, 8, 2, 1, 4, false, "none", 0.25, 13},
    {2, 5, 2, 2, 3, false, "lengths", 0.5, 11}, {1, 3, 1, 1, 2, false, "lengths", 0, 131},
    {1, 70, 1, 1, 2, false, "none", 0, 5},      {1, 2, 1, 1, 65, false, "none", 0, 2},
    {1, 3, 2, 1, 8, false, "none", 0, 0},       {2, 0, 2, 1, 8, false, "lengths", 0, 3},
    {6, 4, 2, 1, 8, false, "lengths", 0, 2},
};
constexpr CaseSizes kScaledCases[] = {{2, 6, 2, 2, 4, true, "none", 0},
                                      {2, 5, 4, 2, 3, false, "lengths", 0, 7}};
// Too large for a gradient check by differences: kernels against the reference.
constexpr CaseSizes kLargeCases[] = {
    {1, 131, 2, 1, 16, true, "none", 0},      {1, 130, 2, 2, 17, false, "lengths", 0},
    {2, 70, 2, 1, 24, true, "segments", 0.1}, {1, 64, 2, 2, 64, true, "none", 0.1},
    {2, 65, 1, 1, 40, true, "lengths", 0},    {1, 40, 1, 1, 136, false, "none", 0},
    {1, 129, 1, 1, 20, false, "none", 0.3},   {1, 64, 1, 1, 64, false, "none", 0},
    {2, 128, 4, 2, 64, true, "none", 0},      {1, 192, 2, 2, 64, false, "none", 0},
};
constexpr CaseSizes kLargeCrossCases[] = {
    {1, 128, 2, 2, 64, false, "none", 0, 192},   {4, 128, 4, 2, 64, false, "lengths", 0, 192},
    {2, 130, 2, 1, 64, false, "none", 0, 65},    {2, 40, 2, 2, 64, false, "lengths", 0.1, 200},
    {1, 65, 2, 1, 17, false, "lengths", 0, 131}, {1, 64, 1, 1, 136, false, "none", 0, 40},
    {2, 70, 4, 2, 24, false, "none", 0.3, 129},  {2, 33, 2, 2, 48, false, "lengths", 0, 300},
};

OpCase make_case(const CaseSizes& s, bool grad) {
  const bool cross = s.S >= 0;
  OpCase c{{normal_input({s.B, s.T, (cross ? s.H : s.H + 2 * s.G) * s.K})},
           {{"heads", s.H},
            {"kv_heads", s.G},
            {"head_dim", s.K},
            {"causal", s.causal},
            {"mask", s.mask},
            {"dropout", s.dropout}}};
  if (grad)
    for (const Shape& shape : {Shape{s.B, s.T, s.H * s.K}, {s.B, s.H, s.T}, {s.B, s.T, s.H * s.K}})
      c.in.push_back(normal_input(shape));
  if (cross) {
    c.in.push_back(normal_input({s.B, s.S, 2 * s.G * s.K}));
    c.attrs.set({"cross", 1});
  }
  const std::string_view mask = s.mask;
  if (mask == "lengths") c.in.push_back(index_input({s.B}, (cross ? s.S : s.T) + 1));
  if (mask == "segments") c.in.push_back(index_input({s.B, s.T}, 3));
  if (s.dropout > 0) {
    c.in.push_back(index_input({4}, 1000));
    c.attrs.set({"stream", 7});
  }
  return c;
}

std::vector<OpCase> all_cases(bool grad) {
  std::vector<OpCase> list;
  const auto add = [&](std::span<const CaseSizes> sizes) {
    for (const CaseSizes& s : sizes) list.push_back(make_case(s, grad));
  };
  add(kCases);
  add(kCrossCases);
  for (const CaseSizes& s : kScaledCases) {
    list.push_back(make_case(s, grad));
    list.back().attrs.set({"scale", 0.3});
  }
  const size_t small = list.size();
  add(kLargeCases);
  add(kLargeCrossCases);
  for (size_t i = small; i < list.size(); ++i) list[i].gradient = false;
  return list;
}

std::vector<OpCase> cases() { return all_cases(false); }
std::vector<OpCase> grad_cases() { return all_cases(true); }

// A layer of an encoder-decoder: the target reads itself, then the source.
constexpr CaseSizes kBenchmarks[] = {{32, 128, 8, 8, 64, true, "none", 0},
                                     {32, 128, 8, 8, 64, false, "none", 0, 128}};

std::vector<OpCase> benchmarks_of(bool grad) {
  std::vector<OpCase> list;
  for (const CaseSizes& s : kBenchmarks) list.push_back(make_case(s, grad));
  return list;
}

std::vector<OpCase> benchmarks() { return benchmarks_of(false); }
std::vector<OpCase> grad_benchmarks() { return benchmarks_of(true); }

}  // namespace

extern const OpCard attention_card;
const OpCard attention_card = {
    .name = "attention",
    .summary =
        "softmax(scale q k' + mask) v over packed heads [B,T,(H+2G)K] with its row log-sum-exp; "
        "with cross, over q [B,T,HK] and kv [B,S,2GK] (arXiv 1706.03762, 2205.14135, 2305.13245)",
    .infer = infer,
    .vjp = vjp,
    MR_REFERENCE,
    .cost = cost,
    .cases = cases,
    .benchmarks = benchmarks,
    .full_out = 0b10,
};

extern const OpCard attention_grad_card;
const OpCard attention_grad_card = {
    .name = "attention_grad",
    .summary =
        "gradient of attention, probabilities recomputed from the log-sum-exp: "
        "dS = P (dP - rowsum(dO O)) (arXiv 2205.14135, appendix B)",
    .infer = grad_infer,
    .no_gradient = "first derivatives only",
    .reference_f32 = grad_reference<float>,
    .reference_f64 = grad_reference<double>,
    .cost = grad_cost,
    .cases = grad_cases,
    .benchmarks = grad_benchmarks,
    .full_in = 0b100,
};

}  // namespace millrace
