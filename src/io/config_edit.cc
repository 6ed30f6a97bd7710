#include "io/config_edit.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <vector>

#include "core/error.h"
#include "io/json_parser.h"
#include "io/quote.h"

namespace millrace {
namespace {

using Kind = YamlNode::Kind;
constexpr size_t npos = std::string_view::npos;
constexpr std::string_view kMark = "# millrace doctor: ";
constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";

// --- what a text says

using Leaves = std::map<std::string, const YamlNode*>;

// Every key under its declared name, however it is written. False when one is there twice.
bool collect(const YamlNode& map, const std::string& prefix, Schema& schema, Leaves* leaves) {
  for (const YamlEntry& entry : map.entries) {
    const std::string path = prefix + entry.key;
    std::string name = schema.path_of(path);
    if (name.empty()) {
      if (!entry.value.entries.empty()) {
        if (!collect(entry.value, path + ".", schema, leaves)) return false;
        continue;
      }
      const bool is_empty = entry.value.kind == Kind::null || entry.value.kind == Kind::map;
      if (is_empty && schema.knows(path)) continue;  // a section left empty
      name = path;
    }
    if (!leaves->emplace(std::move(name), &entry.value).second) return false;
  }
  return true;
}

// Whether quotes make another thing of it.
bool reads_as_a_number_or_truth(const std::string& text) {
  static constexpr std::array<std::string_view, 6> kTruths = {"true",  "True",  "TRUE",
                                                              "false", "False", "FALSE"};
  return text.find_first_not_of("0123456789_+-.eE") == npos ||
         std::find(kTruths.begin(), kTruths.end(), text) != kTruths.end();
}

bool same(const YamlNode& a, const YamlNode& b) {
  return a.kind == b.kind && a.text == b.text &&
         (a.quoted == b.quoted || !reads_as_a_number_or_truth(a.text)) &&
         std::equal(a.items.begin(), a.items.end(), b.items.begin(), b.items.end(), same) &&
         std::equal(a.entries.begin(), a.entries.end(), b.entries.begin(), b.entries.end(),
                    [](const YamlEntry& x, const YamlEntry& y) {
                      return x.key == y.key && same(x.value, y.value);
                    });
}

bool holds_keys(const YamlNode& root) { return root.kind == Kind::map || root.kind == Kind::null; }

bool is_json(std::string_view text) {
  try {
    parse_json(text);
    return true;
  } catch (const nlohmann::json::exception&) {
    return false;
  }
}

// --- how far things go: the parser tells where they begin

bool is_blank(char c) { return c == ' ' || c == '\t'; }
bool is_space(char c) { return is_blank(c) || c == '\n' || c == '\r'; }

// Of the line that `at` is in, without its line end.
size_t line_end(std::string_view text, size_t at) {
  const size_t end = std::min(text.find('\n', at), text.size());
  return end > at && end < text.size() && text[end - 1] == '\r' ? end - 1 : end;
}

// Behind the closing quote of the text that begins at `at`.
size_t quoted_end(std::string_view text, size_t at) {
  const char quote = text[at];
  for (size_t i = at + 1; i < text.size(); ++i) {
    if (quote == '"' && text[i] == '\\') {
      ++i;
    } else if (text[i] == quote) {
      if (quote == '"' || i + 1 == text.size() || text[i + 1] != quote) return i + 1;
      ++i;  // '' stands for '
    }
  }
  return npos;
}

// Calls `stop(i)` for every byte from `at` that is neither in quotes nor in a comment, and for the
// `#` of comments, until it says so; returns where, or npos at the end of the text.
template <typename Stop>
size_t scan(std::string_view text, size_t at, Stop stop) {
  for (size_t i = at; i < text.size();) {
    const char c = text[i], before = i > 0 ? text[i - 1] : '\n';
    const bool begins =
        i == at || is_space(before) || std::string_view("[{,:").find(before) != npos;
    if (stop(i)) return i;
    if ((c == '"' || c == '\'') && begins) {
      i = quoted_end(text, i);
    } else if (c == '#' && is_space(before)) {
      i = std::min(text.find('\n', i), text.size());
    } else {
      ++i;
    }
  }
  return npos;
}

// Behind the bracket that closes the one at `at`.
size_t flow_end(std::string_view text, size_t at) {
  int depth = 0;
  const size_t end = scan(text, at, [&](size_t i) {
    if (text[i] == '[' || text[i] == '{') ++depth;
    return (text[i] == ']' || text[i] == '}') && --depth == 0;
  });
  return end == npos ? npos : end + 1;
}

// The `#` of the comment behind what ends at `at`, or the end of the line.
size_t comment_start(std::string_view text, size_t at) {
  const size_t end = scan(text, at, [&](size_t i) {
    return text[i] == '\n' || (text[i] == '#' && i > 0 && is_blank(text[i - 1]));
  });
  if (end == npos) return text.size();
  return text[end] == '\n' && end > at && text[end - 1] == '\r' ? end - 1 : end;
}

// Behind a plain scalar, as far as it goes on this line.
size_t plain_end(std::string_view text, size_t at, bool in_flow) {
  size_t end = at;
  for (const size_t last = line_end(text, at); end < last; ++end) {
    const char c = text[end];
    if (c == '#' && end > at && is_blank(text[end - 1])) break;
    if (c == ':' && (end + 1 == last || is_blank(text[end + 1]))) break;
    if (in_flow && std::string_view(",[]{}").find(c) != npos) break;
  }
  while (end > at && is_blank(text[end - 1])) --end;
  return end;
}

size_t explicit_null(std::string_view rest) {  // its length, or 0
  for (const std::string_view word : {"~", "null", "Null", "NULL"})
    if (rest.starts_with(word)) return word.size();
  return 0;
}

// --- writing

// On one line. In brackets some signs end a plain text.
std::string flow_text(const YamlNode& node, bool in_flow, bool json) {
  if (node.kind == Kind::null) return "null";
  if (node.kind == Kind::list) {
    std::string items;
    for (const YamlNode& item : node.items)
      items += (items.empty() ? "" : ", ") + flow_text(item, true, json);
    return "[" + items + "]";
  }
  const bool cut = in_flow && node.text.find_first_of(",[]{}?") != npos;
  const bool plain = !node.quoted && !cut && node.text.find('\n') == npos;
  return plain && (!json || is_json(node.text)) ? node.text : yaml_quoted(node.text);
}

std::string key_text(const std::string& key, bool json) {
  return json ? yaml_quoted(key) : yaml_text(key);
}

// Everything below a node, in blocks: there, whatever was plain can be plain again.
void write_block(const YamlNode& node, size_t indent, std::string* out) {
  auto write = [&](const YamlNode& value) {
    const bool below = !value.items.empty() || !value.entries.empty();
    if (value.kind == Kind::scalar) {
      *out += " " + flow_text(value, false, false);
    } else if (!below && value.kind != Kind::null) {
      *out += value.kind == Kind::list ? " []" : " {}";
    }
    *out += '\n';
    if (below) write_block(value, indent + 2, out);
  };
  for (const YamlNode& item : node.items) {
    *out += std::string(indent, ' ') + "-";
    write(item);
  }
  for (const YamlEntry& entry : node.entries) {
    const std::string space(indent, ' '), key = key_text(entry.key, false);
    // A key before its colon may not be longer than 1024 bytes.
    *out += key.size() < 1000 ? space + key + ":" : space + "? " + key + "\n" + space + ":";
    write(entry.value);
  }
}

std::string written_anew(const YamlNode& root) {
  std::string text(kMark);
  text += "written anew, without the comments of the original\n";
  write_block(root, 0, &text);
  return text;
}

// One change to one text, or nothing where the places are not clear.
class Editor {
 public:
  Editor(std::string_view text, const YamlNode& root, Schema& schema, const ConfigChange& change)
      : text_(text), root_(root), schema_(schema), change_(change) {
    newline_ = text.find("\r\n") == npos ? "\n" : "\r\n";
    for (size_t at = 0; at != npos; at = text.find('\n', at), at += at == npos ? 0 : 1)
      lines_.push_back(at);
    json_ = root.kind == Kind::map && is_flow(root) && is_json(text);
    new_value_ = parse_yaml(change.value, quote(change.path));
    if (root.kind == Kind::map) find(root, "", is_flow(root));
  }

