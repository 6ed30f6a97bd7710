#include "io/yaml.h"

#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <sstream>
#include <unordered_map>
#include <utility>

#include "core/error.h"
#include "core/text.h"
#include "io/quote.h"

namespace millrace {
namespace {

[[noreturn]] void refuse(const std::string& name, int line, int column, std::string what,
                         std::string expected, std::string got, std::string remedy) {
  throw Error({.code = ErrorCode::config,
               .what = std::move(what),
               .where = fmt::format("{}:{}:{}", name, line, column),
               .expected = std::move(expected),
               .got = std::move(got),
               .remedy = std::move(remedy)});
}

// Builds the tree from the parser's events. It throws as soon as something is not allowed: the
// parser recurses for every level, so the depth must be refused on the way down.
class Builder : public YAML::EventHandler {
 public:
  explicit Builder(const std::string& name) : name_(name) {}

  YamlNode root;

  [[noreturn]] void refuse_anchor(const YAML::Mark& mark) const {
    fail(mark, "anchors and aliases are not supported", "a plain value", "`&` or `*`",
         "write the value out; a text that starts so needs quotes");
  }
  [[noreturn]] void refuse_syntax(const YAML::Exception& error) const {
    if (error.msg.starts_with(YAML::ErrorMsg::UNKNOWN_ANCHOR)) refuse_anchor(error.mark);
    // The parser's words may hold a part of the text, of any length and cut anywhere.
    fail(error.mark, "this is not YAML: " + printable(error.msg, 200), "YAML or JSON",
         "a syntax error", "check the indentation, the quotes and the brackets around this place");
  }

  void OnDocumentStart(const YAML::Mark& mark) override {
    if (++documents_ > 1) {
      fail(mark, "there is a second document", "one document", "another one",
           "keep one document in the file");
    }
  }
  void OnDocumentEnd() override {}
  void OnNull(const YAML::Mark& mark, YAML::anchor_t anchor) override {
    check_properties(mark, "", anchor);
    add(make(YamlNode::Kind::null, mark));
  }
  void OnAlias(const YAML::Mark& mark, YAML::anchor_t) override { refuse_anchor(mark); }
  void OnScalar(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                const std::string& value) override {
    check_properties(mark, tag, anchor);
    check_escapes(mark, value);
    YamlNode node = make(YamlNode::Kind::scalar, mark);
    node.text = value;
    node.quoted = tag == "!";  // how the parser marks every scalar that is not plain
    add(std::move(node));
  }
  void OnSequenceStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                       YAML::EmitterStyle::value) override {
    start(YamlNode::Kind::list, mark, tag, anchor);
  }
  void OnSequenceEnd() override { end(); }
  void OnMapStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                  YAML::EmitterStyle::value) override {
    start(YamlNode::Kind::map, mark, tag, anchor);
  }
  void OnMapEnd() override { end(); }

 private:
  struct Frame {
    YamlNode node;
    bool has_key = false;  // map: the last entry waits for its value
    std::unordered_map<std::string, int> line_of;
  };

  [[noreturn]] void fail(const YAML::Mark& mark, std::string what, std::string expected,
                         std::string got, std::string remedy) const {
    refuse(name_, mark.line + 1, mark.column + 1, std::move(what), std::move(expected),
           std::move(got), std::move(remedy));
  }
  void check_properties(const YAML::Mark& mark, const std::string& tag,
                        YAML::anchor_t anchor) const {
    if (anchor != 0) refuse_anchor(mark);
    if (!tag.empty() && tag != "?" && tag != "!") {
      fail(mark, "tags are not supported", "a plain value", quote(tag),
           "remove the tag, or put the value in quotes");
    }
  }
  // The text was clean, but escapes can make anything: a zero byte would end a path, and yaml-cpp
  // 0.7 turns \N and \_ into single bytes that are not UTF-8.
  void check_escapes(const YAML::Mark& mark, std::string_view value) const {
    size_t at = 0;
    for (size_t length = 1; at < value.size() && value[at] != '\0' && length > 0; at += length) {
      length = code_point_at(value, at).bytes;
    }
    if (at == value.size()) return;
    fail(mark, "an escape stands for what is not text", "UTF-8 without zero bytes",
         fmt::format("byte 0x{:02x}", static_cast<unsigned char>(value[at])),
         "write \\u0085 for \\N and \\u00a0 for \\_; leave out \\0");
  }
  static YamlNode make(YamlNode::Kind kind, const YAML::Mark& mark) {
    YamlNode node;
    node.kind = kind;
    node.line = mark.line + 1;
    node.column = mark.column + 1;
    return node;
  }

