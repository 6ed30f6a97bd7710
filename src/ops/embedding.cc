// embedding: rows of a table by id, and its gradient, which adds the rows back where they came
// from. Ids outside the table give zero rows and no gradient.
#include "ops/card.h"
#include "ops/type_rules.h"

namespace millrace {
namespace {

// ids [..], table [V,D] -> [..,D]
std::string infer(const Attrs&, std::span<const TensorType> in, std::vector<TensorType>& out) {
  if (std::string fault = expect_inputs(in, 2); !fault.empty()) return fault;
  if (in[0].dtype != DType::i32 || in[0].shape.rank() >= Shape::kMaxRank)
    return fmt::format("ids are {}, wants i32 of rank below {}", in[0].str(), Shape::kMaxRank);
  if (in[1].dtype != DType::f32 || in[1].shape.rank() != 2)
    return fmt::format("table is {}, wants f32 of rank 2", in[1].str());
  out = {{in[0].shape, DType::f32}};
  out[0].shape.push_back(in[1].shape[1]);
  return "";
}

template <typename T>
void reference(const RefCall<T>& c) {
  const int64_t N = c.in_shape(0).numel(), V = c.in_shape(1)[0], D = c.in_shape(1)[1];
  for (int64_t i = 0; i < N; ++i) {
    const int64_t id = c.ids(0)[i];
    const bool known = id >= 0 && id < V;
    for (int64_t j = 0; j < D; ++j) c.out(0)[i * D + j] = known ? c.in(1)[id * D + j] : T(0);
  }
}

void vjp(GradContext& g) {
  if (g.wants(1))
    g.set(1, g.b.op("embedding_grad", {g.in(0), g.grad(0)}, {{"rows", g.b.shape(g.in(1))[0]}}));
}

Cost cost(const OpSite& site) {
  // Only the rows that are asked for are read.
  const double rows = 2.0 * static_cast<double>(site.out[0].bytes());
  return {0, static_cast<double>(site.in[0].bytes()) + rows};
}

std::vector<OpCase> cases() {
  std::vector<OpCase> list;
  for (const Shape& ids : {Shape{}, Shape{1}, Shape{7}, Shape{2, 5}, Shape{3, 2, 4}, Shape{0}})
    for (const Shape& table : {Shape{1, 1}, Shape{5, 3}, Shape{31, 8}})
      list.push_back({{index_input(ids, table[0]), normal_input(table)}, {}});
  list.push_back({{index_input({41}, 17, true), normal_input({17, 13})}, {}});
  list.push_back({{index_input({19, 7}, 101), normal_input({101, 19})}, {}});
  return list;
}

std::vector<OpCase> benchmarks() {
  return {{{index_input({4096}, 10000), normal_input({10000, 256})}, {}, false}};
}

// ids [..], dy [..,D], [base [V,D]] -> dtable [V,D]
std::string grad_infer(const Attrs& attrs, std::span<const TensorType> in,
                       std::vector<TensorType>& out) {
  if (in.size() != 3)
    if (std::string fault = expect_inputs(in, 2); !fault.empty()) return fault;
  if (std::string fault = expect_f32("dy", in[1], 1); !fault.empty()) return fault;
  const int64_t V = attrs.integer("rows");
  if (V < 0) return fmt::format("{} rows", V);
  out = {{{V, in[1].shape.last()}, DType::f32}};
  return first_fault({expect_type("ids", in[0], {without_last(in[1].shape), DType::i32}),
                      in.size() == 3 ? expect_type("base", in[2], out[0]) : ""});
}

template <typename T>
void grad_reference(const RefCall<T>& c) {
  const int64_t N = c.in_shape(0).numel(), V = c.out_shape(0)[0], D = c.out_shape(0)[1];
  const T* base = c.site.in.size() == 3 ? c.in(2) : nullptr;
  for (int64_t k = 0; k < V * D; ++k) c.out(0)[k] = base ? base[k] : T(0);
  for (int64_t i = 0; i < N; ++i) {
    const int64_t id = c.ids(0)[i];
    if (id < 0 || id >= V) continue;
    for (int64_t j = 0; j < D; ++j) c.out(0)[id * D + j] += c.in(1)[i * D + j];
  }
}

// On top of a base, whose place the result takes, only the rows that are named are read and
// written.
Cost grad_cost(const OpSite& site) {
  double bytes = traffic(site);
  if (site.in.size() == 3) {
    const double V = static_cast<double>(site.out[0].shape[0]),
                 N = static_cast<double>(site.in[0].numel()),
                 table = static_cast<double>(site.out[0].bytes());
    bytes -= 2 * table * (1 - std::min(1.0, N / std::max(V, 1.0)));
  }
  return {static_cast<double>(site.in[1].numel()), bytes};
}

std::vector<OpCase> grad_cases() {
  std::vector<OpCase> list;
  for (const Shape& ids : {Shape{}, Shape{1}, Shape{7}, Shape{2, 5}, Shape{0}, Shape{11, 29}})
    for (const Shape& table : {Shape{1, 1}, Shape{5, 3}, Shape{67, 19}})
      for (bool with_base : {false, true}) {
        Shape dy = ids;
        dy.push_back(table[1]);
        OpCase c{{index_input(ids, table[0], table[0] > 1), normal_input(dy)},
                 {{"rows", table[0]}}};
        if (with_base) c.in.push_back(normal_input(table));
        list.push_back(c);
      }
  return list;
}

std::vector<OpCase> grad_benchmarks() {
  return {{{index_input({4096}, 10000), normal_input({4096, 256})}, {{"rows", 10000}}, false}};
}

std::vector<InPlace> grad_in_place(const OpSite& site) {
  if (site.in.size() == 3) return {{0, 2}};
  return {};
}

}  // namespace

extern const OpCard embedding_card;
const OpCard embedding_card = {
    .name = "embedding",
    .summary = "rows of a table by id; zeros for ids outside the table",
    .infer = infer,
    .vjp = vjp,
    MR_REFERENCE,
    .cost = cost,
    .cases = cases,
    .benchmarks = benchmarks,
};

extern const OpCard embedding_grad_card;
const OpCard embedding_grad_card = {
    .name = "embedding_grad",
    .summary =
        "gradient of embedding for the table: each row of dy added to the row of its id, on top "
        "of base when there is one",
    .infer = grad_infer,
    .no_gradient = "first derivatives only",
    .reference_f32 = grad_reference<float>,
    .reference_f64 = grad_reference<double>,
    .cost = grad_cost,
    .cases = grad_cases,
    .benchmarks = grad_benchmarks,
    .in_place = grad_in_place,
    .full_in = 0b100,
    .full_out = 0b1,
};

}  // namespace millrace
