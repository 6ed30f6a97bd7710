// The readers of records as targets: JSON lines, token files, trajectories.
#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>
#include <optional>

#include "data/trajectory_source.h"
#include "io/json_lines.h"
#include "io/safetensors.h"
#include "io/token_file.h"
#include "tests/fuzz/checks.h"
#include "tests/fuzz/fuzz.h"

namespace millrace::fuzz {
namespace {

// A copy of exactly this size: a byte too far is then seen.
std::vector<std::byte> copy_of(std::string_view bytes) {
  const auto span = std::as_bytes(std::span(bytes));
  return {span.begin(), span.end()};
}

// --- JSON lines

using Fields = std::vector<std::string>;
const Fields kNames = {"text", "a.b"};

size_t depth_of_json(std::string_view valid) {
  size_t depth = 0, deepest = 0;
  bool quoted = false;
  for (size_t i = 0; i < valid.size(); ++i) {
    const char c = valid[i];
    if (quoted) {
      if (c == '\\') ++i;
      if (c == '"') quoted = false;
    } else {
      quoted = c == '"';
      if (c == '{' || c == '[') deepest = std::max(deepest, ++depth);
      if (c == '}' || c == ']') --depth;
    }
  }
  return deepest;
}

// What another reader makes of the line, given the promises that are ours: a key on the way to a
// field is there once, at most 256 levels, and a zero byte, which that reader takes for an end, is
// nothing JSON has.
std::optional<Fields> fields_by_another_reader(std::string_view line) {
  if (line.find('\0') != line.npos) return std::nullopt;
  std::string outer;
  int text = 0, a = 0, b = 0;
  const auto count_keys = [&](int depth, nlohmann::json::parse_event_t event,
                              const nlohmann::json& key) {
    if (event != nlohmann::json::parse_event_t::key) return true;
    if (depth == 1) {
      outer = key.get<std::string>();
      text += outer == "text" ? 1 : 0;
      a += outer == "a" ? 1 : 0;
    }
    if (depth == 2 && outer == "a" && key == "b") ++b;
    return true;
  };
  const auto record = nlohmann::json::parse(line, count_keys, false);
  if (!record.is_object() || text != 1 || a != 1 || b != 1 || depth_of_json(line) > 256)
    return std::nullopt;
  if (!record["text"].is_string() || !record["a"].is_object() || !record["a"]["b"].is_string())
    return std::nullopt;
  return Fields{record["text"], record["a"]["b"]};
}

Verdict run_json_lines(std::string_view bytes) {
  const std::vector<std::byte> copy = copy_of(bytes);
  const std::string_view text(reinterpret_cast<const char*>(copy.data()), copy.size());
  JsonLines lines(text, kNames, {"data.jsonl"});
  Verdict first{true, ""};
  // Tens of thousands, each an exception, would take the time that one input is given.
  constexpr int kMaxRefused = 1000;
  int refusals = 0;
  int64_t number = 0;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size());
    const std::string_view line = text.substr(at, end - at);
    const auto begin = static_cast<int64_t>(at);
    ++number;
    at = end + 1;
    if (line.find_first_not_of(" \t\r") == line.npos) continue;
    Fields fields;
    const Verdict verdict = verdict_of(fmt::format("data.jsonl:{}:", number), [&] {
      require(lines.next(fields), "a line is left out");
      require(fields == fields_by_another_reader(line), "another reader reads something else");
    });
    require(verdict.accepted || !fields_by_another_reader(line), "another reader takes the line");
    require(lines.place().line == number && lines.place().byte == begin, "the place is wrong");
    if (verdict.accepted) continue;
    if (first.accepted) first = verdict;
    if (++refusals == kMaxRefused) return first;
  }
  Fields none;
  require(!lines.next(none), "a line too many");
  return first;
}

// --- token files

Verdict run_token_file(std::string_view bytes) {
  constexpr int64_t kVocabulary = 50257;
  const std::vector<std::byte> copy = copy_of(bytes);
  const auto first =
      std::span(copy).first(std::min(copy.size(), static_cast<size_t>(kTokenHeaderBytes)));
  auto read = [&](int hint) {
    return verdict_of("data.bin", [&] {
      const TokenFileHeader head = read_token_header(first, std::ssize(copy), hint, "data.bin");
      require((head.width == 2 || head.width == 4) && head.tokens >= 0 &&
                  head.offset + head.width * head.tokens == std::ssize(copy),
              "the ids are not the rest of the file");
      require(head.offset == kTokenHeaderBytes || hint == 0 || head.width == hint,
              "not the width that was asked for");
      const auto stored = std::span(copy).subspan(static_cast<size_t>(head.offset));
      std::vector<int32_t> ids;
      widen_tokens(stored, head.width, kVocabulary, "data.bin", head.offset, ids);
      require(std::ssize(ids) == head.tokens, "ids were lost");
      for (size_t i = 0; i < ids.size(); ++i) {
        require(ids[i] >= 0 && ids[i] < kVocabulary, "id out of range");
        const auto width = static_cast<size_t>(head.width);
        require(std::memcmp(&ids[i], stored.data() + i * width, width) == 0, "another id");
      }
    });
  };
  read(4);
  return read(0);
}