  void start(YamlNode::Kind kind, const YAML::Mark& mark, const std::string& tag,
             YAML::anchor_t anchor) {
    check_properties(mark, tag, anchor);
    if (frames_.size() == kMaxYamlDepth) {
      fail(mark, "the nesting is too deep", fmt::format("at most {} levels", kMaxYamlDepth),
           "one more", "flatten the file");
    }
    frames_.emplace_back();
    frames_.back().node = make(kind, mark);
  }
  void end() {
    YamlNode node = std::move(frames_.back().node);
    frames_.pop_back();
    add(std::move(node));
  }

  void add(YamlNode node) {
    if (frames_.empty()) {
      root = std::move(node);
      return;
    }
    Frame& frame = frames_.back();
    if (frame.node.kind == YamlNode::Kind::list) {
      frame.node.items.push_back(std::move(node));
    } else if (frame.has_key) {
      frame.node.entries.back().value = std::move(node);
      frame.has_key = false;
    } else {
      add_key(&frame, std::move(node));
    }
  }
  void add_key(Frame* frame, YamlNode key) {
    if (key.kind != YamlNode::Kind::scalar) {
      refuse(name_, key.line, key.column, "a key is not a word", "a plain key",
             key.kind == YamlNode::Kind::null   ? "nothing"
             : key.kind == YamlNode::Kind::list ? "a list"
                                                : "a map",
             "write `key: value`");
    }
    const auto [before, is_new] = frame->line_of.emplace(key.text, key.line);
    if (!is_new) {
      refuse(name_, key.line, key.column, fmt::format("the key {} is given twice", quote(key.text)),
             "every key once", fmt::format("the first is on line {}", before->second),
             "remove one of the two");
    }
    frame->node.entries.push_back({std::move(key.text), key.line, key.column, {}});
    frame->has_key = true;
  }

  const std::string& name_;
  int documents_ = 0;
  std::vector<Frame> frames_;
};

}  // namespace

size_t clean_text_length(std::string_view text) {
  size_t at = 0;
  while (at < text.size()) {
    const auto byte = static_cast<unsigned char>(text[at]);
    if (byte == 0x7F || (byte < 0x20 && byte != '\n' && byte != '\r' && byte != '\t')) break;
    const size_t length = code_point_at(text, at).bytes;
    if (length == 0) break;
    at += length;
  }
  return at;
}

YamlNode parse_yaml(std::string_view text, const std::string& name) {
  if (static_cast<int64_t>(text.size()) > kMaxYamlBytes) {
    refuse(name, 1, 1, "the file is too large", "at most " + human_bytes(kMaxYamlBytes),
           human_bytes(static_cast<int64_t>(text.size())), "check that this is the file you meant");
  }
  // yaml-cpp guesses encodings and takes byte 4 for the end of the text, so only clean UTF-8 goes
  // in.
  if (const size_t clean = clean_text_length(text); clean < text.size()) {
    const std::string_view before = text.substr(0, clean);
    const auto line = std::count(before.begin(), before.end(), '\n') + 1;
    const size_t line_start = before.rfind('\n') + 1;  // npos + 1 is 0
    refuse(name, static_cast<int>(line), static_cast<int>(clean - line_start) + 1,
           "the file is not text", "UTF-8 without control characters",
           fmt::format("byte 0x{:02x}", static_cast<unsigned char>(text[clean])),
           "check that this is the file you meant");
  }
  // yaml-cpp 0.7 takes a quote that is never closed for closed when the text ends with a line end,
  // and the value has then swallowed the rest of the file. After a last comment it does not.
  const char* last_line = text.empty() || text.ends_with('\n') ? "#" : "\n#";
  std::istringstream stream(std::string(text) + last_line);
  Builder builder(name);
  try {
    YAML::Parser parser(stream);
    while (parser.HandleNextDocument(builder)) {
    }
  } catch (const YAML::Exception& error) {
    builder.refuse_syntax(error);
  }
  return std::move(builder.root);
}

std::string yaml_quoted(std::string_view text) {
  std::string result = "\"";
  for (char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      result += {'\\', c};
    } else if (c == '\n') {
      result += "\\n";
    } else if (byte < 0x20 || byte == 0x7F) {
      result += fmt::format("\\u{:04x}", byte);
    } else {
      result += c;
    }
  }
  return result + "\"";
}

std::string yaml_text(std::string_view text) {
  auto plain = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
           c == '.' || c == '/' || c == '-';
  };
  const bool is_null = text == "null" || text == "Null" || text == "NULL";
  if (!text.empty() && text[0] != '-' && !is_null && std::all_of(text.begin(), text.end(), plain)) {
    return std::string(text);
  }
  return yaml_quoted(text);
}

}  // namespace millrace
