// copy_mass: how much attention lies on the places of the source that hold the word to be produced,
// the copy term of a pointer-generator (See et al., arXiv 1704.04368) in closed form: a
// distribution over the extended vocabulary is never made. Words are ids of the extended
// vocabulary; a negative one is no word and matches nothing.
#include "ops/card.h"
#include "ops/type_rules.h"

namespace millrace {
namespace {

std::string words(const TensorType& source, const TensorType& targets) {
  if (source.dtype == DType::i32 && targets.dtype == DType::i32 && source.shape.rank() == 2 &&
      targets.shape.rank() == 2 && source.shape[0] == targets.shape[1])
    return "";
  return fmt::format("source {} and targets {}, wants i32 [B,S] and [T,B]", source.str(),
                     targets.str());
}

// attention [T,B,S], source i32 [B,S], targets i32 [T,B] -> mass [T,B]
std::string infer(const Attrs&, std::span<const TensorType> in, std::vector<TensorType>& out) {
  if (std::string fault = expect_inputs(in, 3); !fault.empty()) return fault;
  if (std::string fault = words(in[1], in[2]); !fault.empty()) return fault;
  const Shape &source = in[1].shape, &targets = in[2].shape;
  out = {{targets, DType::f32}};
  return expect_type("attention", in[0], {{targets[0], targets[1], source[1]}, DType::f32});
}

template <typename T>
void reference(const RefCall<T>& c) {
  const int64_t steps = c.out_shape(0)[0], B = c.in_shape(1)[0], S = c.in_shape(1)[1];
  for (int64_t t = 0; t < steps; ++t)
    for (int64_t b = 0; b < B; ++b) {
      const int32_t target = c.ids(2)[t * B + b];
      T mass = 0;
      for (int64_t s = 0; s < S; ++s)
        if (target >= 0 && c.ids(1)[b * S + s] == target) mass += c.in(0)[(t * B + b) * S + s];
      c.out(0)[t * B + b] = mass;
    }
}

void vjp(GradContext& g) {
  if (g.wants(0)) g.set(0, g.b.op("copy_mass_grad", {g.grad(0), g.in(1), g.in(2)}));
}

Cost cost(const OpSite& site) { return {static_cast<double>(site.in[0].numel()), traffic(site)}; }

// Words out of so few that most targets are found, and some more than once.
template <typename F>
std::vector<OpCase> cases_of(const F& first_input) {
  std::vector<OpCase> list;
  auto add = [&](const Shape& x, int64_t bound, bool ignored, bool gradient = true) {
    list.push_back({{first_input(x), index_input({x[1], x[2]}, bound, ignored),
                     index_input({x[0], x[1]}, bound, ignored)},
                    {},
                    gradient});
  };
  add({1, 1, 1}, 1, false);
  add({2, 3, 5}, 4, true);
  add({3, 2, 8}, 3, false);
  add({4, 3, 37}, 6, true);
  add({0, 2, 3}, 4, false);
  add({2, 0, 3}, 4, false);
  add({2, 3, 0}, 4, false);
  add({5, 2, 68}, 9, true, false);
  add({70, 16, 100}, 40, true, false);
  add({9, 3, 301}, 20, true, false);
  add({3, 2, 5001}, 50, true, false);
  add({2, 3, 8192}, 50, true, false);
  return list;
}

std::vector<OpCase> cases() {
  return cases_of([](const Shape& x) { return normal_input(x); });
}

std::vector<OpCase> benchmarks() {
  return {{{positive_input({192, 16, 768}), index_input({16, 768}, 50000),
            index_input({192, 16}, 50000)},
           {},
           false}};
}

// dmass [T,B], source i32 [B,S], targets i32 [T,B] -> dattention [T,B,S]
std::string grad_infer(const Attrs&, std::span<const TensorType> in, std::vector<TensorType>& out) {
  if (std::string fault = expect_inputs(in, 3); !fault.empty()) return fault;
  if (std::string fault = words(in[1], in[2]); !fault.empty()) return fault;
  const Shape &source = in[1].shape, &targets = in[2].shape;
  out = {{{targets[0], targets[1], source[1]}, DType::f32}};
  return expect_type("dmass", in[0], {targets, DType::f32});
}

template <typename T>
void grad_reference(const RefCall<T>& c) {
  const int64_t steps = c.out_shape(0)[0], B = c.in_shape(1)[0], S = c.in_shape(1)[1];
  for (int64_t t = 0; t < steps; ++t)
    for (int64_t b = 0; b < B; ++b)
      for (int64_t s = 0; s < S; ++s) {
        const int32_t target = c.ids(2)[t * B + b];
        const bool copied = target >= 0 && c.ids(1)[b * S + s] == target;
        c.out(0)[(t * B + b) * S + s] = copied ? c.in(0)[t * B + b] : T(0);
      }
}

Cost grad_cost(const OpSite& site) { return {0, traffic(site)}; }

std::vector<OpCase> grad_cases() {
  return cases_of([](const Shape& x) { return normal_input(without_last(x)); });
}

std::vector<OpCase> grad_benchmarks() {
  return {{{normal_input({192, 16}), index_input({16, 768}, 50000), index_input({192, 16}, 50000)},
           {},
           false}};
}

}  // namespace

extern const OpCard copy_mass_card;
const OpCard copy_mass_card = {
    .name = "copy_mass",
    .summary =
        "sum of the attention on the places of the source that hold the target word; a negative "
        "word matches nothing",
    .infer = infer,
    .vjp = vjp,
    MR_REFERENCE,
    .cost = cost,
    .cases = cases,
    .benchmarks = benchmarks,
    .full_in = 0b1,
    .full_out = 0b1,
};

extern const OpCard copy_mass_grad_card;
const OpCard copy_mass_grad_card = {
    .name = "copy_mass_grad",
    .summary =
        "gradient of copy_mass for the attention: dmass where the target word stands, else 0",
    .infer = grad_infer,
    .no_gradient = "first derivatives only",
    .reference_f32 = grad_reference<float>,
    .reference_f64 = grad_reference<double>,
    .cost = grad_cost,
    .cases = grad_cases,
    .benchmarks = grad_benchmarks,
    .full_in = 0b1,
    .full_out = 0b1,
};

}  // namespace millrace