  std::optional<std::string> edited() {
    if (entry_ != nullptr) return with_new_value();
    if (section_ == nullptr && root_.kind == Kind::null) return with_first_section();
    const YamlNode& map = section_ == nullptr ? root_ : section_->value;
    if (map.kind == Kind::null) return with_filled_section();
    if (is_flow(map)) return with_key_in_braces(map);
    return with_key_in_block(map);
  }

 private:
  size_t offset(int line, int column) const {
    if (line < 1 || static_cast<size_t>(line) > lines_.size() || column < 1) return npos;
    // The parser does not count the mark as a part of the line.
    const size_t mark = line == 1 && text_.starts_with(kByteOrderMark) ? kByteOrderMark.size() : 0;
    const size_t at =
        lines_[static_cast<size_t>(line) - 1] + mark + static_cast<size_t>(column) - 1;
    return at < text_.size() ? at : npos;
  }
  size_t offset(const YamlNode& node) const { return offset(node.line, node.column); }
  bool is_flow(const YamlNode& map) const {
    const size_t at = offset(map);
    return at != npos && (text_[at] == '{' || text_[at] == '[');
  }

  // The key's entry, or else the innermost section for it.
  void find(const YamlNode& map, const std::string& prefix, bool in_flow) {
    for (const YamlEntry& entry : map.entries) {
      const std::string path = prefix + entry.key, name = schema_.path_of(path);
      if (name == change_.path) {
        entry_ = &entry;
        in_flow_ = in_flow;
      }
      if (!name.empty()) continue;
      const bool is_section = entry.value.kind == Kind::map || entry.value.kind == Kind::null;
      if (is_section && change_.path.starts_with(path + ".") &&
          path.size() > section_path_.size()) {
        section_ = &entry;
        section_path_ = path;
        if (entry_ == nullptr) in_flow_ = in_flow;
      }
      find(entry.value, path + ".", in_flow || is_flow(entry.value));
    }
  }

