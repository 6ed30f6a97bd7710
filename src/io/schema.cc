// Declaring, loading and overriding. What the schema prints is in schema_text.cc.
#include "io/schema.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <optional>
#include <utility>

#include "core/error.h"
#include "core/text.h"
#include "io/quote.h"

namespace millrace {
namespace {

bool is_digit(char c) { return c >= '0' && c <= '9'; }

// The text of a number as from_chars wants it, or nothing: no "nan", "inf" or hexadecimal, "_" only
// between digits ("1_000_000").
std::optional<std::string> number_text(const YamlNode& node) {
  if (node.kind != YamlNode::Kind::scalar || node.quoted) return std::nullopt;
  const std::string& text = node.text;
  std::string result;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '_') {
      if (i == 0 || i + 1 == text.size() || !is_digit(text[i - 1]) || !is_digit(text[i + 1])) {
        return std::nullopt;
      }
    } else if (is_digit(text[i]) || std::string_view("+-.eE").find(text[i]) != std::string::npos) {
      result += text[i];
    } else {
      return std::nullopt;
    }
  }
  if (result.starts_with('+') && !result.starts_with("+-")) result.erase(0, 1);
  return result;
}

std::optional<double> to_double(const std::string& text) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

bool is_auto(const YamlNode& node) {
  return node.kind == YamlNode::Kind::scalar && node.text == "auto";
}

std::string describe(const YamlNode& node) {
  switch (node.kind) {
    case YamlNode::Kind::null:
      return "nothing";
    case YamlNode::Kind::list:
      return "a list";
    case YamlNode::Kind::map:
      return "a map of keys";
    case YamlNode::Kind::scalar:
      break;
  }
  return (node.quoted ? "the text " : "") + quote(node.text);
}

std::string_view last_word(std::string_view path) { return path.substr(path.rfind('.') + 1); }

}  // namespace

bool Key::has_order() const {
  return type_ == Type::integer || type_ == Type::number || type_ == Type::bytes ||
         type_ == Type::integer_rows;
}

Key& Key::min(double low) {
  MR_CHECK(has_order(), "{} has no limits", path_);
  low_ = low;
  return *this;
}

Key& Key::max(double high) {
  MR_CHECK(has_order(), "{} has no limits", path_);
  high_ = high;
  return *this;
}

Key& Key::above(double low) {
  low_open_ = true;
  return min(low);
}

Key& Key::below(double high) {
  high_open_ = true;
  return max(high);
}

Key& Key::allow_auto() {
  MR_CHECK(type_ == Type::integer || type_ == Type::bytes, "{} cannot be auto", path_);
  auto_ = true;
  default_text_ = value_text();
  return *this;
}

Key& Key::help(std::string meaning) {
  help_ = std::move(meaning);
  return *this;
}

Key& Key::alias(std::string old_path) {
  aliases_.push_back(std::move(old_path));
  return *this;
}

Key& Key::untimed() {
  MR_CHECK(type_ == Type::duration || type_ == Type::duration_list, "{} is no duration", path_);
  untimed_ = true;
  return *this;
}

Key& Key::required() {
  required_ = true;
  return *this;
}

bool Key::holds(double value) const {
  return (low_open_ ? value > low_ : value >= low_) &&
         (high_open_ ? value < high_ : value <= high_);
}

bool Key::parse_number(const YamlNode& node, double* value) const {
  const auto text = number_text(node);
  const auto number = text ? to_double(*text) : std::nullopt;
  if (!number || !holds(*number)) return false;
  *value = *number;
  return true;
}

bool Key::parse_integer(const YamlNode& node, int64_t* value) const {
  if (auto_ && is_auto(node)) {
    *value = -1;
    return true;
  }
  const auto text = number_text(node);
  if (!text) return false;
  int64_t whole = 0;
  const char* last = text->data() + text->size();
  if (const auto [end, error] = std::from_chars(text->data(), last, whole); end == last) {
    if (error != std::errc()) return false;
  } else {  // 1e3 and 3e8 are integers too, as long as a double holds them exactly
    const auto number = to_double(*text);
    if (!number || *number != std::floor(*number) || !(std::fabs(*number) <= 0x1p53)) return false;
    whole = static_cast<int64_t>(*number);
  }
  if ((auto_ && whole < 0) || !holds(static_cast<double>(whole))) return false;
  *value = whole;
  return true;
}

