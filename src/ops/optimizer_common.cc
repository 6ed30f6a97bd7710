#include "ops/optimizer_common.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstring>

#include "ops/type_rules.h"

namespace millrace {

std::vector<TensorChunk> cut_into_chunks(std::span<const TensorType> tensors) {
  std::vector<TensorChunk> chunks;
  for (size_t i = 0; i < tensors.size(); ++i)
    for (int64_t at = 0; at < tensors[i].numel(); at += kChunkElements)
      chunks.push_back({i, at, std::min(tensors[i].numel(), at + kChunkElements)});
  return chunks;
}

std::string decay_text(std::span<const double> decay) {
  std::string text;
  for (double d : decay) text += fmt::format("{}{}", text.empty() ? "" : ";", d);
  return text;
}

std::optional<std::vector<double>> decay_from_text(std::string_view text, int64_t n) {
  std::vector<double> decay;
  const char *at = text.data(), *const end = at + text.size();
  while (true) {
    double value = 0;
    const auto [stop, fault] = std::from_chars(at, end, value);
    if (fault != std::errc{} || !std::isfinite(value)) return std::nullopt;
    decay.push_back(value);
    if (stop == end) break;
    if (*stop != ';') return std::nullopt;
    at = stop + 1;
  }
  if (static_cast<int64_t>(decay.size()) != n) return std::nullopt;
  return decay;
}

std::shared_ptr<const void> prepare_optimizer(const OpSite& site) {
  const int64_t n = site.attrs.integer("n");
  auto table = std::make_shared<OptimizerTable>();
  table->chunks = cut_into_chunks(site.in.first(static_cast<size_t>(n)));
  table->decay = decay_from_text(site.attrs.text("decay"), n).value();
  return table;
}

std::string infer_optimizer(const Attrs& attrs, std::span<const TensorType> in,
                            std::vector<TensorType>& out, int64_t states) {
  const int64_t n = attrs.integer("n");
  if (n < 1) return fmt::format("{} tensors", n);
  const std::string decay = attrs.text("decay");
  if (!decay_from_text(decay, n)) return fmt::format("decay `{}`, wants {} numbers", decay, n);
  const auto count = static_cast<size_t>(n), groups = static_cast<size_t>(2 + states);
  const std::vector<int64_t> shadows = shadow_list(attrs);
  const size_t wanted = groups * count + 3 + shadows.size();
  if (in.size() != wanted) return fmt::format("wants {} inputs, got {}", wanted, in.size());
  for (size_t i = 0; i < groups * count; ++i) {
    const std::string what = fmt::format("input {}", i);
    const std::string fault =
        first_fault({expect_f32(what, in[i]), expect_type(what, in[i], in[i % count])});
    if (!fault.empty()) return fault;
  }
  for (size_t i = groups * count; i < groups * count + 3; ++i)
    if (const std::string fault = expect_type("scalar", in[i], {{}, DType::f32}); !fault.empty())
      return fault;
  out.clear();
  for (size_t group = 0; group < groups - 1; ++group)
    out.insert(out.end(), in.begin(), in.begin() + static_cast<int64_t>(n));
  for (size_t i = 0; i < shadows.size(); ++i) {
    const int64_t of = shadows[i];
    if (of < 0 || of >= n) return fmt::format("a shadow of tensor {}, there are {}", of, n);
    const std::string fault = expect_type(fmt::format("shadow {}", i), in[groups * count + 3 + i],
                                          in[static_cast<size_t>(of)]);
    if (!fault.empty()) return fault;
    out.push_back(in[static_cast<size_t>(of)]);
  }
  return "";
}

std::vector<int64_t> shadow_list(const Attrs& attrs) {
  std::vector<int64_t> list;
  const std::string text = attrs.text("shadows");
  for (const char *at = text.data(), *end = at + text.size(); at < end; ++at) {
    int64_t index = -1;
    at = std::from_chars(at, end, index).ptr;
    list.push_back(index);
  }
  return list;
}

std::string decline_shadows(const OpSite& site) {
  return shadow_list(site.attrs).empty() ? "" : "16-bit copies";
}

OpCase with_shadows(OpCase c, const char* shadows) {
  c.attrs.set({"shadows", shadows});
  for (const int64_t of : shadow_list(c.attrs))
    c.in.push_back(normal_input(c.in[static_cast<size_t>(of)].type.shape));
  return c;
}

std::vector<InPlace> optimizer_in_place(const OpSite& site) {
  const auto n = static_cast<int>(site.attrs.integer("n"));
  const auto outputs = static_cast<int>(site.out.size()),
             shadows = static_cast<int>(shadow_list(site.attrs).size());
  std::vector<InPlace> pairs;
  // The gradients stand between the parameters and their state, the scalars before the shadows.
  for (int i = 0; i < outputs; ++i)
    pairs.push_back({i, i < n ? i : i < outputs - shadows ? i + n : i + n + 3});
  return pairs;
}

void leave_unchanged(const OpSite& site, std::span<const void* const> in,
                     std::span<void* const> out, int64_t element_bytes) {
  for (const InPlace& pair : optimizer_in_place(site)) {
    const void* from = in[static_cast<size_t>(pair.in)];
    void* to = out[static_cast<size_t>(pair.out)];
    const auto bytes =
        static_cast<size_t>(site.out[static_cast<size_t>(pair.out)].numel() * element_bytes);
    if (from != to && bytes > 0) std::memcpy(to, from, bytes);
  }
}

std::vector<CaseInput> optimizer_case(std::span<const Shape> shapes, int64_t states,
                                      double learning_rate, double gradient_scale, double step) {
  std::vector<CaseInput> in;
  for (int64_t group = 0; group < 2 + states; ++group)
    for (const Shape& shape : shapes)
      in.push_back(group < 2 ? normal_input(shape) : positive_input(shape));
  for (double scalar : {learning_rate, gradient_scale, step})
    in.push_back(constant_input({}, scalar));
  return in;
}

}  // namespace millrace
