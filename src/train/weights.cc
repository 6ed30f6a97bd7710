#include "train/weights.h"

#include <algorithm>
#include <array>

#include "core/rng.h"
#include "cpu/parallel.h"
#include "io/weight_folder.h"

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

void initialize(Session& session, const Model& model, uint64_t seed) {
  size_t index = 0;
  for (const Parameter& p : model.parameters()) {
    fill_leaf(session, p.name, [&](int64_t begin, std::span<float> out) {
      initial_values(p, index, seed, begin, out);
    });
    ++index;
  }
}

namespace {

// The parts of a parameter along its last dimension; one part when it is not split outside.
std::vector<int64_t> widths_of(const Parameter& p) {
  return p.part_widths.empty() ? std::vector<int64_t>{p.shape.last()} : p.part_widths;
}

std::vector<int64_t> shape_of_part(const Parameter& p, int64_t width) {
  if (p.shape.rank() == 1) return {width};
  const int64_t in = p.shape.rows();
  return p.transposed ? std::vector<int64_t>{width, in} : std::vector<int64_t>{in, width};
}

// Calls f(index in ours, index in the part) for every element of part [begin, begin + width), in
// squares: a transposition row by row would touch a cache line for every element.
template <typename F>
void for_part(const Parameter& p, int64_t begin, int64_t width, const F& f) {
  constexpr int64_t kSquare = 32;
  const int64_t rows = p.shape.rows(), last = p.shape.last();
  for (int64_t r0 = 0; r0 < rows; r0 += kSquare)
    for (int64_t c0 = 0; c0 < width; c0 += kSquare)
      for (int64_t r = r0; r < std::min(rows, r0 + kSquare); ++r)
        for (int64_t c = c0; c < std::min(width, c0 + kSquare); ++c)
          f(static_cast<size_t>(r * last + begin + c),
            static_cast<size_t>(p.transposed ? c * rows + r : r * width + c));
}

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

WeightFolder::Found find_external(const WeightFolder& weights, const std::string& name) {
  // A file of the bare model, without a head, leaves out the first word: "h.0.ln_1.weight".
  WeightFolder::Found found = weights.find(name);
  if (!found) found = weights.find(name.substr(name.find('.') + 1));
  if (!found)
    throw Error({.code = ErrorCode::failure,
                 .what = "tensor " + name + " is missing",
                 .where = weights.path().string(),
                 .remedy = "load weights of a model with this config"});
  return found;
}

}  // namespace

bool same_layout(const Parameter& p) { return p.parts() == 1 && !p.transposed; }

std::vector<int64_t> external_shape(const Parameter& p, size_t part) {
  return shape_of_part(p, widths_of(p)[part]);
}

std::vector<float> external_part(const Parameter& p, size_t part,
                                 const std::vector<float>& values) {
  const auto widths = widths_of(p);
  int64_t begin = 0;
  for (size_t i = 0; i < part; ++i) begin += widths[i];
  std::vector<float> theirs(static_cast<size_t>(p.shape.rows() * widths[part]));
  for_part(p, begin, widths[part], [&](size_t ours, size_t at) { theirs[at] = values[ours]; });
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
  int64_t begin = 0;
  const auto widths = widths_of(p);
  for (size_t i = 0; i < widths.size(); ++i) {
    const NamedTensor t = fetch(p.external_name(i));
    check_shape(t.name, t.shape, shape_of_part(p, widths[i]));
    for_part(p, begin, widths[i],
             [&](size_t ours, size_t theirs) { values[ours] = t.values[theirs]; });
    begin += widths[i];
  }
  return values;
}

void check_weights(const fs::path& folder, const Model& model) {
  const WeightFolder weights(folder);
  for (const Parameter& p : model.parameters()) {
    const auto widths = widths_of(p);
    for (size_t i = 0; i < widths.size(); ++i)
      check_shape(p.external_name(i), find_external(weights, p.external_name(i)).entry->shape,
                  shape_of_part(p, widths[i]));
  }
}

void load_model(const fs::path& folder, Session& session, const Model& model,
                const std::string& prefix) {
  const WeightFolder weights(folder);
  for (const Parameter& p : model.parameters()) {
    const auto values = from_external(p, [&](const std::string& name) {
      const WeightFolder::Found found = find_external(weights, name);
      return NamedTensor{name, found.entry->shape, found.file->to_f32(*found.entry)};
    });
    session.write<float>(prefix + p.name, values);
  }
}

}  // namespace millrace