bool Key::parse_bytes_text(const YamlNode& node, int64_t* value) const {
  if (auto_ && is_auto(node)) {
    *value = -1;
    return true;
  }
  if (node.kind != YamlNode::Kind::scalar) return false;
  const int64_t size = parse_bytes(node.quoted ? node.text : number_text(node).value_or(node.text));
  if (size < 0 || (size > 0 && !holds(static_cast<double>(size)))) return false;
  *value = size;
  return true;
}

bool Key::parse_duration_text(const YamlNode& node, Duration* value) const {
  Duration duration;
  if (node.kind != YamlNode::Kind::scalar || !parse_duration(node.text, &duration) ||
      (untimed_ && duration.unit == Duration::Unit::seconds))
    return false;
  *value = duration;
  return true;
}

const YamlNode* Key::assign(const YamlNode& node) {
  const bool scalar = node.kind == YamlNode::Kind::scalar;
  switch (type_) {
    case Type::integer:
      return parse_integer(node, std::get<int64_t*>(target_)) ? nullptr : &node;
    case Type::number:
      return parse_number(node, std::get<double*>(target_)) ? nullptr : &node;
    case Type::bytes:
      return parse_bytes_text(node, std::get<int64_t*>(target_)) ? nullptr : &node;
    case Type::duration:
      return parse_duration_text(node, std::get<Duration*>(target_)) ? nullptr : &node;
    case Type::boolean: {
      const bool yes = node.text == "true" || node.text == "True" || node.text == "TRUE";
      const bool no = node.text == "false" || node.text == "False" || node.text == "FALSE";
      if (!scalar || node.quoted || !(yes || no)) return &node;
      *std::get<bool*>(target_) = yes;
      return nullptr;
    }
    case Type::choice:
      if (std::find(choices_.begin(), choices_.end(), node.text) == choices_.end()) return &node;
      [[fallthrough]];
    case Type::text:
      if (!scalar) return &node;
      *std::get<std::string*>(target_) = node.text;
      return nullptr;
    case Type::integer_rows: {
      if (node.kind != YamlNode::Kind::list) return &node;
      IntegerRows rows;
      for (const YamlNode& row : node.items) {
        if (row.kind != YamlNode::Kind::list) return &row;
        std::vector<int64_t>& values = rows.emplace_back(row.items.size());
        for (size_t i = 0; i < values.size(); ++i) {
          if (!parse_integer(row.items[i], &values[i])) return &row.items[i];
        }
      }
      *std::get<IntegerRows*>(target_) = std::move(rows);
      return nullptr;
    }
    case Type::duration_list: {
      if (!scalar && node.kind != YamlNode::Kind::list) return &node;
      std::vector<Duration> values(scalar ? 1 : node.items.size());
      for (size_t i = 0; i < values.size(); ++i) {
        const YamlNode& item = scalar ? node : node.items[i];
        if (!parse_duration_text(item, &values[i])) return &item;
      }
      *std::get<std::vector<Duration>*>(target_) = std::move(values);
      return nullptr;
    }
    case Type::text_list: {
      if (!scalar && node.kind != YamlNode::Kind::list) return &node;
      std::vector<std::string> values;
      if (scalar) values.push_back(node.text);
      for (const YamlNode& item : node.items) {
        if (item.kind != YamlNode::Kind::scalar) return &item;
        values.push_back(item.text);
      }
      *std::get<std::vector<std::string>*>(target_) = std::move(values);
      return nullptr;
    }
  }
  MR_CHECK(false, "type of {}", path_);
  return &node;
}

