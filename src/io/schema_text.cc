// What a schema says about itself: expectations, the resolved configuration, the documentation.
#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "core/error.h"
#include "io/quote.h"
#include "io/schema.h"

namespace millrace {
namespace {

// In the largest unit that divides it, so that nothing is rounded.
std::string exact_bytes(int64_t bytes) {
  static constexpr std::array<std::pair<const char*, int>, 4> kUnits = {
      {{"TiB", 40}, {"GiB", 30}, {"MiB", 20}, {"KiB", 10}}};
  for (const auto& [name, shift] : kUnits) {
    const int64_t unit = int64_t{1} << shift;
    if (bytes >= unit && bytes % unit == 0) return fmt::format("{}{}", bytes / unit, name);
  }
  return std::to_string(bytes);
}

template <typename Range, typename Text>
std::string join(const Range& range, Text text) {
  std::string result;
  for (const auto& item : range) result += (result.empty() ? "" : ", ") + text(item);
  return result;
}

std::string cell(std::string text) {
  for (size_t at = 0; (at = text.find('|', at)) != text.npos; at += 2) text.insert(at, "\\");
  return text;
}

std::string section_of(const std::string& path) {
  const size_t dot = path.rfind('.');
  return dot == path.npos ? "" : path.substr(0, dot);
}

}  // namespace

std::string Key::type_name() const {
  switch (type_) {
    case Type::integer:
      return "integer";
    case Type::number:
      return "number";
    case Type::boolean:
      return "`true` or `false`";
    case Type::text:
      return "text";
    case Type::choice:
      return "choice";
    case Type::bytes:
      return "size, 0 for no limit";
    case Type::duration:
      return "duration";
    case Type::duration_list:
      return "list of durations";
    case Type::integer_rows:
      return "list of lists of integers";
    case Type::text_list:
      return "list of texts";
  }
  return "";
}

std::string Key::limits() const {
  if (type_ == Type::choice) {
    return "one of " + join(choices_, [](const std::string& word) { return "`" + word + "`"; });
  }
  auto number = [&](double value) {
    return type_ == Type::bytes ? exact_bytes(static_cast<int64_t>(value))
                                : fmt::format("{}", value);
  };
  std::vector<std::string> parts;
  if (std::isfinite(low_)) parts.push_back((low_open_ ? "above " : "at least ") + number(low_));
  if (std::isfinite(high_)) parts.push_back((high_open_ ? "below " : "at most ") + number(high_));
  if (auto_) parts.push_back("or `auto`");
  return join(parts, [](const std::string& part) { return part; });
}

std::string Key::expected() const {
  std::string text;
  switch (type_) {
    case Type::integer:
      text = "an integer";
      break;
    case Type::number:
      text = "a number";
      break;
    case Type::bytes:
      text = "a size such as 8GiB or 512MB, 0 for no limit";
      break;
    case Type::duration:
      text = untimed_ ? "a duration such as 500 (steps), 1e6 tokens or 2 epochs, and no time"
                      : "a duration such as 500 (steps), 1e6 tokens, 2 epochs or 10 minutes";
      break;
    case Type::duration_list:
      text = untimed_ ? "durations such as 500 (steps), 2 epochs or [1 epoch, 500], and no times"
                      : "durations such as 500, 2 epochs or [1 epoch, 10 minutes]";
      break;
    case Type::integer_rows:
      text = "a list of lists of integers such as [[1, 2], [3, 4]]";
      break;
    case Type::text_list:
      text = "a text or a list of texts";
      break;
    case Type::boolean:
    case Type::text:
      text = type_name();
      break;
    case Type::choice:
      return limits();
  }
  const std::string more = limits();
  return more.empty() ? text : text + ", " + more;
}

std::string Key::value_text() const {
  switch (type_) {
    case Type::integer:
    case Type::bytes: {
      const int64_t value = *std::get<int64_t*>(target_);
      if (auto_ && value == -1) return "auto";
      return type_ == Type::bytes ? exact_bytes(value) : std::to_string(value);
    }
    case Type::number:
      return fmt::format("{}", *std::get<double*>(target_));
    case Type::boolean:
      return *std::get<bool*>(target_) ? "true" : "false";
    case Type::text:
    case Type::choice:
      return yaml_text(*std::get<std::string*>(target_));
    case Type::duration:
      return std::get<Duration*>(target_)->str();
    case Type::duration_list:
      return "[" +
             join(*std::get<std::vector<Duration>*>(target_),
                  [](const Duration& value) { return value.str(); }) +
             "]";
    case Type::integer_rows:
      return "[" +
             join(*std::get<IntegerRows*>(target_),
                  [](const std::vector<int64_t>& row) {
                    return "[" + join(row, [](int64_t value) { return std::to_string(value); }) +
                           "]";
                  }) +
             "]";
    case Type::text_list:
      return "[" + join(*std::get<std::vector<std::string>*>(target_), yaml_text) + "]";
  }
  return "";
}

std::string Schema::names_in(const std::string& section) const {
  std::vector<std::string> names;
  for (const Key& key : keys_) {
    std::string_view rest = key.path_;
    if (!section.empty()) {
      if (!rest.starts_with(section + ".")) continue;
      rest.remove_prefix(section.size() + 1);
    }
    std::string name(rest.substr(0, rest.find('.')));
    if (std::find(names.begin(), names.end(), name) == names.end())
      names.push_back(std::move(name));
  }
  if (!alternatives_.section.empty()) {
    if (section.empty()) names.push_back(alternatives_.section);
    if (section == alternatives_.section) names = alternative_names();
  }
  return join(names, [](const std::string& name) { return "`" + name + "`"; });
}

// A default outside its own limits, or an alias that hides a key, is our own mistake.
void Schema::check_declarations() const {
  for (const Key& key : keys_) {
    for (const std::string& alias : key.aliases_) {
      for (const Key& other : keys_) {
        MR_CHECK(other.path_ != alias, "alias `{}` is also a key", alias);
      }
    }
    if (key.set_ || key.required_) continue;
    auto fits = [&](int64_t value) { return key.holds(static_cast<double>(value)); };
    bool good = true;
    switch (key.type_) {
      case Key::Type::integer:
      case Key::Type::bytes: {
        const int64_t value = *std::get<int64_t*>(key.target_);
        good = (key.auto_ && value == -1) || (key.type_ == Key::Type::bytes && value == 0) ||
               fits(value);
        break;
      }
      case Key::Type::number:
        good = key.holds(*std::get<double*>(key.target_));
        break;
      case Key::Type::choice:
        good = std::find(key.choices_.begin(), key.choices_.end(),
                         *std::get<std::string*>(key.target_)) != key.choices_.end();
        break;
      case Key::Type::integer_rows: {
        const auto& rows = *std::get<IntegerRows*>(key.target_);
        good = std::all_of(rows.begin(), rows.end(), [&](const std::vector<int64_t>& row) {
          return std::all_of(row.begin(), row.end(), fits);
        });
        break;
      }
      default:
        break;
    }
    MR_CHECK(good, "the default {} of `{}` is not {}", key.value_text(), key.path_, key.expected());
  }
}

std::string Schema::resolved_yaml() const {
  std::string out;
  write_section("", &out);
  return out;
}

// Keys of one section may be declared apart, but YAML wants them together.
void Schema::write_section(const std::string& section, std::string* out) const {
  const std::string prefix = section.empty() ? "" : section + ".";
  const auto level = static_cast<size_t>(std::count(prefix.begin(), prefix.end(), '.'));
  const std::string indent(2 * level, ' ');
  std::vector<std::string> written;
  for (const Key& key : keys_) {
    if (!key.path_.starts_with(prefix)) continue;
    const size_t dot = key.path_.find('.', prefix.size());
    if (dot == key.path_.npos) {
      *out += fmt::format("{}{}: {}  # {}\n", indent, key.path_.substr(prefix.size()),
                          key.value_text(), printable(key.origin_, 200));
      continue;
    }
    const std::string inner = key.path_.substr(0, dot);
    if (std::find(written.begin(), written.end(), inner) != written.end()) continue;
    written.push_back(inner);
    *out += fmt::format("{}{}:\n", indent, inner.substr(prefix.size()));
    write_section(inner, out);
  }
}

std::string Schema::markdown() const {
  check_declarations();
  std::vector<std::string> sections;
  for (const Key& key : keys_) {
    const std::string section = section_of(key.path_);
    if (std::find(sections.begin(), sections.end(), section) == sections.end()) {
      sections.push_back(section);
    }
  }
  std::string out;
  for (const std::string& section : sections) {
    out += fmt::format(
        "{}## {}\n\n| Key | Type | Default | Allowed | Meaning |\n|---|---|---|---|---|\n",
        out.empty() ? "" : "\n", section.empty() ? "Top level" : section);
    for (const Key& key : keys_) {
      if (section_of(key.path_) != section) continue;
      std::string meaning = key.help_;
      for (const std::string& alias : key.aliases_) {
        meaning += fmt::format("{}Also written `{}`.", meaning.empty() ? "" : " ", alias);
      }
      out += fmt::format("| `{}` | {} | {} | {} | {} |\n", key.path_, key.type_name(),
                         key.required_ ? "required" : cell("`" + key.default_text_ + "`"),
                         cell(key.limits()), cell(meaning));
    }
  }
  if (!alternatives_.section.empty())
    out += fmt::format("\n## {}\n\n{}\n", alternatives_.section, alternatives_.help);
  return out;
}

}  // namespace millrace
