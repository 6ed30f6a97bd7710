#include "train/model_weights.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "cpu/parallel.h"
#include "io/quote.h"
#include "model/external_config.h"
#include "model/tuning.h"
#include "train/weights.h"

namespace millrace {
namespace {

constexpr int kMaxDepth = 16;  // of additions to additions

Error missing(const std::string& name, const fs::path& file, const std::string& expected) {
  return Error({.code = ErrorCode::failure,
                .what = "tensor " + name + " is missing",
                .where = file.string(),
                .expected = expected,
                .got = "none of that name",
                .remedy = "load weights of a model with this config"});
}

// Where element `at` stands: "[3,4]".
std::string element(const std::vector<int64_t>& shape, int64_t at) {
  std::vector<int64_t> index(shape.size());
  for (size_t i = shape.size(); i-- > 0; at /= shape[i]) index[i] = at % shape[i];
  return fmt::format("[{}]", fmt::join(index, ","));
}

// With one that is not finite no update would ever be.
NamedTensor read_finite(const SafetensorsFile& file, const SafetensorsFile::Entry& entry) {
  NamedTensor tensor{entry.name, entry.shape, file.to_f32(entry)};
  const auto bad = std::find_if_not(tensor.values.begin(), tensor.values.end(),
                                    [](float value) { return std::isfinite(value); });
  if (bad == tensor.values.end()) return tensor;
  throw Error(
      {.code = ErrorCode::config,
       .what = "the weights are not finite",
       .where = fmt::format("{}: tensor {}, element {}", file.path().string(), quote(entry.name),
                            element(entry.shape, bad - tensor.values.begin())),
       .expected = "finite numbers",
       .got = fmt::format("{}", *bad),
       .remedy = "fetch or write the weights again"});
}

NamedTensor fetch(const SafetensorsFile& file, const std::string& name) {
  const auto* entry = file.find(name);
  if (!entry) throw missing(name, file.path(), quote(name));
  return read_finite(file, *entry);
}

WeightFolder::Found find_external(const WeightFolder& weights, const std::string& name) {
  // A file of the bare model, without a head, leaves out the first word: "h.0.ln_1.weight".
  const std::string bare = name.substr(name.find('.') + 1);
  WeightFolder::Found found = weights.find(name);
  if (!found) found = weights.find(bare);
  if (!found)
    throw missing(name, weights.path(), fmt::format("{} or {}", quote(name), quote(bare)));
  return found;
}

}  // namespace

struct ModelWeights::Adapters {
  explicit Adapters(const fs::path& folder) : file(folder / kAdapterModel.weights) {
    const fs::path name = folder / kAdapterModel.config;
    const ExternalConfig config(read_file(name, 16 << 20), name.string());
    constexpr const char* kPlain = "plain low-rank additions";
    if (config.text("peft_type").value_or("") != "LORA") config.refuse("peft_type", "LORA", kPlain);
    for (const char* field : {"use_dora", "use_rslora", "use_qalora", "lora_bias"})
      if (config.boolean(field).value_or(false)) config.refuse(field, "false", kPlain);
    if (config.text("bias").value_or("none") != "none") config.refuse("bias", "none", kPlain);
    for (const char* field : {"modules_to_save", "layer_replication", "trainable_token_indices",
                              "target_parameters", "alora_invocation_tokens"})
      if (config.has(field)) config.refuse(field, "null", kPlain);
    for (const char* field : {"alpha_pattern", "rank_pattern"})
      if (const auto pattern = config.object(field); pattern && pattern->json() != "{}")
        config.refuse(field, "{}: one rank and one alpha for all", kPlain);
    // The others change the weights that are added to, and no file has those.
    if (constexpr const char* kInit = "init_lora_weights"; config.is_text(kInit))
      if (const std::string init = *config.text(kInit);
          init != "gaussian" && init != "eva" && init != "orthogonal")
        config.refuse(kInit, "true, false, gaussian, eva or orthogonal",
                      "PEFT's save_pretrained with path_initial_model_for_weight_conversion");
    rank = config.required_integer("r", 1, 65536);
    const auto alpha = config.number("lora_alpha", 0, 1e6);
    if (!alpha) config.refuse("lora_alpha", "a number", kPlain);
    scale = *alpha / static_cast<double>(rank);
    const auto to = config.text("base_model_name_or_path");
    if (!to) config.refuse("base_model_name_or_path", "the folder that they add to", kPlain);
    base = fs::path(*to);
    if (!fs::is_directory(base))
      config.refuse("base_model_name_or_path", "a folder on this machine",
                    "put the folder back, or write where it is now into the file");
  }
  int64_t rank = 0;
  double scale = 1;
  fs::path base;
  SafetensorsFile file;
};

ModelWeights::ModelWeights(const fs::path& folder) : ModelWeights(folder, 0) {}
ModelWeights::~ModelWeights() = default;

ModelWeights::ModelWeights(const fs::path& folder, int depth) : folder_(folder) {
  if (!fs::exists(folder / kAdapterModel.config)) {
    files_ = std::make_unique<WeightFolder>(folder);
    return;
  }
  if (depth > kMaxDepth)
    throw Error({.code = ErrorCode::config,
                 .what = "additions to additions without an end",
                 .where = folder.string(),
                 .expected = "a whole model at the end",
                 .got = fmt::format("{} levels", depth),
                 .remedy = "`millrace export` merges additions into their model"});
  adapters_ = std::make_unique<Adapters>(folder);
  base_.reset(new ModelWeights(adapters_->base, depth + 1));
}

const fs::path& ModelWeights::whole_folder() const {
  return base_ ? base_->whole_folder() : folder_;
}

std::vector<float> ModelWeights::values(const Parameter& p, bool merged) const {
  if (p.adapter && !adapters_)
    throw Error({.code = ErrorCode::failure,
                 .what = "the folder has no low-rank additions",
                 .where = folder_.string(),
                 .expected = kAdapterModel.config,
                 .got = "a whole model",
                 .remedy = "model.lora.rank=0, or a checkpoint of the run"});
  if (p.adapter)
    return from_external(p, [&](const std::string& name) { return fetch(adapters_->file, name); });
  if (base_) {
    auto values = base_->values(p, true);
    if (merged) add(p, values);
    return values;
  }
  return from_external(p, [&](const std::string& name) {
    const WeightFolder::Found found = find_external(*files_, name);
    return read_finite(*found.file, *found.entry);
  });
}

void ModelWeights::check(const Parameter& p, bool merged) const {
  if (p.adapter) {  // small: read, to see
    values(p, merged);
    return;
  }
  if (base_) {
    base_->check(p, true);
    for (size_t part = 0; merged && part < p.parts(); ++part) addition(p, part);
    return;
  }
  for (size_t part = 0; part < p.parts(); ++part) {
    const WeightFolder::Found found = find_external(*files_, p.external_name(part));
    check_shape(p.external_name(part), found.entry->shape, external_shape(p, part));
    found.file->check_type(*found.entry);
  }
}

std::vector<std::string> ModelWeights::unused(const std::vector<Parameter>& table) const {
  std::set<std::string> used;
  for (const Parameter& p : table)
    for (size_t part = 0; !p.adapter && part < p.parts(); ++part) {
      const std::string& name = p.external_name(part);
      if (!base_) {
        used.insert(find_external(*files_, name).entry->name);
      } else if (const AdapterNames names = adapter_names(name); adapters_->file.find(names.a)) {
        if (p.shape.rank() == 2) used.insert({names.a, names.b});
      }
    }
  std::vector<std::string> names;
  if (!base_) {
    names = files_->names();
    std::erase_if(names, [&](const std::string& name) { return used.contains(name); });
    return names;
  }
  for (const auto& entry : adapters_->file.entries())
    if (!used.contains(entry.name))
      throw Error({.code = ErrorCode::config,
                   .what = "tensor " + entry.name + " is no addition to a layer of the model",
                   .where = adapters_->file.path().string(),
                   .expected = "lora_A and lora_B of linear layers, and nothing else",
                   .got = quote(entry.name),
                   .remedy = "train additions to linear layers alone, or merge these with PEFT"});
  return base_->unused(table);
}

// What is added to part `part` of a weight: a [rank, in] and b [width, rank]; nothing when that has
// none.
std::optional<ModelWeights::Addition> ModelWeights::addition(const Parameter& p,
                                                             size_t part) const {
  if (p.shape.rank() != 2) return std::nullopt;
  const AdapterNames names = adapter_names(p.external_name(part));
  if (!adapters_->file.find(names.a)) return std::nullopt;
  const int64_t width = p.part_widths.empty() ? p.shape[1] : p.part_widths[part];
  const NamedTensor a = fetch(adapters_->file, names.a), b = fetch(adapters_->file, names.b);
  check_shape(a.name, a.shape, {adapters_->rank, p.shape[0]});
  check_shape(b.name, b.shape, {width, adapters_->rank});
  return Addition{width, a.values, b.values};
}

void ModelWeights::add(const Parameter& p, std::vector<float>& values) const {
  const int64_t rank = adapters_->rank;
  int64_t begin = 0;
  for (size_t part = 0; part < p.parts(); ++part) {
    if (!p.part_widths.empty() && part > 0) begin += p.part_widths[part - 1];
    const auto more = addition(p, part);
    if (!more) continue;
    const int64_t in = p.shape[0], out = p.shape[1];
    cpu::parallel_ranges(in, 16, [&](int64_t from, int64_t to) {
      for (int64_t i = from; i < to; ++i)
        for (int64_t c = 0; c < more->width; ++c) {
          double sum = 0;
          for (int64_t r = 0; r < rank; ++r)
            sum += double{more->a[static_cast<size_t>(r * in + i)]} *
                   double{more->b[static_cast<size_t>(c * rank + r)]};
          values[static_cast<size_t>(i * out + begin + c)] +=
              static_cast<float>(adapters_->scale * sum);
        }
    });
  }
}

}  // namespace millrace
