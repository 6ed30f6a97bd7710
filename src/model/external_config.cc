#include "model/external_config.h"

#include <cmath>

#include "core/error.h"
#include "io/json_parser.h"
#include "io/quote.h"

namespace millrace {
namespace {

using Json = nlohmann::json;
constexpr size_t kMaxBytes =
    1 << 20;                   // a config has a few kilobytes; the parser needs many times more
constexpr int kMaxDepth = 50;  // writing a value out again takes stack for every level
constexpr const char* kDamaged = "fetch or write the file again";

}  // namespace

struct ExternalConfig::Content {
  std::string name;    // of the file
  std::string prefix;  // "rope_parameters." inside that object
  Json json;

  const Json* find(const std::string& field) const {
    const auto at = json.find(field);
    return at == json.end() || at->is_null() ? nullptr : &*at;
  }
};

ExternalConfig::ExternalConfig(std::string_view json, std::string name)
    : content_(std::make_unique<Content>()) {
  content_->name = std::move(name);
  auto damaged = [&](const std::string& expected, const std::string& got) {
    return Error({.code = ErrorCode::config,
                  .what = "not the config of a model",
                  .where = content_->name,
                  .expected = expected,
                  .got = got,
                  .remedy = kDamaged});
  };
  if (json.size() > kMaxBytes)
    throw damaged(fmt::format("at most {} bytes", kMaxBytes), fmt::format("{}", json.size()));
  try {
    content_->json = parse_json(json, [&](int depth, Json::parse_event_t, Json&) {
      if (depth > kMaxDepth) throw damaged(fmt::format("at most {} levels", kMaxDepth), "more");
      return true;
    });
  } catch (const Json::exception& e) {
    throw damaged("JSON", quote(e.what(), 200));
  }
  if (!content_->json.is_object()) throw damaged("a JSON object", content_->json.type_name());
}
ExternalConfig::ExternalConfig(std::unique_ptr<Content> content) : content_(std::move(content)) {}
ExternalConfig::~ExternalConfig() = default;
ExternalConfig::ExternalConfig(ExternalConfig&&) noexcept = default;

std::string ExternalConfig::shown(const std::string& field) const {
  const Json* value = content_->find(field);
  return value ? quote(value->dump(-1, ' ', true, Json::error_handler_t::replace), 80)
               : "nothing there";
}

void ExternalConfig::refuse(const std::string& field, const std::string& expected,
                            const std::string& remedy) const {
  const std::string full = content_->prefix + field;
  throw Error({.code = ErrorCode::config,
               .what = fmt::format("`{}` is not one that Millrace can take", full),
               .where = fmt::format("{}: `{}`", content_->name, full),
               .expected = expected,
               .got = shown(field),
               .remedy = remedy});
}

std::optional<int64_t> ExternalConfig::integer(const std::string& field, int64_t low,
                                               int64_t high) const {
  const Json* value = content_->find(field);
  if (!value) return std::nullopt;
  // An unsigned number above int64 would be read as a negative one.
  const bool fits =
      value->is_number_integer() &&
      (!value->is_number_unsigned() || value->get<uint64_t>() <= static_cast<uint64_t>(high));
  if (!fits || value->get<int64_t>() < low || value->get<int64_t>() > high)
    refuse(field, fmt::format("an integer from {} to {}", low, high), kDamaged);
  return value->get<int64_t>();
}

int64_t ExternalConfig::required_integer(const std::string& field, int64_t low,
                                         int64_t high) const {
  const auto value = integer(field, low, high);
  if (!value) refuse(field, fmt::format("an integer from {} to {}", low, high), kDamaged);
  return *value;
}

std::optional<double> ExternalConfig::number(const std::string& field, double above,
                                             double max) const {
  const Json* value = content_->find(field);
  if (!value) return std::nullopt;
  const double number = value->is_number() ? value->get<double>() : NAN;
  if (!(number > above && number <= max))
    refuse(field, fmt::format("a number above {}, at most {}", above, max), kDamaged);
  return number;
}

std::optional<bool> ExternalConfig::boolean(const std::string& field) const {
  const Json* value = content_->find(field);
  if (!value) return std::nullopt;
  if (!value->is_boolean()) refuse(field, "true or false", kDamaged);
  return value->get<bool>();
}

std::optional<std::string> ExternalConfig::text(const std::string& field) const {
  const Json* value = content_->find(field);
  if (!value) return std::nullopt;
  if (!value->is_string()) refuse(field, "a text", kDamaged);
  return value->get<std::string>();
}

std::optional<ExternalConfig> ExternalConfig::object(const std::string& field) const {
  const Json* value = content_->find(field);
  if (!value) return std::nullopt;
  if (!value->is_object()) refuse(field, "an object", kDamaged);
  auto inside = std::make_unique<Content>();
  inside->name = content_->name;
  inside->prefix = content_->prefix + field + ".";
  inside->json = *value;
  return ExternalConfig(std::move(inside));
}

bool ExternalConfig::has(const std::string& field) const { return content_->find(field); }

bool ExternalConfig::is_text(const std::string& field) const {
  const Json* value = content_->find(field);
  return value && value->is_string();
}

const std::string& ExternalConfig::name() const { return content_->name; }

std::string ExternalConfig::json() const {
  return content_->json.dump(-1, ' ', true, Json::error_handler_t::replace);
}

}  // namespace millrace
