// A tokenizer.json of BPE: its values as what they must be, and what is said of those that are not.
#pragma once
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "core/error.h"
#include "io/json_parser.h"
#include "io/quote.h"

namespace millrace {

class BpeFile {
 public:
  BpeFile(std::string_view text, std::string name) : name_(std::move(name)) {
    try {
      root_ = parse_json(text);
    } catch (const nlohmann::json::parse_error& e) {
      throw refuse("", "JSON", fmt::format("a fault at byte {}", e.byte));
    } catch (const nlohmann::json::exception&) {  // 1e999
      throw refuse("", "JSON", "a number that is too large");
    }
    if (!root_.is_object()) throw refuse("", "an object", root_.type_name());
  }

  Error refuse(const std::string& key, const std::string& expected, const std::string& got) const {
    return Error(
        {.code = ErrorCode::config,
         .what = "this tokenizer.json cannot be used",
         .where = key.empty() ? name_ : name_ + ": " + key,
         .expected = expected,
         .got = got,
         .remedy = "take a tokenizer.json of byte-level BPE, as GPT-2 and Llama 3 have it, or of "
                   "BPE with byte_fallback, as Llama 2 has it"});
  }
  const nlohmann::json& root() const { return root_; }
  const std::string& name() const { return name_; }

  // The value of a key, which may be missing: null then.
  static const nlohmann::json& get(const nlohmann::json& object, const char* key) {
    static const nlohmann::json none;
    const auto found = object.find(key);
    return found == object.end() ? none : *found;
  }
  const nlohmann::json& object(const nlohmann::json& from, const char* key) const {
    const nlohmann::json& value = get(from, key);
    if (!value.is_object()) throw refuse(key, "an object", value.type_name());
    return value;
  }
  std::string string(const nlohmann::json& from, const char* key) const {
    const nlohmann::json& value = get(from, key);
    if (!value.is_string()) throw refuse(key, "a string", value.type_name());
    return value.get<std::string>();
  }
  bool flag(const nlohmann::json& from, const char* key, bool otherwise = false) const {
    const nlohmann::json& value = get(from, key);
    if (value.is_null()) return otherwise;
    if (!value.is_boolean()) throw refuse(key, "true or false", show(value));
    return value.get<bool>();
  }
  // Ids may leave gaps, but tables are as long as the largest one.
  int32_t id(const nlohmann::json& value, const std::string& key) const {
    const nlohmann::json& model = get(root_, "model");
    const size_t most =
        get(model, "vocab").size() + get(root_, "added_tokens").size() + kMostUnusedIds;
    if (!value.is_number_integer() || value < 0 || value >= most)
      throw refuse(key, fmt::format("an id from 0 to {}", most - 1), show(value));
    return value.get<int32_t>();
  }
  static std::string show(const nlohmann::json& value) {
    return printable(value.dump(-1, ' ', /*ensure_ascii=*/true), 60);
  }

 private:
  static constexpr size_t kMostUnusedIds = 1 << 16;
  std::string name_;
  nlohmann::json root_;
};

}  // namespace millrace
