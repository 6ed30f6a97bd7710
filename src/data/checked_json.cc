#include "data/checked_json.h"

#include <algorithm>

#include "data/checked_file.h"
#include "io/json_parser.h"
#include "io/quote.h"

namespace millrace {
namespace {

using Json = nlohmann::json;

constexpr const char* kSum = "xxh3";
constexpr int64_t kMostBytes = 64 << 20;
// Writing JSON takes a level of the stack for each of its own, reading it does not: what is deeper
// than anything we write must not come so far.
constexpr int kDeepest = 8;

std::string shown(const Json& value) {
  return value.is_structured() ? value.type_name() : printable(value.dump(), 40);
}

}  // namespace

CheckedJson::CheckedJson(std::string_view text, fs::path name) : name_(std::move(name)) {
  const auto shallow = [&](int depth, Json::parse_event_t, const Json&) {
    if (depth > kDeepest) throw refuse("what was written", "other bytes");
    return true;
  };
  try {
    object_ = parse_json(text, shallow);
    const auto sum = object_.at(kSum).get<std::string>();
    object_.erase(kSum);
    if (digest_of(object_.dump(1)).xxh3 == sum) return;
  } catch (const Json::exception&) {
    // Below.
  }
  throw refuse("what was written", "other bytes");
}

Error CheckedJson::refuse(const std::string& expected, const std::string& got) const {
  return damaged_cache(name_, expected, got);
}

const Json& CheckedJson::value(const char* key) const {
  const auto found = object_.find(key);
  if (found == object_.end()) throw refuse(fmt::format("a value for `{}`", key), "none");
  return *found;
}

int64_t CheckedJson::integer(const Json& part, const char* key, int64_t least, int64_t most) const {
  // An unsigned number may be one that int64_t does not hold.
  const bool fits = part.is_number_unsigned()
                        ? part.get<uint64_t>() <= static_cast<uint64_t>(INT64_MAX)
                        : part.is_number_integer();
  if (!fits || part.get<int64_t>() < least || part.get<int64_t>() > most)
    throw refuse(fmt::format("{} from {} to {}", key, least, most), shown(part));
  return part.get<int64_t>();
}

int64_t CheckedJson::integer(const char* key, int64_t least, int64_t most) const {
  return integer(value(key), key, least, most);
}

bool CheckedJson::flag(const char* key) const {
  const Json& found = value(key);
  if (!found.is_boolean()) throw refuse(fmt::format("{}: true or false", key), shown(found));
  return found.get<bool>();
}

std::string CheckedJson::text(const char* key) const {
  const Json& found = value(key);
  if (!found.is_string()) throw refuse(fmt::format("a text for `{}`", key), shown(found));
  return found.get<std::string>();
}

std::string CheckedJson::digest(const char* key) const {
  std::string found = text(key);
  if (!is_digest(found)) throw refuse(fmt::format("a checksum for `{}`", key), quote(found, 40));
  return found;
}

const Json& CheckedJson::list(const char* key) const {
  const Json& found = value(key);
  if (!found.is_array()) throw refuse(fmt::format("a list for `{}`", key), shown(found));
  return found;
}

std::string checked_json_text(Json object) {
  object[kSum] = digest_of(object.dump(1)).xxh3;
  return object.dump(1) + "\n";
}

std::string read_header_file(const fs::path& path) { return read_file(path, kMostBytes); }

void check_key(const std::string& found, const std::string& wanted, const fs::path& header) {
  if (found != wanted) throw damaged_cache(header, "key " + wanted, "key " + printable(found, 40));
}

bool is_digest(std::string_view text) {
  return text.size() == 32 && std::all_of(text.begin(), text.end(), [](char c) {
           return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f');
         });
}

}  // namespace millrace