// --- trajectories

void check_paths(const Trajectories& t) {
  int64_t points = 0;
  for (const Trajectory& path : t.paths) {
    require(path.begin == points && path.length > 0, "paths do not stand side by side");
    require(std::ssize(t.values_of(path)) == path.length * t.channels, "a path of another length");
    points += path.length;
  }
  require(std::ssize(t.values) == points * t.channels, "values that belong to no path");
  require(t.paths.empty() == (t.channels == 0), "channels of nothing");
  require(std::all_of(t.values.begin(), t.values.end(), [](float v) { return std::isfinite(v); }),
          "a value is not finite");
}

bool same(const Trajectories& a, const Trajectories& b) {
  return a.channels == b.channels && a.frame_step == b.frame_step && a.paths == b.paths &&
         a.values == b.values && a.skipped == b.skipped;
}

// The first line with something in it, where it has the names of the columns.
std::vector<std::string_view>::iterator names_among(std::vector<std::string_view>& lines) {
  const auto line = std::ranges::find_if(lines, [](std::string_view l) {
    const size_t first = l.find_first_not_of(" \t\r");
    return first != l.npos && l[first] != '#';
  });
  if (line == lines.end()) return line;
  const size_t first = line->find_first_not_of(" \t\r");
  double number = 0;
  const auto read = std::from_chars(line->data() + first, line->data() + line->size(), number);
  const bool is_word = (*line)[first] != ',' && read.ptr == line->data() + first;
  return is_word ? line : lines.end();
}

std::vector<std::string_view> lines_of(std::string_view text) {
  std::vector<std::string_view> lines;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size());
    lines.push_back(text.substr(at, end - at));
    at = end + 1;
  }
  return lines;
}

Verdict run_trajectory_table(std::string_view bytes) {
  const std::vector<std::byte> copy = copy_of(bytes);
  const std::string_view text(reinterpret_cast<const char*>(copy.data()), copy.size());
  std::vector<std::string_view> lines = lines_of(text);
  if (const auto names = names_among(lines); names != lines.end()) lines.erase(names);
  const int64_t rows = std::ranges::count_if(lines, [](std::string_view line) {
    const size_t first = line.find_first_not_of(" \t\r");
    return first != line.npos && line[first] != '#';
  });
  Trajectories all;
  const Verdict verdict =
      verdict_of("data.txt:", [&] { all = parse_trajectory_table(text, "data.txt"); });
  // What is good can be read whatever is bad, and no row is lost.
  const Trajectories rest =
      read_again([&] { return parse_trajectory_table(text, "data.txt", true); });
  check_paths(rest);
  require(rest.skipped + (rest.paths.empty() ? 0 : std::ssize(rest.values) / rest.channels) == rows,
          "rows were lost");
  require(verdict.accepted == (rest.skipped == 0), "bad rows are counted where none is refused");
  if (!verdict.accepted) return verdict;
  require(same(all, rest), "passing over nothing changed something");
  std::reverse(lines.begin(), lines.end());
  const std::string reversed = fmt::format("{}", fmt::join(lines, "\n"));
  require(same(all, read_again([&] { return parse_trajectory_table(reversed, "data.txt"); })),
          "the order of the rows matters");
  for (size_t i = 1; i < all.paths.size(); ++i) {
    const Trajectory &a = all.paths[i - 1], &b = all.paths[i];
    require(a.agent < b.agent || (a.agent == b.agent && a.first_frame < b.first_frame),
            "paths are out of order");
  }
  return verdict;
}

// Behind two numbers each point has one of three classes, or none.
Verdict run_class_table(std::string_view bytes) {
  const std::vector<std::byte> copy = copy_of(bytes);
  const std::string_view text(reinterpret_cast<const char*>(copy.data()), copy.size());
  Trajectories all;
  const Verdict verdict = verdict_of("data.txt:", [&] {
    all = parse_trajectory_table(text, "data.txt", false, {"5", 3});
  });
  const Trajectories rest = read_again([&] {
    return parse_trajectory_table(text, "data.txt", true, {"5", 3});
  });
  require(verdict.accepted == (rest.skipped == 0), "bad rows are counted where none is refused");
  require(!verdict.accepted || (same(all, rest) && all.classes == rest.classes),
          "passing over nothing changed something");
  check_paths(rest);
  require(rest.paths.empty() || rest.channels >= 2, "points of less than two numbers");
  require(std::ssize(rest.classes) * rest.channels == std::ssize(rest.values),
          "not a class for each point");
  require(std::all_of(rest.classes.begin(), rest.classes.end(),
                      [](int32_t label) { return label >= -1 && label < 3; }),
          "a class that there is not");
  std::vector<std::string_view> lines = lines_of(text);
  if (names_among(lines) != lines.end()) return verdict;  // a line of names behind another is none
  // By its name it is the same column.
  const std::string named = fmt::format("#f,a,x,y,kind\n{}", text);
  const Trajectories by_name = read_again([&] {
    return parse_trajectory_table(named, "data.txt", true, {"kind", 3});
  });
  require(same(rest, by_name) && rest.classes == by_name.classes, "another column by its name");
  return verdict;
}

