// permute: dimensions in another order; output dimension d is input dimension order[d].
#include "ops/permute.h"

#include "ops/card.h"
#include "ops/type_rules.h"

namespace millrace {

PermutedAxes merged_axes(const Shape& in, const Shape& order) {
  std::array<int64_t, Shape::kMaxRank> stride{};
  int64_t step = 1;
  for (int d = in.rank() - 1; d >= 0; --d) {
    stride[static_cast<size_t>(d)] = step;
    step *= in[d];
  }
  PermutedAxes axes;
  for (int64_t d : order) {
    const int64_t size = in[static_cast<int>(d)], from = stride[static_cast<size_t>(d)];
    const auto last = static_cast<size_t>(axes.rank - 1);
    if (size == 1) continue;
    if (axes.rank > 0 && axes.from[last] == from * size) {
      axes.size[last] *= size;
      axes.from[last] = from;
      continue;
    }
    axes.size[static_cast<size_t>(axes.rank)] = size;
    axes.from[static_cast<size_t>(axes.rank++)] = from;
  }
  return axes;
}

namespace {

// order = "0x2x1x3"
std::string infer(const Attrs& attrs, std::span<const TensorType> in,
                  std::vector<TensorType>& out) {
  if (std::string fault = expect_inputs(in, 1); !fault.empty()) return fault;
  const std::string text = attrs.text("order");
  const Shape order = shape_from_text(text);
  std::array<bool, Shape::kMaxRank> seen{};
  bool valid = order.rank() == in[0].shape.rank();
  for (int64_t d : order) {
    valid = valid && d < in[0].shape.rank() && !seen[static_cast<size_t>(d)];
    if (valid) seen[static_cast<size_t>(d)] = true;
  }
  if (!valid) return fmt::format("order {} for {}", text, in[0].str());
  out = {{{}, in[0].dtype}};
  for (int64_t d : order) out[0].shape.push_back(in[0].shape[static_cast<int>(d)]);
  return "";
}

template <typename Element, typename T>
void reorder(const RefCall<T>& c) {
  const auto* x = static_cast<const Element*>(c.in_data[0]);
  auto* y = static_cast<Element*>(c.out_data[0]);
  const Shape order = shape_from_text(c.attrs().text("order"));
  const Shape &in = c.in_shape(0), &out = c.out_shape(0);
  const int64_t count = out.numel();
  for (int64_t k = 0; k < count; ++k) {
    std::array<int64_t, Shape::kMaxRank> index{};  // of the input, by its dimensions
    int64_t rest = k, from = 0;
    for (int d = out.rank() - 1; d >= 0; --d) {
      index[static_cast<size_t>(order[d])] = rest % out[d];
      rest /= out[d];
    }
    for (int d = 0; d < in.rank(); ++d) from = from * in[d] + index[static_cast<size_t>(d)];
    y[k] = x[from];
  }
}

template <typename T>
void reference(const RefCall<T>& c) {
  if (c.site.in[0].dtype == DType::i32)
    reorder<int32_t>(c);
  else
    reorder<T>(c);
}

void vjp(GradContext& g) {
  const Shape order = shape_from_text(g.node.attrs.text("order"));
  std::array<int64_t, Shape::kMaxRank> inverse{};
  for (int d = 0; d < order.rank(); ++d) inverse[static_cast<size_t>(order[d])] = d;
  const Shape back(inverse.begin(), inverse.begin() + order.rank());
  if (g.wants(0)) g.set(0, g.b.op("permute", {g.grad(0)}, {{"order", shape_text(back)}}));
}

Cost cost(const OpSite& site) { return {0, traffic(site)}; }

std::vector<OpCase> cases() {
  std::vector<OpCase> list;
  auto add = [&](const Shape& x, const char* order) {
    list.push_back({{normal_input(x)}, {{"order", order}}});
  };
  add({}, "");
  add({1}, "0");
  add({5}, "0");
  add({3, 7}, "0x1");
  add({3, 7}, "1x0");
  add({2, 3, 5}, "0x2x1");
  add({2, 3, 5}, "1x2x0");
  add({2, 3, 5}, "2x1x0");
  add({2, 3, 4, 5}, "0x2x1x3");
  add({2, 3, 4, 5}, "3x1x0x2");
  add({2, 1, 3, 2, 2, 2}, "5x0x3x1x4x2");
  add({2, 0, 3}, "2x0x1");
  add({37, 53}, "1x0");  // over one tile
  list.push_back({{index_input({19, 23}, 1000, true)}, {{"order", "1x0"}}});
  return list;
}

std::vector<OpCase> benchmarks() {
  return {{{normal_input({16, 256, 8, 64})}, {{"order", "0x2x1x3"}}, false},
          {{normal_input({2048, 2048})}, {{"order", "1x0"}}, false}};
}

}  // namespace

extern const OpCard permute_card;
const OpCard permute_card = {
    .name = "permute",
    .summary = "dimensions in another order: output dimension d is input dimension order[d]",
    .infer = infer,
    .vjp = vjp,
    MR_REFERENCE,
    .cost = cost,
    .cases = cases,
    .benchmarks = benchmarks,
};

}  // namespace millrace