void Key::refuse(const YamlNode& got, std::string where) const {
  std::string remedy =
      fmt::format("correct it, or leave it out for the default `{}`", default_text_);
  if (required_) remedy = "correct it";
  if (const std::string near = nearest(got.text, choices_); !near.empty()) {
    remedy = fmt::format("did you mean `{}`?", near);
  }
  throw Error({.code = ErrorCode::config,
               .what = fmt::format("bad value for `{}`", path_),
               .where = std::move(where),
               .expected = expected(),
               .got = describe(got),
               .remedy = std::move(remedy)});
}

Key& Schema::declare(std::string path, Key::Type type, Key::Target target) {
  MR_CHECK(
      !path.empty() && path.find_first_not_of("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
                                              "0123456789_.") == path.npos,
      "key `{}` is not words joined by dots", path);
  MR_CHECK(find(path) == nullptr && !is_section(path), "key `{}` is declared twice", path);
  for (size_t dot = path.find('.'); dot != path.npos; dot = path.find('.', dot + 1)) {
    MR_CHECK(find(path.substr(0, dot)) == nullptr, "`{}` is inside another key", path);
  }
  Key& key = keys_.emplace_back();
  key.path_ = std::move(path);
  key.type_ = type;
  key.target_ = target;
  key.default_text_ = key.value_text();
  key.where_ = fmt::format("`{}` (default)", key.path_);
  return key;
}

Key& Schema::integer(std::string path, int64_t* target) {
  return declare(std::move(path), Key::Type::integer, target);
}
Key& Schema::number(std::string path, double* target) {
  return declare(std::move(path), Key::Type::number, target);
}
Key& Schema::boolean(std::string path, bool* target) {
  return declare(std::move(path), Key::Type::boolean, target);
}
Key& Schema::text(std::string path, std::string* target) {
  return declare(std::move(path), Key::Type::text, target);
}
Key& Schema::choice(std::string path, std::string* target, std::vector<std::string> allowed) {
  Key& key = declare(std::move(path), Key::Type::choice, target);
  key.choices_ = std::move(allowed);
  return key;
}
Key& Schema::bytes(std::string path, int64_t* target) {
  return declare(std::move(path), Key::Type::bytes, target);
}
Key& Schema::duration(std::string path, Duration* target) {
  return declare(std::move(path), Key::Type::duration, target);
}
Key& Schema::duration_list(std::string path, std::vector<Duration>* target) {
  return declare(std::move(path), Key::Type::duration_list, target);
}
Key& Schema::integer_rows(std::string path, IntegerRows* target) {
  return declare(std::move(path), Key::Type::integer_rows, target);
}
Key& Schema::text_list(std::string path, std::vector<std::string>* target) {
  return declare(std::move(path), Key::Type::text_list, target);
}

Key* Schema::find(std::string_view path) {
  for (Key& key : keys_) {
    if (key.path_ == path) return &key;
    if (std::find(key.aliases_.begin(), key.aliases_.end(), path) != key.aliases_.end())
      return &key;
  }
  return nullptr;
}

Key* Schema::find_given(std::string_view path) {
  if (Key* const key = find(path)) return key;
  if (path.find('.') != path.npos || is_section(path)) return nullptr;
  auto named = [&](const std::string& name) { return last_word(name) == path; };
  Key* only = nullptr;
  for (Key& key : keys_) {
    if (!named(key.path_) && std::none_of(key.aliases_.begin(), key.aliases_.end(), named))
      continue;
    if (only) return nullptr;
    only = &key;
  }
  return only;
}

std::string Schema::path_of(std::string_view written) {
  const Key* const key = find_given(written);
  return key == nullptr ? "" : key->path_;
}

bool Schema::is_section(std::string_view path) const {
  auto inside = [&](const std::string& other) {
    return other.size() > path.size() && other[path.size()] == '.' && other.starts_with(path);
  };
  if (!path.empty() && path == alternatives_.section) return true;
  return std::any_of(keys_.begin(), keys_.end(), [&](const Key& key) {
    return inside(key.path_) || std::any_of(key.aliases_.begin(), key.aliases_.end(), inside);
  });
}

