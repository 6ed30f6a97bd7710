// copy_mix: what a pointer-generator predicts (See et al., arXiv 1704.04368, equation 9): a gate
// shares out between writing a word of the vocabulary and copying one of the source, on whose
// places attention lies. Behind the columns of the vocabulary stand as many as a source has places,
// for its rare words. Rows of one source stand together; a negative column is no word.
#include <cmath>

#include "ops/card.h"
#include "ops/type_rules.h"

namespace millrace {
namespace {

// probabilities [R,V], gate [R] before its sigmoid, attention [R,S], columns i32 [G,S], lengths i32
// [G], R a multiple of G -> [R,V+S]
std::string infer(const Attrs&, std::span<const TensorType> in, std::vector<TensorType>& out) {
  if (std::string fault = expect_inputs(in, 5); !fault.empty()) return fault;
  const Shape &words = in[0].shape, &columns = in[3].shape;
  if (words.rank() != 2 || columns.rank() != 2 ||
      (columns[0] == 0 ? words[0] != 0 : words[0] % columns[0] != 0))
    return fmt::format("columns {} for {}", in[3].str(), in[0].str());
  const int64_t R = words[0], S = columns[1];
  out = {{{R, words[1] + S}, DType::f32}};
  return first_fault({expect_type("probabilities", in[0], {words, DType::f32}),
                      expect_type("gate", in[1], {{R}, DType::f32}),
                      expect_type("attention", in[2], {{R, S}, DType::f32}),
                      expect_type("columns", in[3], {columns, DType::i32}),
                      expect_type("lengths", in[4], {{columns[0]}, DType::i32})});
}

template <typename T>
void reference(const RefCall<T>& c) {
  const int64_t R = c.in_shape(0)[0], V = c.in_shape(0)[1], S = c.in_shape(3)[1], N = V + S;
  for (int64_t r = 0; r < R; ++r) {
    const int64_t group = r / (R / c.in_shape(3)[0]);
    const T gate = c.in(1)[r], writes = 1 / (1 + std::exp(-gate)),
            copies = 1 / (1 + std::exp(gate));
    T* out = c.out(0) + r * N;
    for (int64_t v = 0; v < N; ++v) out[v] = v < V ? writes * c.in(0)[r * V + v] : T(0);
    for (int64_t s = 0; s < std::min<int64_t>(S, c.ids(4)[group]); ++s)
      if (const int32_t column = c.ids(3)[group * S + s]; column >= 0 && column < N)
        out[column] += copies * c.in(2)[r * S + s];
  }
}

Cost cost(const OpSite& site) { return {static_cast<double>(site.out[0].numel()), traffic(site)}; }

std::vector<OpCase> cases() {
  std::vector<OpCase> list;
  // Columns out of `bound`, so that some come several times; lengths up to S.
  auto add = [&](int64_t R, int64_t V, int64_t G, int64_t S, int64_t bound) {
    list.push_back({{positive_input({R, V}), normal_input({R}), positive_input({R, S}),
                     index_input({G, S}, bound, true), index_input({G}, S + 1)},
                    {}});
  };
  add(1, 1, 1, 1, 2);
  add(6, 9, 2, 5, 14);
  add(4, 300, 4, 301, 40);
  add(12, 1030, 3, 70, 1100);
  add(0, 5, 0, 3, 8);
  add(4, 5, 2, 0, 5);
  return list;
}

}  // namespace

extern const OpCard copy_mix_card;
const OpCard copy_mix_card = {
    .name = "copy_mix",
    .summary =
        "probabilities of words that are written or, by a gate, copied from places of a "
        "source",
    .infer = infer,
    .no_gradient = "it is for searches; the loss has its own form",
    MR_REFERENCE,
    .cost = cost,
    .cases = cases,
    .full_in = 0b111,
    .full_out = 0b1,
};

}  // namespace millrace
