#include "train/model_weights.h"

#include "cpu/parallel.h"
#include "model/external_config.h"
#include "model/tuning.h"
#include "train/weights.h"

namespace millrace {
namespace {

constexpr int kMaxDepth = 16;  // of additions to additions

NamedTensor fetch(const SafetensorsFile& file, const std::string& name) {
  const auto* entry = file.find(name);
  if (!entry)
    throw Error({.code = ErrorCode::failure,
                 .what = "tensor " + name + " is missing",
                 .where = file.path().string(),
                 .remedy = "load weights of a model with this config"});
  return {name, entry->shape, file.to_f32(*entry)};
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

struct ModelWeights::Adapters {
  explicit Adapters(const fs::path& folder) : file(folder / kAdapterModel.weights) {
    const fs::path name = folder / kAdapterModel.config;
    const ExternalConfig config(read_file(name, 16 << 20), name.string());
    constexpr const char* kPlain = "plain low-rank additions";
    if (config.text("peft_type").value_or("") != "LORA") config.refuse("peft_type", "LORA", kPlain);
    for (const char* field : {"use_dora", "use_rslora"})
      if (config.boolean(field).value_or(false)) config.refuse(field, "false", kPlain);
    if (config.text("bias").value_or("none") != "none") config.refuse("bias", "none", kPlain);
    for (const char* field : {"modules_to_save", "layer_replication"})
      if (config.has(field)) config.refuse(field, "null", kPlain);
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
    return NamedTensor{name, found.entry->shape, found.file->to_f32(*found.entry)};
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
  for (size_t part = 0; part < p.parts(); ++part)
    check_shape(p.external_name(part), find_external(*files_, p.external_name(part)).entry->shape,
                external_shape(p, part));
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
