#include "io/yaml.h"

#include <gtest/gtest.h>

#include "core/error.h"
#include "core/rng.h"

namespace millrace {
namespace {

using Kind = YamlNode::Kind;

ErrorFields error_of(const std::string& text) {
  try {
    parse_yaml(text, "f.yaml");
  } catch (const Error& error) {
    return error.fields();
  }
  return {};
}

std::string repeated(const std::string& unit, int count) {
  std::string text;
  for (int i = 0; i < count; ++i) text += unit;
  return text;
}

TEST(YamlTest, ReadsATree) {
  const YamlNode root = parse_yaml(
      "a: 1\n"
      "b:\n"
      "  c: \"x\"  # comment\n"
      "  d: [1, two]\n"
      "  e:\n"
      "    - null\n",
      "f.yaml");
  ASSERT_EQ(root.kind, Kind::map);
  ASSERT_EQ(root.entries.size(), 2u);
  EXPECT_EQ(root.entries[0].key, "a");
  EXPECT_EQ(root.entries[0].value.text, "1");
  EXPECT_FALSE(root.entries[0].value.quoted);
  const YamlNode& b = root.entries[1].value;
  ASSERT_EQ(b.kind, Kind::map);
  EXPECT_EQ(b.entries[0].line, 3);
  EXPECT_EQ(b.entries[0].column, 3);
  EXPECT_EQ(b.entries[0].value.text, "x");
  EXPECT_TRUE(b.entries[0].value.quoted);
  EXPECT_EQ(b.entries[0].value.line, 3);
  EXPECT_EQ(b.entries[0].value.column, 6);
  ASSERT_EQ(b.entries[1].value.kind, Kind::list);
  EXPECT_EQ(b.entries[1].value.items[1].text, "two");
  EXPECT_EQ(b.entries[1].value.items[1].column, 10);
  EXPECT_EQ(b.entries[2].value.items[0].kind, Kind::null);
}

TEST(YamlTest, ReadsJson) {
  const YamlNode root =
      parse_yaml("{\n\t\"a\": {\"b\": 1e-4},\r\n\t\"c\": \"8GiB\"\n}\n", "f.json");
  ASSERT_EQ(root.entries.size(), 2u);
  EXPECT_EQ(root.entries[0].value.entries[0].value.text, "1e-4");
  EXPECT_TRUE(root.entries[1].value.quoted);
  EXPECT_EQ(root.entries[1].line, 3);
}

TEST(YamlTest, Variants) {
  EXPECT_EQ(parse_yaml("", "f").kind, Kind::null);
  EXPECT_EQ(parse_yaml("# only words\n\n", "f").kind, Kind::null);
  EXPECT_EQ(parse_yaml("---\n", "f").kind, Kind::null);
  EXPECT_EQ(parse_yaml("---\na: 1\n...\n", "f").entries.size(), 1u);
  EXPECT_EQ(parse_yaml("\xEF\xBB\xBF"
                       "a: 1\n",
                       "f")
                .entries[0]
                .key,
            "a");
  EXPECT_EQ(parse_yaml("a: 1\r\nb: 2\r\n", "f").entries[1].value.text, "2");
  EXPECT_EQ(parse_yaml("a: |\n  one\n  two\n", "f").entries[0].value.text, "one\ntwo\n");
  EXPECT_EQ(parse_yaml("a: |+\n  one\n\n", "f").entries[0].value.text, "one\n\n");
  EXPECT_EQ(parse_yaml("a: |-\n  one", "f").entries[0].value.text, "one");
  EXPECT_EQ(parse_yaml("a: \"one\n  two\"", "f").entries[0].value.text, "one two");
  EXPECT_TRUE(parse_yaml("a: |\n  one\n", "f").entries[0].value.quoted);
  EXPECT_EQ(parse_yaml("a: größe\n", "f").entries[0].value.text, "größe");
}

TEST(YamlTest, DepthIsLimited) {
  auto nested = [](int depth) {
    return "a: " + repeated("[", depth - 1) + repeated("]", depth - 1) + "\n";
  };
  EXPECT_EQ(parse_yaml(nested(kMaxYamlDepth), "f").entries.size(), 1u);
  EXPECT_EQ(error_of(nested(kMaxYamlDepth + 1)).what, "the nesting is too deep");
  // Ways to make the parser recurse, far beyond what a stack would hold.
  for (const char* unit : {"[", "{", "- ", "? ", "[a,", "{a: ", "[\n", "[[],", "{a: [", "[? "}) {
    EXPECT_EQ(error_of(repeated(unit, 10'000)).what, "the nesting is too deep") << unit;
  }
  std::string stairs;
  for (int i = 0; i < 1000; ++i) stairs += std::string(static_cast<size_t>(i), ' ') + "k:\n";
  EXPECT_EQ(error_of(stairs).what, "the nesting is too deep");
}

TEST(YamlTest, SizeIsLimited) {
  std::string text = "a: 1\n";
  text.resize(kMaxYamlBytes, '#');
  EXPECT_EQ(error_of("#" + text).what, "the file is too large");
  text[5] = ' ';  // "a: 1\n ###..." is a comment
  EXPECT_EQ(parse_yaml(text, "f").entries.size(), 1u);
}

TEST(YamlTest, CleanTextLength) {
  EXPECT_EQ(clean_text_length(""), 0u);
  EXPECT_EQ(clean_text_length("tab\tline\r\n"), 10u);
  EXPECT_EQ(clean_text_length("ü€😀"), 9u);
  EXPECT_EQ(clean_text_length("a\x7f"), 1u);
  EXPECT_EQ(clean_text_length("ü\xE2\x82"), 2u);          // cut short
  EXPECT_EQ(clean_text_length("a\xF4\x90\x80\x80"), 1u);  // above U+10FFFF
  EXPECT_EQ(clean_text_length("a\xE0\x80\x80"), 1u);      // overlong
}

// Random damage to a file with every construct: an answer or an Error, nothing else.
TEST(YamlTest, SurvivesRandomDamage) {
  const std::string seed_text =
      "%YAML 1.2\n---\na: 1\nb: {c: \"x\\u0041\", d: ['y', 2]}\ne:\n  - f: |\n      text\n  - >-\n"
      "    folded\n? g\n: h\ni: !t &x z\nj: *x\n# end\n...\n";
  const std::string bytes = "[]{}:,-?&*!|>'\"%@`# \t\n\r\\~<=a0\xC3\xA9";
  RandomStream random(1, RandomUse::test);
  int refused = 0;
  for (int round = 0; round < 3000; ++round) {
    std::string text = seed_text;
    for (uint64_t i = 0, edits = 1 + random.below(6); i < edits; ++i) {
      const size_t at = random.below(text.size());
      switch (random.below(3)) {
        case 0:
          text[at] = bytes[random.below(bytes.size())];
          break;
        case 1:
          text.insert(at, 1, bytes[random.below(bytes.size())]);
          break;
        default:
          text.erase(at, 1 + random.below(20));
          break;
      }
    }
    refused += error_of(text).what.empty() ? 0 : 1;
  }
  EXPECT_GT(refused, 0);
}

}  // namespace
}  // namespace millrace