const Key& Schema::key(std::string_view path) const {
  const auto at =
      std::find_if(keys_.begin(), keys_.end(), [&](const Key& key) { return key.path_ == path; });
  MR_CHECK(at != keys_.end(), "key `{}` is not declared", path);
  return *at;
}

bool Schema::was_set(std::string_view path) const { return key(path).set_; }
const std::string& Schema::origin(std::string_view path) const { return key(path).origin_; }
const std::string& Schema::where(std::string_view path) const { return key(path).where_; }

std::string Schema::value_text(std::string_view path) const { return key(path).value_text(); }

std::vector<std::string> Schema::paths() const {
  std::vector<std::string> list;
  for (const Key& key : keys_) list.push_back(key.path_);
  return list;
}

void Schema::note(std::string_view path, std::string origin) {
  Key* const noted = find(path);
  MR_CHECK(noted != nullptr, "key `{}` is not declared", path);
  noted->origin_ = std::move(origin);
  noted->where_ = fmt::format("`{}` ({})", noted->path_, noted->origin_);
}

void Schema::load(const fs::path& file) {
  std::string text;
  try {
    text = read_file(file, kMaxYamlBytes);
  } catch (const Error& error) {
    ErrorFields fields = error.fields();
    fields.code = ErrorCode::config;
    throw Error(std::move(fields));
  }
  load_text(text, file.string());
}

void Schema::load_text(std::string_view text, const std::string& name) {
  const YamlNode root = parse_yaml(text, name);
  if (root.kind != YamlNode::Kind::map) {
    const bool empty = root.kind == YamlNode::Kind::null;
    throw Error({.code = ErrorCode::config,
                 .what = empty ? "the file is empty" : "the file holds no keys",
                 .where = fmt::format("{}:{}:{}", name, root.line, root.column),
                 .expected = "`key: value` lines",
                 .got = describe(root),
                 .remedy = "start from one of the files in configs/"});
  }
  ++loads_;
  load_map(root, "", name);
}

void Schema::load_map(const YamlNode& map, const std::string& prefix, const std::string& file) {
  for (const YamlEntry& entry : map.entries) {
    const std::string path = prefix.empty() ? entry.key : prefix + "." + entry.key;
    load_entry(entry, path, path, file);
  }
}

void Schema::alternatives(std::string section, std::string of, std::string help) {
  MR_CHECK(is_section(of) && !is_section(section) && find(section) == nullptr,
           "alternatives `{}` of section `{}`", section, of);
  alternatives_ = {std::move(section), std::move(of), std::move(help), "", {}};
}

void Schema::load_alternatives(const YamlEntry& section, const std::string& file) {
  const std::string &name = alternatives_.section, &of = alternatives_.of;
  auto refuse = [&](const YamlEntry& at, const std::string& path, const std::string& expected) {
    throw Error({.code = ErrorCode::config,
                 .what = fmt::format("{} is a section, not a key", quote(path)),
                 .where = fmt::format("{}:{}:{}: {}", file, at.line, at.column, quote(path)),
                 .expected = expected,
                 .got = describe(at.value),
                 .remedy = fmt::format("indent below it what differs in `{}`", of)});
  };
  const bool empty = section.value.kind == YamlNode::Kind::null;
  if (!empty && section.value.kind != YamlNode::Kind::map)
    refuse(section, name, fmt::format("names, each with keys of `{}` below it", of));
  for (const YamlEntry& entry : section.value.entries) {
    const std::string path = name + "." + entry.key;
    if (entry.value.kind != YamlNode::Kind::map)
      refuse(entry, path, fmt::format("keys of `{}`: {}", of, names_in(of)));
    for (const YamlEntry& inner : entry.value.entries)
      if (find(of + "." + inner.key) == nullptr)
        refuse_unknown(of + "." + inner.key,
                       fmt::format("{}:{}:{}: {}", file, inner.line, inner.column,
                                   quote(path + "." + inner.key)));
  }
  alternatives_.file = file;
  alternatives_.entries = section.value.entries;
}

