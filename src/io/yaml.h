// YAML (and so JSON) text from outside, as a small tree that remembers where everything stood.
// Only what a configuration needs: one document of maps, lists and scalars. Anchors, aliases, tags,
// further documents, duplicate keys, deep nesting and bytes that are not text are refused.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace millrace {

// The parser needs about 250 bytes of memory for each byte of the worst text; a megabyte is far
// more than any configuration and keeps that harmless.
constexpr int64_t kMaxYamlBytes = int64_t{1} << 20;
constexpr int kMaxYamlDepth = 50;

struct YamlEntry;

struct YamlNode {
  enum class Kind { null, scalar, list, map };
  Kind kind = Kind::null;
  int line = 1, column = 1;        // counted from 1
  std::string text;                // scalar: its value
  bool quoted = false;             // scalar: written in quotes or as a block, so certainly text
  std::vector<YamlNode> items;     // list
  std::vector<YamlEntry> entries;  // map, in order
};

struct YamlEntry {
  std::string key;
  int line = 1, column = 1;
  YamlNode value;
};

// How many bytes from the front are UTF-8 without control characters (tab and line ends aside).
size_t clean_text_length(std::string_view text);

// `name` is the file's name for messages. Every fault of the text is an Error (ErrorCode::config)
// with `where` = name:line:column. A text without content gives a null node.
YamlNode parse_yaml(std::string_view text, const std::string& name);

// A text as YAML: in double quotes, as JSON has it too.
std::string yaml_quoted(std::string_view text);
// Plain where YAML reads the same text back, otherwise quoted.
std::string yaml_text(std::string_view text);

}  // namespace millrace