  // Behind the colon of an entry that is written `key:`.
  size_t colon_end(const YamlEntry& entry) const {
    size_t at = offset(entry.line, entry.column);
    if (at == npos) return npos;
    if (text_[at] == '"' || text_[at] == '\'') {
      at = quoted_end(text_, at);
    } else {
      at = text_.substr(at).starts_with(entry.key) ? at + entry.key.size() : npos;
    }
    while (at < text_.size() && is_blank(text_[at])) ++at;
    return at < text_.size() && text_[at] == ':' ? at + 1 : npos;
  }

  // The end of the last line that belongs to an entry whose value goes on below it.
  size_t block_end(const YamlEntry& entry) const {
    const auto indent = static_cast<size_t>(entry.column) - 1;
    const bool is_list = entry.value.kind == Kind::list;
    const bool is_text = entry.value.kind == Kind::scalar && entry.value.quoted;
    size_t end = line_end(text_, offset(entry.line, entry.column));
    for (auto line = static_cast<size_t>(entry.line); line < lines_.size(); ++line) {
      const size_t last = line_end(text_, lines_[line]);
      const size_t at = std::min(text_.find_first_not_of(' ', lines_[line]), last);
      const size_t spaces = at - lines_[line];
      if (at == last || text_.find_first_not_of(" \t", at) >= last) continue;
      const bool deeper = spaces > indent || (is_list && spaces == indent && text_[at] == '-');
      if (text_[at] == '#' && !(is_text && deeper)) continue;
      if (!deeper) break;
      end = last;
    }
    return end;
  }

  bool goes_on_below(const YamlNode& value, size_t at) const {
    if (value.kind == Kind::list) return text_[at] == '-';
    if (value.quoted) return text_[at] == '|' || text_[at] == '>';
    return true;  // plain, and not on one line
  }

