#include "model/model.h"

#include <nlohmann/json.hpp>

namespace millrace {

#define MR_MODEL(name) std::unique_ptr<Model> make_##name##_model();
#include "model/model_list.inc"
#undef MR_MODEL

std::vector<std::string> model_families() {
  return {
#define MR_MODEL(name) #name,
#include "model/model_list.inc"
#undef MR_MODEL
  };
}

std::unique_ptr<Model> make_model(std::string_view family) {
#define MR_MODEL(name) \
  if (family == #name) return make_##name##_model();
#include "model/model_list.inc"
#undef MR_MODEL
  MR_CHECK(false, "no model family {}", family);
  return nullptr;
}

void refuse_sizes(Schema& schema, const char* key, const std::string& what,
                  const std::string& expected, const std::string& remedy) {
  throw Error({.code = ErrorCode::config,
               .what = what,
               .where = schema.where(key),
               .expected = expected,
               .got = what,
               .remedy = remedy});
}

void set_auto(Schema& schema, const char* key, int64_t& field, int64_t value, const char* why) {
  if (field >= 0) return;
  field = value;
  schema.note(key, why);
}

void resolve_vocabulary(Schema& schema, int64_t& field, int64_t tokenizer_size) {
  constexpr const char* kKey = "model.vocab_size";
  set_auto(schema, kKey, field, tokenizer_size, "auto: from the tokenizer");
  if (field < tokenizer_size)
    refuse_sizes(schema, kKey,
                 fmt::format("model.vocab_size {} is smaller than the tokenizer's {}", field,
                             tokenizer_size),
                 fmt::format("at least {}", tokenizer_size), "model.vocab_size=auto");
}

void resolve_lengths(Schema& schema, MaxLengths& field, MaxLengths lengths) {
  if (field == MaxLengths{}) field = lengths;
  for (const auto& [key, has, wanted] :
       {std::tuple{"training.max_length", field.target, lengths.target},
        {"training.max_source_length", field.source, lengths.source}})
    if (wanted > has)
      refuse_sizes(schema, key,
                   fmt::format("{} {} is more than the model has positions for", key, wanted),
                   fmt::format("at most {}", has), fmt::format("{}={}", key, has));
}

std::string own_config_text(std::string_view family, const Model& model,
                            const nlohmann::ordered_json& keys) {
  nlohmann::ordered_json own = {{"family", family}, {"max_length", model.max_lengths().target}};
  if (model.takes().pairs) own["max_source_length"] = model.max_lengths().source;
  own["model"] = keys;
  const nlohmann::ordered_json j = {{"model_type", "millrace"},
                                    {"millrace", own},
                                    {"bos_token_id", nullptr},
                                    {"eos_token_id", nullptr},
                                    {"torch_dtype", "float32"}};
  return j.dump(2) + "\n";
}

bool read_own_config(std::string_view family, Model& model, const ExternalConfig& config) {
  constexpr const char* kRemedy = "a config.json as Millrace wrote it";
  if (config.text("model_type").value_or("") != "millrace") return false;
  const auto own = config.object("millrace");
  if (!own) config.refuse("millrace", "an object", kRemedy);
  if (own->text("family").value_or("") != family) return false;
  const auto keys = own->object("model");
  if (!keys) own->refuse("model", "an object", kRemedy);
  const bool states = model.takes().states;
  const int64_t width = keys->required_integer(states ? "channels" : "vocab_size", states ? 1 : 2,
                                               states ? 1 << 16 : 1 << 24);
  MaxLengths lengths{own->required_integer("max_length", 1, 1 << 20), 0};
  if (model.takes().pairs) lengths.source = own->required_integer("max_source_length", 1, 1 << 20);
  Schema schema;
  model.declare(schema);
  schema.load_text(fmt::format("{{\"model\": {}}}", keys->json()), config.name());
  schema.finish();
  model.resolve(schema, width, lengths);
  return true;
}

std::unique_ptr<Model> model_from_external_config(std::string_view json, const std::string& name,
                                                  std::string* family_found) {
  const ExternalConfig config(json, name);
  for (const std::string& family : model_families()) {
    auto model = make_model(family);
    if (!model->read_external_config(config)) continue;
    if (family_found) *family_found = family;
    return model;
  }
  config.refuse("model_type", "gpt2 or llama, or one that Millrace wrote",
                "a model of a family that Millrace has");
}

}  // namespace millrace
