// Rotary position embedding (Su et al., arXiv 2104.09864) on packed q, k, v heads, in the layout
// that pairs element d with d + K/2 (Hugging Face Llama, "rotate_half"): rotates q and k, copies v.
// The gradient of a rotation is the rotation back.
#include "ops/rope.h"

#include "ops/card.h"

namespace millrace {
namespace {

std::string infer(const Attrs& attrs, std::span<const TensorType> in,
                  std::vector<TensorType>& out) {
  const bool positions = attrs.integer("positions", 0) != 0;
  if (std::string fault = expect_inputs(in, positions ? 2 : 1); !fault.empty()) return fault;
  const int64_t H = attrs.integer("heads"), G = attrs.integer("kv_heads"),
                K = attrs.integer("head_dim");
  if (H < 1 || G < 1 || K < 2 || K % 2 != 0)
    return fmt::format("wants heads {} and kv_heads {} positive, head_dim {} even", H, G, K);
  if (const double theta = attrs.number("theta", 10000); !(theta > 0 && std::isfinite(theta)))
    return fmt::format("theta {} must be positive", theta);
  if (const double factor = attrs.number("factor", 1); !(factor > 0 && std::isfinite(factor)))
    return fmt::format("factor {} must be positive", factor);
  if (attrs.number("original_length", 0) > 0)
    if (const double low = attrs.number("low_frequency"), high = attrs.number("high_frequency");
        !(low > 0 && high > low && std::isfinite(high)))
      return fmt::format("wants 0 < low_frequency {} < high_frequency {}", low, high);
  const Shape& shape = in[0].shape;
  if (in[0].dtype != DType::f32 || shape.rank() != 3 || shape[2] != (H + 2 * G) * K)
    return fmt::format("qkv wants f32 [B,T,{}], got {}", (H + 2 * G) * K, in[0].str());
  if (positions && in[1] != TensorType{{shape[0], shape[1]}, DType::i32})
    return fmt::format("positions want i32 [B,T], got {} for {}", in[1].str(), in[0].str());
  out = {in[0]};
  return "";
}

void vjp(GradContext& g) {
  if (!g.wants(0)) return;
  Attrs attrs = g.node.attrs;
  attrs.set({"inverse", attrs.integer("inverse", 0) == 0});
  std::vector<Value> in = g.node.in;
  in[0] = g.grad(0);
  g.set(0, g.b.op("rope", std::move(in), std::move(attrs)));
}

template <typename T>
void reference(const RefCall<T>& c) {
  const Attrs& attrs = c.attrs();
  const int64_t H = attrs.integer("heads"), G = attrs.integer("kv_heads"),
                K = attrs.integer("head_dim"), steps = c.in_shape(0)[1];
  const bool positions = attrs.integer("positions", 0) != 0;
  const double direction = attrs.integer("inverse", 0) != 0 ? -1 : 1;
  for (int64_t row = 0; row < c.in_shape(0).rows(); ++row) {
    const int64_t position = positions ? c.ids(1)[row] : row % steps + attrs.integer("offset", 0);
    const T* x = c.in(0) + row * (H + 2 * G) * K;
    T* y = c.out(0) + row * (H + 2 * G) * K;
    for (int64_t head = 0; head < H + G; ++head)
      for (int64_t d = 0; d < K / 2; ++d) {
        const int64_t at = head * K + d, pair = at + K / 2;
        const double angle =
            direction * static_cast<double>(position) * rope_frequency(attrs, d, K);
        const T cosine = T(std::cos(angle)), sine = T(std::sin(angle)), first = x[at];
        y[at] = first * cosine - x[pair] * sine;
        y[pair] = x[pair] * cosine + first * sine;
      }
    for (int64_t at = (H + G) * K; at < (H + 2 * G) * K; ++at) y[at] = x[at];
  }
}

// Six flops for each pair of a rotated head.
Cost cost(const OpSite& site) {
  const double rows = static_cast<double>(site.in[0].shape.rows());
  const int64_t rotated = site.attrs.integer("heads") + site.attrs.integer("kv_heads");
  return {3 * rows * static_cast<double>(rotated * site.attrs.integer("head_dim")), traffic(site)};
}

std::vector<InPlace> in_place(const OpSite&) { return {{0, 0}}; }

std::vector<OpCase> cases() {
  struct Sizes {
    int64_t B, T, H, G, K;
    Attrs extra;
    int64_t position_bound = 0;
  };
  const Sizes all[] = {
      {1, 1, 1, 1, 2, {}},
      {2, 3, 1, 1, 4, {}},
      {1, 5, 2, 1, 6, {}},
      {2, 7, 3, 3, 2, {{"theta", 500.0}}},
      {1, 4, 2, 2, 8, {{"offset", 11}}},
      {1, 3, 4, 2, 10, {{"inverse", 1}}},
      {2, 5, 2, 1, 4, {{"positions", 1}}, 5},
      {2, 4, 1, 1, 6, {{"positions", 1}, {"inverse", 1}}, 100000},
      {1, 9, 2, 1, 14, {{"inverse", 1}, {"offset", 3}}},
      {1, 2, 2, 2, 64, {}},
      {1, 3, 1, 1, 34, {{"theta", 1e6}, {"positions", 1}}, 4},
      {1, 6, 2, 1, 8, {{"factor", 4.0}}},
      // Pairs of all three kinds: left alone, in between, slowed down.
      {2,
       9,
       1,
       1,
       16,
       {{"theta", 100.0},
        {"factor", 8.0},
        {"original_length", 64.0},
        {"low_frequency", 1.0},
        {"high_frequency", 4.0}}},
  };
  std::vector<OpCase> list;
  for (const Sizes& s : all) {
    OpCase c{{normal_input({s.B, s.T, (s.H + 2 * s.G) * s.K})}, s.extra};
    c.attrs.set({"heads", s.H});
    c.attrs.set({"kv_heads", s.G});
    c.attrs.set({"head_dim", s.K});
    if (s.position_bound > 0) c.in.push_back(index_input({s.B, s.T}, s.position_bound));
    list.push_back(std::move(c));
  }
  return list;
}

}  // namespace

extern const OpCard rope_card;
const OpCard rope_card = {
    .name = "rope",
    .summary =
        "rotary position embedding of the q and k heads of packed qkv, pairs (d, d + K/2) "
        "turned by position * theta^(-2d/K) (arXiv 2104.09864), the frequencies scaled linearly or "
        "as "
        "Llama 3.1's where asked for",
    .infer = infer,
    .vjp = vjp,
    MR_REFERENCE,
    .cost = cost,
    .cases = cases,
    .in_place = in_place,
    .cheap = true,
};

}  // namespace millrace