  // Behind the value of an entry; npos: not clear.
  size_t value_end(const YamlEntry& entry, bool in_flow) const {
    const YamlNode& value = entry.value;
    const size_t at = offset(value);
    if (value.kind == Kind::null) {
      const size_t length = at == npos ? 0 : explicit_null(text_.substr(at));
      return length > 0 ? at + length : colon_end(entry);
    }
    if (at == npos) return npos;
    const char first = text_[at];
    if (value.kind != Kind::scalar && is_flow(value)) return flow_end(text_, at);
    if (value.kind == Kind::scalar && value.quoted && (first == '"' || first == '\''))
      return quoted_end(text_, at);
    if (value.kind == Kind::scalar && !value.quoted) {
      const size_t end = plain_end(text_, at, in_flow);
      if (text_.substr(at, end - at) == value.text) return end;
    }
    if (in_flow) return npos;
    if (value.kind == Kind::map) return value_end(value.entries.back(), false);
    return goes_on_below(value, at) ? block_end(entry) : npos;
  }

  std::optional<std::string> with_new_value() const {
    const size_t at = offset(entry_->value), end = value_end(*entry_, in_flow_);
    if (at == npos || end == npos || entry_->value.kind == Kind::null) return std::nullopt;
    const std::string value = flow_text(new_value_, in_flow_, json_);
    std::string text(text_.substr(0, at));
    const bool brackets_or_quotes = std::string_view("[{\"'").find(text_[at]) != npos;
    if (brackets_or_quotes ||
        (entry_->value.kind == Kind::scalar && text_.substr(at, end - at).find('\n') == npos)) {
      text += value;
      return with_evidence(text + std::string(text_.substr(end)), text.size());
    }
    // A block: its first line keeps what is behind the colon, if that is a comment.
    const size_t colon = colon_end(*entry_);
    if (colon == npos) return std::nullopt;
    const size_t first = entry_->value.line == entry_->line ? at : colon;
    text = std::string(text_.substr(0, colon)) + " " + value;
    const size_t behind = text.size(), comment = comment_start(text_, first);
    if (const size_t last = line_end(text_, colon); comment < last) {
      text += "  ";
      text += text_.substr(comment, last - comment);
    }
    return with_evidence(text + std::string(text_.substr(end)), behind);
  }

  // `a: {b: 1}` for what is left of the path inside the section.
  std::string flow_key() const {
    const std::vector<std::string> words = words_left();
    std::string text = flow_text(new_value_, true, json_);
    for (size_t i = words.size(); i-- > 0;) {
      text = key_text(words[i], json_) + ": " + text;
      if (i > 0) text = "{" + text + "}";
    }
    return text;
  }
  // The same as lines, the first and the last without a line end.
  std::string block_key(size_t indent) const {
    std::string text;
    for (const std::string& word : words_left()) {
      if (!text.empty()) text += newline_;
      text += std::string(indent, ' ') + key_text(word, false) + ":";
      indent += step();
    }
    return text + " " + flow_text(new_value_, false, false);
  }
  std::vector<std::string> words_left() const {
    std::vector<std::string> words;
    std::string_view rest = change_.path;
    if (section_ != nullptr) rest.remove_prefix(section_path_.size() + 1);
    for (size_t dot = 0; dot != npos; rest.remove_prefix(dot == npos ? 0 : dot + 1)) {
      dot = rest.find('.');
      words.emplace_back(rest.substr(0, dot));
    }
    return words;
  }
  // How far this file indents.
  size_t step() const {
    for (const YamlEntry& entry : root_.entries)
      if (entry.value.kind == Kind::map && !is_flow(entry.value) &&
          entry.value.column > root_.column)
        return static_cast<size_t>(entry.value.column - root_.column);
    return 2;
  }

  std::optional<std::string> with_first_section() const {
    std::string text(text_);
    const bool ended = text.empty() || text.ends_with('\n');
    text += (ended ? "" : newline_) + block_key(0);
    return with_evidence(text + (ended ? newline_ : ""), text.size());
  }

