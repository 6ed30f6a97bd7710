#include "model/tuning.h"

#include <fmt/ranges.h>
#include <fnmatch.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <set>

namespace millrace {
namespace {

constexpr const char* kWeight = ".weight";

std::string without(const std::string& name, std::string_view suffix) {
  return name.ends_with(suffix) ? name.substr(0, name.size() - suffix.size()) : name;
}

// "layers.3.mlp.up" -> "layers.*.mlp.up": what layers have in common.
std::string kind_of(const std::string& name) {
  std::string kind;
  for (size_t at = 0; at < name.size();) {
    const size_t end = std::min(name.find('.', at), name.size());
    const std::string word = name.substr(at, end - at);
    const bool number =
        std::all_of(word.begin(), word.end(), [](char c) { return std::isdigit(c); });
    kind += (at > 0 ? "." : "") + (number ? std::string("*") : word);
    at = end + 1;
  }
  return kind;
}

// Which of the names a pattern of this key matches.
std::vector<std::string> matched(const std::vector<std::string>& names,
                                 const std::vector<std::string>& patterns, const char* key,
                                 Schema& schema) {
  std::set<std::string> found;
  for (const std::string& pattern : patterns) {
    const size_t before = found.size();
    bool any = false;
    for (const std::string& name : names)
      if (matches_name(pattern, name)) {
        any = true;
        found.insert(name);
      }
    if (any || found.size() > before) continue;
    std::set<std::string> kinds;
    for (const std::string& name : names) kinds.insert(kind_of(name));
    throw Error({.code = ErrorCode::config,
                 .what = fmt::format("`{}` has a pattern that matches nothing", key),
                 .where = schema.where(key),
                 .expected = fmt::format("one that matches some of {}", fmt::join(kinds, ", ")),
                 .got = pattern,
                 .remedy = fmt::format("{}=[\"{}\"]", key, kind_of(names.front()))});
  }
  return {found.begin(), found.end()};
}

class TunedModel : public Model {
 public:
  TunedModel(std::unique_ptr<Model> model, const TuningSettings& settings, Schema& schema)
      : model_(std::move(model)), settings_(settings) {
    const auto table = model_->parameters();
    const LoraSettings& lora = settings.lora;
    std::vector<std::string> names;
    for (const Parameter& p : table) names.push_back(p.name);
    const auto frozen = matched(names, settings.freeze, "model.freeze", schema);
    frozen_.insert(frozen.begin(), frozen.end());
    if (lora.rank > 0) {
      const auto layers = matched(linear_layers(), lora.targets, "model.lora.targets", schema);
      adapters_ = {{layers.begin(), layers.end()},
                   lora.rank,
                   lora.alpha / static_cast<double>(lora.rank),
                   lora.dropout};
      frozen_.insert(names.begin(), names.end());
    }
    table_ = table;
    for (Parameter& p : table_) p.trained = !frozen_.contains(p.name);
    for (const Parameter& p : table)
      if (adapters_.layers.contains(without(p.name, kWeight)) && p.name.ends_with(kWeight))
        add_adapter(p);
    if (std::none_of(table_.begin(), table_.end(), [](const Parameter& p) { return p.trained; }))
      throw Error({.code = ErrorCode::config,
                   .what = "nothing is left to train",
                   .where = schema.where(lora.rank > 0 ? "model.lora.targets" : "model.freeze"),
                   .expected = "at least one parameter that is not frozen",
                   .got = fmt::format("all {} are", table_.size()),
                   .remedy = "fewer patterns in model.freeze, or model.lora.rank=8"});
  }

  void declare(Schema& schema) override { model_->declare(schema); }
  void resolve(Schema& schema, int64_t vocab_size, MaxLengths lengths) override {
    model_->resolve(schema, vocab_size, lengths);
  }
  std::vector<Parameter> parameters() const override { return table_; }
  Value build_loss(Builder& b, BatchShape shape) const override {
    return model_->build_loss(adapted(b), shape);
  }
  Value build_decode(Builder& b, BatchShape shape, int64_t capacity) const override {
    return model_->build_decode(adapted(b), shape, capacity);
  }
  void build_encode(Builder& b, BatchShape shape, int64_t capacity) const override {
    model_->build_encode(adapted(b), shape, capacity);
  }
  bool logits_are_all() const override { return model_->logits_are_all(); }
  Takes takes() const override { return model_->takes(); }
  int64_t own_source_length() const override { return model_->own_source_length(); }
  int64_t vocab_size() const override { return model_->vocab_size(); }
  MaxLengths max_lengths() const override { return model_->max_lengths(); }
  bool read_external_config(const ExternalConfig& config) override {
    return model_->read_external_config(config);
  }
  std::vector<std::string> external_constants() const override {
    return model_->external_constants();
  }

  std::string external_config() const override {
    if (adapters_.layers.empty()) return model_->external_config();
    std::vector<std::string> modules;
    bool plain = false;
    for (const Parameter& p : table_)
      if (!p.adapter && adapters_.layers.contains(without(p.name, kWeight)) &&
          p.name.ends_with(kWeight)) {
        plain = plain || !p.transposed;
        for (size_t part = 0; part < p.parts(); ++part)
          modules.push_back(without(p.external_name(part), kWeight));
      }
    const nlohmann::ordered_json j = {{"peft_type", "LORA"},
                                      {"task_type", "CAUSAL_LM"},
                                      {"base_model_name_or_path", settings_.init_from},
                                      {"r", adapters_.rank},
                                      {"lora_alpha", settings_.lora.alpha},
                                      {"lora_dropout", settings_.lora.dropout},
                                      {"target_modules", modules},
                                      {"fan_in_fan_out", plain},
                                      {"bias", "none"},
                                      {"inference_mode", true}};
    return j.dump(2) + "\n";
  }

