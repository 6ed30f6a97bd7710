#include "train/weights.h"

#include <algorithm>
#include <array>

#include "core/rng.h"
#include "cpu/parallel.h"
#include "model/tuning.h"
#include "train/model_weights.h"

namespace millrace {

void initial_values(const Parameter& p, size_t index, uint64_t seed, int64_t begin,
                    std::span<float> out) {
  if (p.init != Parameter::Init::normal) {
    std::fill(out.begin(), out.end(), p.init == Parameter::Init::ones ? 1.0f : 0.0f);
    return;
  }
  RandomStream random(seed, RandomUse::init, index, static_cast<uint64_t>(begin));
  for (float& v : out) v = static_cast<float>(p.init_std * random.normal());
}

void fill_leaf(Session& session, const std::string& leaf,
               const std::function<void(int64_t begin, std::span<float> out)>& make) {
  constexpr int64_t kPiece = 1 << 14;
  cpu::parallel_ranges(session.type(leaf).numel(), kPiece, [&](int64_t begin, int64_t end) {
    std::array<float, kPiece> piece;
    const auto part = std::span(piece).first(static_cast<size_t>(end - begin));
    make(begin, part);
    session.write_part<float>(leaf, begin, part);
  });
}

void initialize(Session& session, const Model& model, uint64_t seed, const fs::path& folder) {
  std::optional<ModelWeights> weights;
  if (!folder.empty()) weights.emplace(folder);
  size_t index = 0;
  for (const Parameter& p : model.parameters()) {
    if (weights && !p.adapter)
      session.write<float>(p.name, weights->values(p, true));
    else
      fill_leaf(session, p.name, [&](int64_t begin, std::span<float> out) {
        initial_values(p, index, seed, begin, out);
      });
    ++index;
  }
}

namespace {

// Where part `part` of a parameter begins in its last dimension, and how wide it is: all of it,
// unless it is cut up outside.
struct Columns {
  Columns(const Parameter& p, size_t part) : width(p.shape.last()) {
    if (p.part_widths.empty()) return;
    for (size_t i = 0; i < part; ++i) begin += p.part_widths[i];
    width = p.part_widths[part];
  }
  int64_t begin = 0, width;
};

std::vector<int64_t> shape_of_part(const Parameter& p, int64_t width) {
  if (p.shape.rank() == 1) return {width};
  const int64_t in = p.shape.rows();
  return p.transposed ? std::vector<int64_t>{width, in} : std::vector<int64_t>{in, width};
}

// Calls f(index in ours, index in the part) for every element of these columns, in
// squares: a transposition row by row would touch a cache line for every element.
template <typename F>
void for_part(const Parameter& p, const Columns& columns, const F& f) {
  const auto [begin, width] = columns;
  constexpr int64_t kSquare = 32;
  const int64_t rows = p.shape.rows(), last = p.shape.last();
  for (int64_t r0 = 0; r0 < rows; r0 += kSquare)
    for (int64_t c0 = 0; c0 < width; c0 += kSquare)
      for (int64_t r = r0; r < std::min(rows, r0 + kSquare); ++r)
        for (int64_t c = c0; c < std::min(width, c0 + kSquare); ++c)
          f(static_cast<size_t>(r * last + begin + c),
            static_cast<size_t>(p.transposed ? c * rows + r : r * width + c));
}

}  // namespace

void check_shape(const std::string& name, const std::vector<int64_t>& shape,
                 const std::vector<int64_t>& expected) {
  if (shape == expected) return;
  throw Error({.code = ErrorCode::failure,
               .what = "tensor " + name + " has another shape than the model",
               .where = name,
               .expected = Shape(expected).str(),
               .got = shape.size() <= Shape::kMaxRank ? Shape(shape).str() : "too many dimensions",
               .remedy = "load weights of a model with these sizes"});
}

bool same_layout(const Parameter& p) { return p.parts() == 1 && !p.transposed; }

std::vector<int64_t> external_shape(const Parameter& p, size_t part) {
  return shape_of_part(p, Columns(p, part).width);
}

std::vector<float> external_part(const Parameter& p, size_t part,
                                 const std::vector<float>& values) {
  const Columns columns(p, part);
  std::vector<float> theirs(static_cast<size_t>(p.shape.rows() * columns.width));
  for_part(p, columns, [&](size_t ours, size_t at) { theirs[at] = values[ours]; });
  return theirs;
}

std::vector<NamedTensor> to_external(const Parameter& p, const std::vector<float>& values) {
  std::vector<NamedTensor> list;
  for (size_t part = 0; part < p.parts(); ++part)
    list.push_back(
        {p.external_name(part), external_shape(p, part), external_part(p, part, values)});
  return list;
}

std::vector<float> from_external(const Parameter& p,
                                 const std::function<NamedTensor(const std::string&)>& fetch) {
  std::vector<float> values(static_cast<size_t>(p.shape.numel()));
  for (size_t part = 0; part < p.parts(); ++part) {
    const Columns columns(p, part);
    const NamedTensor t = fetch(p.external_name(part));
    check_shape(t.name, t.shape, shape_of_part(p, columns.width));
    if (same_layout(p)) return t.values;
    for_part(p, columns, [&](size_t ours, size_t theirs) { values[ours] = t.values[theirs]; });
  }
  return values;
}

std::vector<std::string> check_weights(const fs::path& folder, const Model& model) {
  const ModelWeights weights(folder);
  const bool apart = has_adapters(model);
  const auto table = model.parameters();
  for (const Parameter& p : table)
    if (!p.adapter || weights.has_adapters()) weights.check(p, !apart);
  auto unused = weights.unused(table);
  const auto constants = model.external_constants();
  std::erase_if(unused, [&](const std::string& name) {
    return std::any_of(constants.begin(), constants.end(),
                       [&](const std::string& pattern) { return matches_name(pattern, name); });
  });
  return unused;
}

void check_values(const fs::path& folder, const Model& model) {
  const ModelWeights weights(folder);
  for (const Parameter& p : model.parameters())
    if (!p.adapter) weights.values(p, true);
}

void load_model(const fs::path& folder, Session& session, const Model& model,
                const std::string& prefix) {
  const ModelWeights weights(folder);
  const bool apart = has_adapters(model) && weights.has_adapters();
  for (const Parameter& p : model.parameters())
    session.write<float>(p.trained ? prefix + p.name : p.name, weights.values(p, !apart));
}

}  // namespace millrace
