// A config.json from outside (Hugging Face, or a checkpoint of ours), read field by field with
// types and ranges checked: its bytes are not trusted.
#pragma once
#include <memory>
#include <optional>
#include <string>
#include <string_view>

namespace millrace {

class ExternalConfig {
 public:
  // Error when the text is not one JSON object of reasonable size. `name` is the file's.
  ExternalConfig(std::string_view json, std::string name);
  ~ExternalConfig();
  ExternalConfig(ExternalConfig&&) noexcept;

  // A field that is absent or null has no value; one of another type, or outside the limits, is an
  // Error that names it.
  std::optional<int64_t> integer(const std::string& field, int64_t low, int64_t high) const;
  std::optional<double> number(const std::string& field, double above, double max) const;
  std::optional<bool> boolean(const std::string& field) const;
  std::optional<std::string> text(const std::string& field) const;
  // An object inside, as a config whose fields are named "outer.inner" in messages.
  std::optional<ExternalConfig> object(const std::string& field) const;
  bool has(const std::string& field) const;  // there, and not null
  bool is_text(const std::string& field) const;
  std::string json() const;         // the whole object as text again
  const std::string& name() const;  // of the file

  // The same, but the field must be there.
  int64_t required_integer(const std::string& field, int64_t low, int64_t high) const;

  // Refuses the config because of this field: what was expected; what it is stands in the message.
  [[noreturn]] void refuse(const std::string& field, const std::string& expected,
                           const std::string& remedy) const;

 private:
  struct Content;
  ExternalConfig(std::unique_ptr<Content> content);
  std::string shown(const std::string& field) const;  // the value as JSON, shortened
  std::unique_ptr<Content> content_;
};

}  // namespace millrace