std::vector<std::string> Schema::alternative_names() const {
  std::vector<std::string> names;
  for (const YamlEntry& entry : alternatives_.entries) names.push_back(entry.key);
  return names;
}

void Schema::take_alternative(std::string_view name) {
  const auto at = std::find_if(alternatives_.entries.begin(), alternatives_.entries.end(),
                               [&](const YamlEntry& entry) { return entry.key == name; });
  MR_CHECK(at != alternatives_.entries.end(), "no alternative `{}`", name);
  ++loads_;
  for (const YamlEntry& entry : at->value.entries)
    load_entry(entry, alternatives_.of + "." + entry.key,
               fmt::format("{}.{}.{}", alternatives_.section, name, entry.key), alternatives_.file);
}

void Schema::load_entry(const YamlEntry& entry, const std::string& path, const std::string& shown,
                        const std::string& file) {
  const YamlNode& value = entry.value;
  auto place = [&](int line, int column) {
    return fmt::format("{}:{}:{}: {}", file, line, column, quote(shown));
  };
  if (!path.empty() && path == alternatives_.section) {
    load_alternatives(entry, file);
    return;
  }
  Key* const key = find_given(path);
  if (key == nullptr && !is_section(path)) refuse_unknown(path, place(entry.line, entry.column));
  if (key == nullptr && value.kind == YamlNode::Kind::null) return;  // a section left empty
  if (key == nullptr && value.kind != YamlNode::Kind::map) {
    throw Error({.code = ErrorCode::config,
                 .what = fmt::format("`{}` is a section, not a key", path),
                 .where = place(value.line, value.column),
                 .expected = "its keys, indented below it: " + names_in(path),
                 .got = describe(value),
                 .remedy = "give the keys one by one"});
  }
  if (key == nullptr) {
    load_map(value, path, file);
    return;
  }
  if (key->set_by_load_ == loads_) {
    throw Error({.code = ErrorCode::config,
                 .what = fmt::format("`{}` is given twice", key->path_),
                 .where = place(entry.line, entry.column),
                 .expected = "every key once",
                 .got = "the first at " + key->origin_,
                 .remedy = "remove one of the two"});
  }
  // The parser finds out that a value is missing only at the next thing, so point at the key.
  const bool missing = value.kind == YamlNode::Kind::null;
  const int line = missing ? entry.line : value.line,
            column = missing ? entry.column : value.column;
  if (const YamlNode* bad = key->assign(value); bad != nullptr) {
    key->refuse(*bad, missing ? place(line, column) : place(bad->line, bad->column));
  }
  key->set_ = true;
  key->set_by_load_ = loads_;
  key->origin_ = fmt::format("{}:{}:{}", file, line, column);
  key->where_ = fmt::format("{}: `{}`", key->origin_, key->path_);
}

