#include "model/model.h"

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

std::optional<ExternalConfig> own_config(const ExternalConfig& config, std::string_view family) {
  if (config.text("model_type").value_or("") != "millrace") return std::nullopt;
  auto own = config.object("millrace");
  if (!own) config.refuse("millrace", "an object", "a config.json as Millrace wrote it");
  if (own->text("family").value_or("") != family) return std::nullopt;
  return own;
}

int64_t load_own_keys(Schema& schema, const ExternalConfig& config, const ExternalConfig& own) {
  const auto keys = own.object("model");
  if (!keys) own.refuse("model", "an object", "a config.json as Millrace wrote it");
  const int64_t vocab_size = keys->required_integer("vocab_size", 2, 1 << 24);
  schema.load_text(fmt::format("{{\"model\": {}}}", keys->json()), config.name());
  schema.finish();
  return vocab_size;
}

std::unique_ptr<Model> model_from_external_config(std::string_view json, const std::string& name) {
  const ExternalConfig config(json, name);
  for (const std::string& family : model_families()) {
    auto model = make_model(family);
    if (model->read_external_config(config)) return model;
  }
  config.refuse("model_type", "gpt2 or llama, or one that Millrace wrote",
                "a model of a family that Millrace has");
}

}  // namespace millrace