 private:
  Builder& adapted(Builder& b) const {
    b.adapters = adapters_;
    b.frozen = frozen_;
    return b;
  }

  // Built once to be asked: only the graph knows which matrices are linear layers.
  std::vector<std::string> linear_layers() const {
    Builder b;
    const MaxLengths lengths = model_->max_lengths();
    model_->build_loss(b, {.batch = 1, .length = lengths.target, .source = lengths.source});
    MR_CHECK(!b.linear_layers.empty(), "a model without linear layers");
    return {b.linear_layers.begin(), b.linear_layers.end()};
  }

  // Two rows for a weight [in, out]: a [in, rank], drawn as PyTorch draws a linear layer, and b
  // [rank, out], zero, so that the model begins as it was. Of a weight that is several outside,
  // each has its part of b and the whole of a.
  void add_adapter(const Parameter& weight) {
    const int64_t in = weight.shape[0], out = weight.shape[1];
    Parameter a, b;
    const std::string layer = without(weight.name, kWeight);
    a.name = layer + ".lora_a";
    a.shape = {in, adapters_.rank};
    a.init_std = 1 / std::sqrt(3.0 * static_cast<double>(in));
    b.name = layer + ".lora_b";
    b.shape = {adapters_.rank, out};
    b.init = Parameter::Init::zeros;
    b.part_widths = weight.part_widths;
    a.transposed = b.transposed = a.adapter = b.adapter = true;
    for (size_t part = 0; part < weight.parts(); ++part) {
      const AdapterNames names = adapter_names(weight.external_name(part));
      a.external.push_back(names.a);
      b.external.push_back(names.b);
    }
    table_.push_back(std::move(a));
    table_.push_back(std::move(b));
  }

  std::unique_ptr<Model> model_;
  TuningSettings settings_;
  Adapters adapters_;
  std::set<std::string> frozen_;
  std::vector<Parameter> table_;
};

}  // namespace

void TuningSettings::declare(Schema& s) {
  s.text("model.init_from", &init_from)
      .help(
          "Fine-tuning: where the weights, the model's sizes and its tokenizer come from: a folder "
          "of Hugging Face (GPT-2 and Llama shapes), a run or a checkpoint; empty: new weights.");
  s.text_list("model.freeze", &freeze)
      .help(
          "Parameters that stay as they are: patterns as a shell has them, over a name or any of "
          "its words, as [embedding, \"layers.[0-5]\"]. They have no gradients and no moments.");
  s.integer("model.lora.rank", &lora.rank)
      .range(0, 65536)
      .help(
          "LoRA: linear layers get an addition of this rank, and nothing else trains; 0: none. "
          "Checkpoints hold the additions alone, as PEFT does; export merges them. Queries, keys "
          "and values are one layer, attention.qkv, and one addition: they share its first matrix, "
          "lora_A, where PEFT has one of this rank for each.");
  s.number("model.lora.alpha", &lora.alpha)
      .above(0)
      .max(1e6)
      .help("The addition is multiplied with alpha / rank.");
  s.text_list("model.lora.targets", &lora.targets)
      .help(
          "Which linear layers get one: patterns as those of model.freeze, over the names that "
          "layers have here: attention.qkv, attention.output, mlp.up. PEFT's q_proj, k_proj and "
          "v_proj (GPT-2: c_attn) are attention.qkv, as a whole.");
  s.number("model.lora.dropout", &lora.dropout)
      .min(0)
      .below(1)
      .help("Dropout of what goes into the additions.");
}

bool matches_name(const std::string& pattern, const std::string& name) {
  for (size_t begin = 0; begin < name.size();) {
    for (size_t end = begin; end < name.size();) {
      end = std::min(name.find('.', end + 1), name.size());
      if (fnmatch(pattern.c_str(), name.substr(begin, end - begin).c_str(), 0) == 0) return true;
    }
    const size_t next = name.find('.', begin);
    if (next == name.npos) break;
    begin = next + 1;
  }
  return false;
}

std::unique_ptr<Model> tuned_model(std::unique_ptr<Model> model, const TuningSettings& settings,
                                   Schema& schema) {
  if (settings.freeze.empty() && settings.lora.rank == 0) return model;
  if (settings.lora.rank > 0 && settings.init_from.empty())
    throw Error({.code = ErrorCode::config,
                 .what = "low-rank additions want weights to be added to",
                 .where = schema.where("model.lora.rank"),
                 .expected = "model.init_from: checkpoints hold the additions alone",
                 .got = "new weights",
                 .remedy = "model.init_from=FOLDER, or model.lora.rank=0"});
  return std::make_unique<TunedModel>(std::move(model), settings, schema);
}

AdapterNames adapter_names(const std::string& weight) {
  const std::string module = "base_model.model." + without(weight, kWeight);
  return {module + ".lora_A.weight", module + ".lora_B.weight"};
}

bool has_adapters(const Model& model) {
  const auto table = model.parameters();
  return std::any_of(table.begin(), table.end(), [](const Parameter& p) { return p.adapter; });
}

}  // namespace millrace
