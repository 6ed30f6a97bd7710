// Attention of new tokens over a key/value cache, for generation: the keys and values of the new
// tokens go into the cache behind the `position` tokens that are there, which each sequence has a
// number of its own for, and each new token sees the cache up to itself. Formulas as in
// attention.cc: softmax(scale q k') v, arXiv 1706.03762, with grouped key/value heads, arXiv
// 2305.13245.
//
// Nothing is written outside the cache, whatever `position` holds: it counts as clamped to
// [0, C], and a new token without a place leaves nothing (the padding of a last chunk; its context
// is that of the full cache and nobody reads it). The host sees to it that real tokens fit.
//
// With history=1 sequences share their beginnings, as the hypotheses of a beam search do: the past
// of a sequence stands in the rows of whichever sequence it was written by, and nothing is copied
// when one goes on where another was. With beams=n the cache has n rows for each sequence, which
// fills the first: a prompt, before the hypotheses that go on from it are n sequences.
#include "ops/attention_cached.h"

#include <cmath>

#include "ops/card.h"

namespace millrace {

CachedAttentionSite cached_attention_site(const OpSite& site) {
  CachedAttentionSite s;
  s.B = site.in[0].shape[0];
  s.T = site.in[0].shape[1];
  s.H = site.attrs.integer("heads");
  s.G = site.attrs.integer("kv_heads");
  s.K = site.attrs.integer("head_dim");
  s.rows = site.in[1].shape[0];
  s.C = site.in[1].shape[1];
  s.beams = site.attrs.integer("beams", 1);
  s.scale = site.attrs.number("scale", 1.0 / std::sqrt(static_cast<double>(s.K)));
  s.history = site.attrs.integer("history", 0) != 0;
  return s;
}

namespace {

// qkv [B,T,(H+2G)K], cache_k and cache_v [B beams,C,GK], position i32 [B]; history i32 [B,C], by
// place the row that holds it -> context [B,T,HK], both caches
std::string infer(const Attrs& attrs, std::span<const TensorType> in,
                  std::vector<TensorType>& out) {
  const bool history = attrs.integer("history", 0) != 0;
  if (std::string fault = expect_inputs(in, history ? 5 : 4); !fault.empty()) return fault;
  const int64_t H = attrs.integer("heads"), G = attrs.integer("kv_heads"),
                K = attrs.integer("head_dim"), beams = attrs.integer("beams", 1);
  if (H < 1 || G < 1 || K < 1 || H % G != 0)
    return fmt::format("heads {} must be a multiple of kv_heads {}, head_dim {} positive", H, G, K);
  if (beams < 1) return fmt::format("beams {}", beams);
  if (!std::isfinite(attrs.number("scale", 1))) return "scale is not finite";
  const Shape& qkv = in[0].shape;
  if (in[0].dtype != DType::f32 || qkv.rank() != 3 || qkv[2] != (H + 2 * G) * K)
    return fmt::format("qkv wants f32 [B,T,{}], got {}", (H + 2 * G) * K, in[0].str());
  for (size_t i : {size_t{1}, size_t{2}})
    if (const Shape& cache = in[i].shape; in[i].dtype != DType::f32 || cache.rank() != 3 ||
                                          cache[0] != qkv[0] * beams || cache[1] < 1 ||
                                          cache[2] != G * K)
      return fmt::format("cache wants f32 [{},C,{}] with C > 0, got {}", qkv[0] * beams, G * K,
                         in[i].str());
  if (in[1] != in[2])
    return fmt::format("caches of {} and {} tokens", in[1].shape[1], in[2].shape[1]);
  if (in[3] != TensorType{{qkv[0]}, DType::i32})
    return fmt::format("position wants i32[{}], got {}", qkv[0], in[3].str());
  if (history && in[4] != TensorType{{qkv[0], in[1].shape[1]}, DType::i32})
    return fmt::format("history wants i32[{},{}], got {}", qkv[0], in[1].shape[1], in[4].str());
  out = {{{qkv[0], qkv[1], H * K}, DType::f32}, in[1], in[2]};
  return "";
}

template <typename T>
void reference(const RefCall<T>& c) {
  const CachedAttentionSite s = cached_attention_site(c.site);
  const int64_t width = s.G * s.K;
  auto position = [&](int64_t b) { return s.clamped(c.ids(3)[b]); };
  T* caches[2] = {c.out(1), c.out(2)};
  for (size_t which : {size_t{0}, size_t{1}}) {
    if (caches[which] != c.in(1 + which))
      std::copy_n(c.in(1 + which), c.in_shape(1).numel(), caches[which]);
    for (int64_t b = 0; b < s.B; ++b)
      for (int64_t t = 0; t < s.kept(position(b)); ++t)
        std::copy_n(
            c.in(0) + (b * s.T + t) * s.row() + (s.H + static_cast<int64_t>(which) * s.G) * s.K,
            width, caches[which] + (s.own(b) * s.C + position(b) + t) * width);
  }
  std::vector<T> score(static_cast<size_t>(s.C));
  for (int64_t b = 0; b < s.B; ++b)
    for (int64_t t = 0; t < s.T; ++t)
      for (int64_t h = 0; h < s.H; ++h) {
        const T* q = c.in(0) + (b * s.T + t) * s.row() + h * s.K;
        const int64_t n = s.seen(position(b), t), head = h / s.group() * s.K;
        auto row = [&](size_t which, int64_t j) {
          const int64_t from = j < position(b) && s.history ? s.holder(c.ids(4), b, j) : s.own(b);
          return caches[which] + (from * s.C + j) * width + head;
        };
        T top = -INFINITY, sum = 0;
        for (int64_t j = 0; j < n; ++j) {
          T dot = 0;
          for (int64_t d = 0; d < s.K; ++d) dot += q[d] * row(0, j)[d];
          score[static_cast<size_t>(j)] = dot * T(s.scale);
          top = std::max(top, score[static_cast<size_t>(j)]);
        }
        for (int64_t j = 0; j < n; ++j) sum += std::exp(score[static_cast<size_t>(j)] - top);
        T* out = c.out(0) + ((b * s.T + t) * s.H + h) * s.K;
        std::fill_n(out, s.K, T(0));
        for (int64_t j = 0; j < n; ++j) {
          const T p = std::exp(score[static_cast<size_t>(j)] - top) / sum;
          for (int64_t d = 0; d < s.K; ++d) out[d] += p * row(1, j)[d];
        }
      }
}

// The positions are not known before it runs: full caches, the most it can cost. The caches are
// updated in place, so that only their reading counts.
Cost cost(const OpSite& site) {
  const CachedAttentionSite s = cached_attention_site(site);
  const double pairs = static_cast<double>(s.B * s.T) * static_cast<double>(s.C);
  const double bytes = static_cast<double>(site.in[0].bytes() + site.in[1].bytes() +
                                           site.in[2].bytes() + site.out[0].bytes());
  return {4.0 * static_cast<double>(s.K * s.H) * pairs, bytes};
}

std::vector<InPlace> in_place(const OpSite&) { return {{1, 1}, {2, 2}}; }

OpCase make_case(int64_t B, int64_t T, int64_t H, int64_t G, int64_t K, int64_t C,
                 int64_t position_below) {
  return {{normal_input({B, T, (H + 2 * G) * K}), normal_input({B, C, G * K}),
           normal_input({B, C, G * K}), index_input({B}, position_below)},
          {{"heads", H}, {"kv_heads", G}, {"head_dim", K}}};
}

// A position bound above C - T + 1 also draws chunks that run over the end. The kernel works on 64
// keys at a time and, with few queries, straight from the cache.
std::vector<OpCase> cases() {
  std::vector<OpCase> list = {
      make_case(1, 1, 1, 1, 1, 1, 1),       make_case(1, 1, 2, 1, 8, 5, 5),
      make_case(2, 1, 4, 2, 5, 9, 9),       make_case(1, 1, 3, 3, 16, 130, 130),
      make_case(2, 3, 2, 2, 3, 7, 5),       make_case(1, 5, 4, 1, 4, 12, 8),
      make_case(1, 1, 12, 4, 64, 200, 200), make_case(1, 1, 32, 1, 40, 150, 150),
      make_case(1, 64, 4, 2, 24, 160, 97),  make_case(2, 70, 2, 2, 17, 140, 71),
      make_case(1, 131, 1, 1, 65, 131, 1),  make_case(1, 9, 2, 1, 6, 10, 300),  // over the end
      make_case(1, 64, 2, 2, 8, 80, 80),    make_case(1, 1, 2, 2, 4, 6, 40),
      make_case(1, 8, 2, 1, 8, 40, 1),      make_case(0, 1, 2, 1, 8, 40, 1),
      make_case(1, 0, 2, 1, 8, 40, 1),      make_case(1, 40, 1, 1, 136, 90, 51)};
  list.push_back(make_case(1, 6, 2, 2, 4, 20, 10));
  list.back().attrs.set({"scale", 0.3});
  // One position for all: what a sequence sees of another must not be written meanwhile.
  auto add_history = [&](int64_t B, int64_t T, int64_t H, int64_t G, int64_t K, int64_t C,
                         int64_t position) {
    list.push_back(make_case(B, T, H, G, K, C, 1));
    list.back().in[3] = {
        {{B}, DType::i32}, CaseInput::Fill::constant, static_cast<double>(position)};
    list.back().attrs.set({"history", 1});
    list.back().in.push_back(index_input({B, C}, std::max<int64_t>(1, B)));
  };
  add_history(4, 1, 2, 2, 8, 20, 13);
  add_history(3, 1, 8, 1, 5, 70, 69);  // many queries of a head
  add_history(5, 1, 4, 2, 64, 150, 140);
  add_history(2, 3, 2, 1, 16, 30, 22);
  add_history(1, 1, 1, 1, 4, 3, 2);
  auto add_prompts = [&](int64_t B, int64_t T, int64_t H, int64_t G, int64_t K, int64_t C,
                         int64_t position_below, int64_t beams) {
    list.push_back(make_case(B, T, H, G, K, C, position_below));
    list.back().attrs.set({"beams", beams});
    for (const size_t cache : {size_t{1}, size_t{2}})
      list.back().in[cache] = normal_input({B * beams, C, G * K});
  };
  add_prompts(3, 5, 2, 1, 8, 20, 15, 4);
  add_prompts(2, 64, 2, 2, 16, 140, 100, 3);
  add_prompts(2, 1, 4, 2, 8, 9, 9, 2);
  return list;
}

// GPT-2 124M and a grouped-query model, one token and a chunk of the prompt. Benchmarks give every
// output storage of its own, so that these times contain a copy of both caches.
std::vector<OpCase> benchmarks() {
  return {make_case(1, 1, 12, 12, 64, 1024, 1024), make_case(1, 64, 12, 12, 64, 1024, 960),
          make_case(1, 1, 32, 8, 64, 2048, 2048), make_case(1, 64, 32, 8, 64, 2048, 1984)};
}

}  // namespace

extern const OpCard attention_cached_card;
const OpCard attention_cached_card = {
    .name = "attention_cached",
    .summary =
        "causal attention of T new tokens over a key/value cache of which `position` rows are "
        "filled; the new keys and values are put behind them in place (arXiv 1706.03762, "
        "2305.13245)",
    .infer = infer,
    .no_gradient =
        "for generation only: it overwrites the cache that a gradient would have to read",
    MR_REFERENCE,
    .cost = cost,
    .cases = cases,
    .benchmarks = benchmarks,
    .in_place = in_place,
};

}  // namespace millrace
