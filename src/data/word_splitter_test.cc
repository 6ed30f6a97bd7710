#include "data/word_splitter.h"

#include <gtest/gtest.h>

#include <vector>

#include "core/error.h"

namespace millrace {
namespace {

constexpr const char* kGpt2 =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
constexpr const char* kLlama3 =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|)"
    R"(\s*[\r\n]+|\s+(?!\S)|\s+)";

using Words = std::vector<std::string>;

Words split(const WordSplitter& splitter, std::string_view text) {
  Words words;
  for (size_t at = 0; at < text.size();) {
    const size_t end = splitter.word_end(text, at);
    EXPECT_GT(end, at);
    EXPECT_LE(end, text.size());
    if (end <= at) break;
    words.emplace_back(text.substr(at, end - at));
    at = end;
  }
  return words;
}

// The words are those of the PyPI package `tokenizers` 0.23.
TEST(WordSplitterTest, Gpt2) {
  const auto s = make_gpt2_splitter();
  EXPECT_EQ(split(*s, "It's we'll I'Ve 'tis"),
            (Words{"It", "'s", " we", "'ll", " I", "'", "Ve", " '", "tis"}));
  EXPECT_EQ(split(*s, "a  b   c "), (Words{"a", " ", " b", "  ", " c", " "}));
  EXPECT_EQ(split(*s, "x\n\n y\t1"), (Words{"x", "\n\n", " y", "\t", "1"}));
  EXPECT_EQ(split(*s, "12345 é\u00A0ü ٣!?"), (Words{"12345", " é", "\u00A0", "ü", " ٣", "!?"}));
  EXPECT_EQ(split(*s, "   "), (Words{"   "}));
  EXPECT_EQ(split(*s, "\xFF\xC3 \x80z"), (Words{"\xFF\xC3", " \x80", "z"}));
}

TEST(WordSplitterTest, Llama3) {
  const auto s = make_splitter(kLlama3, "test");
  EXPECT_EQ(split(*s, "It'S we'LL 'tis"), (Words{"It", "'S", " we", "'LL", " '", "tis"}));
  EXPECT_EQ(split(*s, "'\u017Fo"), (Words{"'\u017F", "o"}));
  EXPECT_EQ(split(*s, "1234567 (x)\n\n  y"),
            (Words{"123", "456", "7", " (", "x", ")\n\n", " ", " y"}));
  EXPECT_EQ(split(*s, "a \n \n  b\tc"), (Words{"a", " \n \n", " ", " b", "\tc"}));
  EXPECT_EQ(split(*s, "-x .\r\n!"), (Words{"-x", " .\r\n", "!"}));
  EXPECT_EQ(split(*s, "\n\nx \t"), (Words{"\n\n", "x", " \t"}));
}

// The hand-written scanners against PCRE2 on the same expressions, where its Unicode agrees. The
// expression in a group is another one, so it is not recognised.
TEST(WordSplitterTest, ScannersDoWhatTheExpressionsSay) {
  const std::vector<std::string> signs = {"'s",   "'S", "'ll",  "'Re",    "'", " ",      "  ",
                                          "\t",   "\n", "\r\n", "\u00A0", "a", "Zé",     "12",
                                          "1234", "!",  "...",  "中",     "😀", "\u2028", "x"};
  uint32_t state = 1;
  for (const char* expression : {kGpt2, kLlama3}) {
    const auto own = make_splitter(expression, "test"),
               pcre = make_splitter("(?:" + std::string(expression) + ")", "test");
    for (int round = 0; round < 5000; ++round) {
      std::string text;
      for (int n = 0; n < 12; ++n) {
        state = state * 1664525 + 1013904223;
        text += signs[(state >> 8) % signs.size()];
      }
      ASSERT_EQ(split(*own, text), split(*pcre, text)) << text;
    }
  }
}

TEST(WordSplitterTest, WhatLiesBetweenMatchesIsAWord) {
  const auto s = make_splitter("[0-9]{2}", "test");
  EXPECT_EQ(split(*s, "ab1234c5"), (Words{"ab", "12", "34", "c5"}));
  EXPECT_EQ(split(*make_splitter("x*", "test"), "axxb"), (Words{"a", "xx", "b"}));
}

TEST(WordSplitterTest, RefusesWhatIsNoExpression) {
  try {
    make_splitter("(a", "tokenizer.json");
    FAIL();
  } catch (const Error& e) {
    EXPECT_EQ(e.fields().where, "tokenizer.json");
    EXPECT_NE(e.fields().got.find("at byte 2"), std::string::npos) << e.what();
  }
}

}  // namespace
}  // namespace millrace