  std::optional<std::string> with_filled_section() const {
    const size_t at = offset(section_->value);
    const size_t length = at == npos ? 0 : explicit_null(text_.substr(at));
    if (length > 0) {
      const std::string text = std::string(text_.substr(0, at)) + "{" + flow_key() + "}";
      return with_evidence(text + std::string(text_.substr(at + length)), text.size());
    }
    const size_t colon = colon_end(*section_);
    if (in_flow_ || colon == npos) return std::nullopt;
    return with_lines_at(line_end(text_, colon),
                         block_key(static_cast<size_t>(section_->column) - 1 + step()));
  }

  std::optional<std::string> with_lines_at(size_t at, const std::string& lines) const {
    const std::string text = std::string(text_.substr(0, at)) + newline_ + lines;
    return with_evidence(text + std::string(text_.substr(at)), text.size());
  }

  std::optional<std::string> with_key_in_block(const YamlNode& map) const {
    const size_t end = value_end(map.entries.back(), false);
    if (end == npos) return std::nullopt;
    const auto indent = static_cast<size_t>(map.column) - 1;
    size_t at = line_end(text_, end);
    // Comments right below belong to the section too.
    for (size_t next = text_.find('\n', at); next != npos; next = text_.find('\n', at)) {
      const size_t sign = text_.find_first_not_of(' ', next + 1);
      if (sign == npos || text_[sign] != '#' || sign - next - 1 < indent) break;
      at = line_end(text_, sign);
    }
    // A section of its own stands apart where the others do.
    const bool apart = section_ == nullptr && map.entries.size() > 1 &&
                       stands_apart(map.entries.back()) && words_left().size() > 1;
    return with_lines_at(at, (apart ? newline_ : "") + block_key(indent));
  }
  bool stands_apart(const YamlEntry& entry) const {
    const auto line = static_cast<size_t>(entry.line) - 1;
    return line > 0 && text_.find_first_not_of(" \r", lines_[line - 1]) + 1 == lines_[line];
  }

  std::optional<std::string> with_key_in_braces(const YamlNode& map) const {
    const size_t open = offset(map), close = flow_end(text_, open);
    if (close == npos) return std::nullopt;
    std::string text(text_);
    const std::string key = flow_key();
    if (map.entries.empty()) {
      text.insert(open + 1, key);
      return with_evidence(text, open + 1 + key.size());
    }
    const YamlEntry& last = map.entries.back();
    const size_t end = value_end(last, true), begin = offset(last.line, last.column);
    if (end == npos || begin == npos) return std::nullopt;
    const size_t next =
        scan(text_, end, [&](size_t i) { return !is_space(text_[i]) && text_[i] != '#'; });
    const bool has_comma = next != npos && text_[next] == ',';
    size_t at = has_comma ? next + 1 : end;
    const size_t line = lines_[static_cast<size_t>(last.line) - 1];
    const std::string_view indent = text_.substr(line, begin - line);
    const bool own_line = std::all_of(indent.begin(), indent.end(), is_blank) &&
                          text_.substr(at, close - at).find('\n') != npos;
    const std::string comma = has_comma ? "" : ",";
    if (!own_line) {
      text.insert(at, comma + " " + key);
      return with_evidence(text, at + comma.size() + 1 + key.size());
    }
    at = line_end(text_, at);  // behind a comment that belongs to the line above
    const std::string inserted = newline_ + std::string(indent) + key;
    text.insert(at, inserted);
    text.insert(end, comma);
    return with_evidence(text, at + inserted.size() + comma.size());
  }