void Schema::override_with(const std::string& assignment) {
  const std::string where = "command line: " + printable(assignment, 200);
  std::string_view rest = assignment;
  for (int i = 0; i < 2 && rest.starts_with('+'); ++i) rest.remove_prefix(1);
  const size_t equals = rest.find('=');
  const std::string path(rest.substr(0, equals));
  if (equals == rest.npos || path.empty()) {
    throw Error({.code = ErrorCode::config,
                 .what = "this is not an override",
                 .where = where,
                 .expected = "key=value, such as training.batch_size=64",
                 .got = quote(assignment),
                 .remedy = "write the key, `=` and the value without spaces around it"});
  }
  const std::string_view text = rest.substr(equals + 1);
  Key* const key = find_given(path);
  if (key == nullptr && is_section(path)) {
    throw Error({.code = ErrorCode::config,
                 .what = fmt::format("`{}` is a section, not a key", path),
                 .where = where,
                 .expected = "one of its keys: " + names_in(path),
                 .got = quote(text),
                 .remedy = "give the keys one by one"});
  }
  if (key == nullptr) refuse_unknown(path, where);

  YamlNode value;
  const bool is_list = key->type_ == Key::Type::text_list;
  const bool is_text = key->type_ == Key::Type::text || key->type_ == Key::Type::choice || is_list;
  const bool quoted = text.starts_with('"') || text.starts_with('\'');
  if (is_text && !quoted && !(is_list && (text.empty() || text.starts_with('[')))) {
    if (clean_text_length(text) != text.size()) {
      throw Error({.code = ErrorCode::config,
                   .what = fmt::format("bad value for `{}`", path),
                   .where = where,
                   .expected = "UTF-8 text",
                   .got = "other bytes",
                   .remedy = "check how the value was typed"});
    }
    value.kind = YamlNode::Kind::scalar;
    value.text = text;
  } else {
    try {
      value = parse_yaml(text, "");
    } catch (const Error& error) {
      ErrorFields fields = error.fields();
      fields.where = where;
      throw Error(std::move(fields));
    }
  }
  if (const YamlNode* bad = key->assign(value); bad != nullptr) key->refuse(*bad, where);
  key->set_ = true;
  key->origin_ = key->where_ = where;
}

void Schema::finish() const {
  check_declarations();
  for (const Key& key : keys_) {
    if (key.set_ || !key.required_) continue;
    throw Error({.code = ErrorCode::config,
                 .what = fmt::format("`{}` is missing", key.path_),
                 .where = fmt::format("`{}`", key.path_),
                 .expected = key.expected(),
                 .got = "nothing",
                 .remedy = fmt::format("give it in the file or as {}=...", key.path_)});
  }
}

void Schema::absent(std::vector<std::string> words, std::string why) {
  for (std::string& word : words) {
    const bool is_new = absent_.emplace(std::move(word), why).second;
    MR_CHECK(is_new, "a word is absent twice");
  }
}

void Schema::renamed(std::vector<std::string> words, const std::string& path) {
  for (std::string& word : words) {
    const bool is_new = renamed_.emplace(std::move(word), path).second;
    MR_CHECK(is_new, "a word stands for two keys");
  }
}

void Schema::refuse_unknown(const std::string& path, std::string where) const {
  if (const auto why = absent_.find(std::string(last_word(path))); why != absent_.end())
    throw Error({.code = ErrorCode::config,
                 .what = fmt::format("there is no key {}", quote(path)),
                 .where = std::move(where),
                 .expected = "none: " + why->second,
                 .got = quote(path),
                 .remedy = "remove it"});
  std::vector<std::string> paths, words;
  for (const Key& key : keys_) {
    paths.push_back(key.path_);
    words.emplace_back(last_word(key.path_));
    for (size_t dot = key.path_.find('.'); dot != key.path_.npos;
         dot = key.path_.find('.', dot + 1)) {
      paths.push_back(key.path_.substr(0, dot));
    }
  }
  std::string near = nearest(path, paths);
  if (const auto other = renamed_.find(std::string(last_word(path)));
      other != renamed_.end() &&
      std::find(paths.begin(), paths.end(), other->second) != paths.end())
    near = other->second;
  if (near.empty()) {  // the right word in the wrong section
    const std::string word = nearest(last_word(path), words);
    const auto at = std::find(words.begin(), words.end(), word);
    if (at != words.end()) near = keys_[static_cast<size_t>(at - words.begin())].path_;
  }
  const size_t dot = path.rfind('.');
  const std::string section = dot != path.npos ? path.substr(0, dot) : "";
  const bool known = is_section(section);
  throw Error({.code = ErrorCode::config,
               .what = "unknown key " + quote(path),
               .where = std::move(where),
               .expected = fmt::format("one of: {}", names_in(known ? section : "")),
               .got = quote(path),
               .remedy = near.empty() ? "remove it, or see docs/CONFIG.md for all keys"
                                      : fmt::format("did you mean `{}`?", near)});
}

}  // namespace millrace
