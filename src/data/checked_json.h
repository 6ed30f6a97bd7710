// The headers of what the cache keeps: a JSON object with a checksum of itself. The checksum tells
// that a disk has lost something; whoever can write into the folder can make it right again, so
// every value is looked at before it is used.
#pragma once
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "core/error.h"
#include "core/file.h"

namespace millrace {

class CheckedJson {
 public:
  // Error when the text is not what was written. `name`: the file, for messages.
  CheckedJson(std::string_view text, fs::path name);

  // The value under a key, as what it must be; Error when it is anything else.
  int64_t integer(const char* key, int64_t least, int64_t most) const;
  bool flag(const char* key) const;
  std::string text(const char* key) const;
  std::string digest(const char* key) const;  // as digest_of writes them
  const nlohmann::json& list(const char* key) const;
  const nlohmann::json& value(const char* key) const;
  bool has(const char* key) const { return object_.contains(key); }
  // A part of such a value; `key` is for messages.
  int64_t integer(const nlohmann::json& part, const char* key, int64_t least, int64_t most) const;

  Error refuse(const std::string& expected, const std::string& got) const;

 private:
  nlohmann::json object_;
  fs::path name_;
};

// What CheckedJson reads, and a file of it as it is.
std::string checked_json_text(nlohmann::json object);
std::string read_header_file(const fs::path& path);

bool is_digest(std::string_view text);  // as digest_of writes them
// Error when what a header says it was made of is not what is wanted.
void check_key(const std::string& found, const std::string& wanted, const fs::path& header);

}  // namespace millrace