  // The reason on the line of the value that ends at `at`: before the comment that is there, in the
  // place of an earlier reason. A line in braces may hold several keys.
  std::string with_evidence(std::string text, size_t at) const {
    if (json_) return text;
    const YamlNode& map = section_ == nullptr ? root_ : section_->value;
    const bool shared = in_flow_ || (entry_ == nullptr && map.kind == Kind::map && is_flow(map));
    const std::string word = change_.path.substr(change_.path.rfind('.') + 1);
    const std::string mark = std::string(kMark) + (shared ? word + ": " : "");
    size_t begin = comment_start(text, at);
    const size_t end = std::max(begin, line_end(text, begin));
    std::string comment = text.substr(begin, end - begin);
    const bool was_there = comment.find(mark) != npos;
    if (change_.comment.empty() && !was_there) return text;
    if (was_there) {
      const size_t from = comment.find(mark), next = comment.find("  # ", from);
      comment.erase(from, next == npos ? npos : next + 2 - from);
    }
    if (!change_.comment.empty())
      comment = mark + printable(change_.comment, 300) + (comment.empty() ? "" : "  ") + comment;
    while (comment.ends_with(' ')) comment.pop_back();
    while (begin > at && is_blank(text[begin - 1])) --begin;
    return text.replace(begin, end - begin, comment.empty() ? "" : "  " + comment);
  }

  std::string_view text_;
  const YamlNode& root_;
  Schema& schema_;
  const ConfigChange& change_;
  std::string newline_;
  std::vector<size_t> lines_;  // where they begin
  bool json_ = false;
  YamlNode new_value_;
  const YamlEntry* entry_ = nullptr;    // the key, where it is written
  const YamlEntry* section_ = nullptr;  // the innermost section for it; none: the top level
  std::string section_path_;
  bool in_flow_ = false;  // the entry stands in braces
};

std::optional<std::string> with_change(const std::string& text, const std::string& name,
                                       Schema& schema, const ConfigChange& change) {
  const YamlNode root = parse_yaml(text, name);
  if (!holds_keys(root)) return std::nullopt;
  std::optional<std::string> edited = Editor(text, root, schema, change).edited();
  if (edited && edited_config_matches(text, *edited, {&change, 1}, schema)) return edited;
  return std::nullopt;
}

}  // namespace

bool edited_config_matches(std::string_view before, std::string_view after,
                           std::span<const ConfigChange> changes, Schema& schema) {
  try {
    const YamlNode old_root = parse_yaml(before, "before"), new_root = parse_yaml(after, "after");
    Leaves expected, got;
    if (!holds_keys(old_root) || !holds_keys(new_root) ||
        !collect(old_root, "", schema, &expected) || !collect(new_root, "", schema, &got))
      return false;
    std::vector<YamlNode> values;
    for (const ConfigChange& change : changes)
      values.push_back(parse_yaml(change.value, quote(change.path)));
    for (size_t i = 0; i < changes.size(); ++i) expected[changes[i].path] = &values[i];
    return std::equal(expected.begin(), expected.end(), got.begin(), got.end(),
                      [](const auto& a, const auto& b) {
                        return a.first == b.first && same(*a.second, *b.second);
                      });
  } catch (const Error&) {
    return false;
  }
}

std::string edit_config(std::string_view text, std::span<const ConfigChange> changes,
                        Schema& schema, const std::string& name) {
  std::string current(text);
  // An empty map says nothing, and is no reason to go on in braces.
  if (const size_t at = text.find_first_not_of(" \t\r\n");
      at != npos && text.substr(at, text.find_last_not_of(" \t\r\n") + 1 - at) == "{}")
    current.clear();
  for (const ConfigChange& change : changes) {
    MR_CHECK(schema.path_of(change.path) == change.path, "no key `{}`", change.path);
    std::optional<std::string> edited = with_change(current, name, schema, change);
    if (!edited) {
      const std::string anew = written_anew(parse_yaml(current, name));
      if (edited_config_matches(current, anew, {}, schema))
        edited = with_change(anew, name, schema, change);
    }
    if (!edited)
      throw Error({.code = ErrorCode::config,
                   .what = fmt::format("`{}` cannot be set in this file", change.path),
                   .where = name,
                   .expected = "a configuration that can be loaded",
                   .got = "something else around this key",
                   .remedy = fmt::format("check the file, or give {}={} on the command line",
                                         change.path, printable(change.value))});
    current = std::move(*edited);
  }
  return current;
}

}  // namespace millrace