std::string ragged_bytes(const std::vector<float>& values, int64_t channels,
                         const std::vector<int64_t>& offsets) {
  return safetensors_bytes(
      std::vector<TensorToWrite>{
          {"values",
           "F32",
           {std::ssize(values) / channels, channels},
           std::as_bytes(std::span(values))},
          {"offsets", "I64", {std::ssize(offsets)}, std::as_bytes(std::span(offsets))}},
      {});
}

Verdict run_ragged_safetensors(std::string_view bytes) {
  const std::vector<std::byte> copy = copy_of(bytes);
  Trajectories all;
  const Verdict verdict = verdict_of(
      "data.safetensors", [&] { all = read_ragged_safetensors(copy, "data.safetensors"); });
  // Beside values that are not finite, what is refused is refused in any case.
  Trajectories rest;
  const Verdict lenient = verdict_of(
      "data.safetensors", [&] { rest = read_ragged_safetensors(copy, "data.safetensors", true); });
  require(verdict.accepted == (lenient.accepted && rest.skipped == 0), "two verdicts");
  check_paths(rest);
  if (!lenient.accepted || rest.paths.empty()) return verdict;
  require(rest.skipped > 0 || same(all, rest), "passing over nothing changed something");
  std::vector<int64_t> offsets = {0};
  for (const Trajectory& path : rest.paths) offsets.push_back(offsets.back() + path.length);
  const std::string written = ragged_bytes(rest.values, rest.channels, offsets);
  const Trajectories again = read_again(
      [&] { return read_ragged_safetensors(std::as_bytes(std::span(written)), "written"); });
  require(again.values == rest.values && again.paths.size() == rest.paths.size() &&
              again.channels == rest.channels && again.frame_step == rest.frame_step,
          "the paths changed when written and read");
  return verdict;
}

// A valid file, now and then with a value that is not finite.
std::string generate_ragged(RandomStream& random) {
  std::vector<int64_t> offsets = {0};
  for (uint64_t paths = random.below(5); offsets.size() <= paths;)
    offsets.push_back(offsets.back() + 1 + static_cast<int64_t>(random.below(4)));
  const auto channels = static_cast<int64_t>(1 + random.below(3));
  std::vector<float> values(static_cast<size_t>(offsets.back() * channels));
  for (float& value : values)
    value = random.below(32) == 0 ? NAN : static_cast<float>(random.normal());
  return ragged_bytes(values, channels, offsets);
}

}  // namespace

std::vector<Target> data_targets() {
  std::vector<Target> all = {
      {"json_lines",
       run_json_lines,
       json_lines_examples,
       {"\"text\"", "\"a\"", "\"b\"", "\"a\":{\"b\":\"c\"}", "\"text\":\"d\"", "\\ud83d\\ude00",
        "\\udc00", "\\u0061", "\n", "\r\n", "1.7976931348623157e308", "1.7976931348623159e308",
        "\"\\\\\"", "é", "\xED\xA0\x80", "\xEF\xBB\xBF"}},
      {"token_file",
       run_token_file,
       token_file_examples,
       {std::string("\x88\xd8\x34\x01\x01\0\0\0", 8), std::string("\xa1\xd9\x34\x01\x07\0\0\0", 8),
        std::string("\0\0", 2), std::string("\0\0\0\0", 4), "\xff\xff", "\x50\xc4", "\x51\xc4"}},
      {"trajectory_table",
       run_trajectory_table,
       trajectory_table_examples,
       {" ", "\t", ",", ", ", "\n", "\r\n", "# ", "1.0", "10 1 0 0\n", "20 1 0 0\n", "20 2 1 1\n",
        "4611686018427387903", "-4611686018427387903", "1e38", "1e39"}},
      {"class_table",
       run_class_table,
       class_table_examples,
       {" ", ",", ",,", "\n", "# ", "1.0", "-1", "2", "3", "10 1 0 0 2\n", "20,1,0,0,\n"}},
      {"ragged_safetensors",
       run_ragged_safetensors,
       ragged_safetensors_examples,
       {"\"values\"", "\"offsets\"", "\"dtype\"", "\"shape\"", "\"data_offsets\"", "F64", "F32",
        "F16", "BF16", "I64", "U64", "I32", "U32", "I16", "U16"},
       {},
       {},
       generate_ragged,
       true},
  };
  return all;
}

}  // namespace millrace::fuzz
