// What tests/golden/text_metrics_test.cc, which compares with sacrebleu, does not reach: the rules
// of the tokenizer one by one, texts with line ends, bytes that are no text.
#include "train/bleu.h"

#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <cmath>

namespace millrace {
namespace {

std::string tokens(std::string_view text) {
  return fmt::format("{}", fmt::join(tokenize_13a(text), "|"));
}

TEST(Tokenize13a, Rules) {
  const std::pair<const char*, const char*> cases[] = {
      {"", ""},
      {" \t\u00A0 ", ""},
      {"Hello, world!", "Hello|,|world|!"},
      {"a\u3000b\u00A0c\x1C"
       "d\u200Be",
       "a|b|c|d\u200Be"},
      {"(a)/[b]{c}", "(|a|)|/|[|b|]|{|c|}"},
      {"it's rock'n'roll", "it's|rock'n'roll"},
      {"1,000.5 3.14. .5 5.", "1,000.5|3.14|.|.|5|5|."},
      {"v1.2a", "v1.2a"},
      {"a.5 5.a", "a|.|5|5|.|a"},
      {"well-known 5-3 -5", "well-known|5|-|3|-5"},
      {"a,,b", "a|,|,|b"},
      {"1...2", "1|.|.|.2"},
      {"\u00E9.\u00E9", "\u00E9|.|\u00E9"},
      {"&quot;a&amp;b&lt;c&gt;&quot;", "\"|a|&|b|<|c|>|\""},
      {"&amp;lt; &lt;amp;", "<|<|amp|;"},
      {"a<skipped>b", "ab"},
      {"in-\nter-\nnational", "international"},
      {"a\nb", "a|b"},
      {"end-\n", "end-"},
      {"a\xFF.\xE2\x82", "a\xFF|.|\xE2\x82"},
  };
  for (const auto& [text, wanted] : cases) EXPECT_EQ(tokens(text), wanted) << text;
}

double bleu(std::string_view hypothesis, std::string_view reference) {
  Bleu bleu;
  bleu.add(hypothesis, reference);
  return bleu.score();
}

TEST(Bleu, ByHand) {
  EXPECT_NEAR(bleu("the cat sat on the mat", "the cat sat on the mat"), 100, 1e-12);
  // Of 6 words 5, of 5 pairs 3, of 4 triples 1, of 3 quadruples none: counted as half a one.
  EXPECT_NEAR(bleu("the cat sat on a mat", "the cat is on a mat"),
              100 * std::pow(5.0 / 6 * 3 / 5 * 1 / 4 * 0.5 / 3, 0.25), 1e-12);
  // Four words for six: exp(1 - 6 / 4).
  EXPECT_NEAR(bleu("the cat sat on", "the cat sat on the mat"), 100 * std::exp(-0.5), 1e-12);
  EXPECT_EQ(bleu("The", "the"), 0);
}

TEST(Bleu, WithoutMatchesOrWithoutLongNgramsIsNought) {
  EXPECT_EQ(Bleu().score(), 0);
  EXPECT_EQ(Bleu().sentence_score(), 0);
  EXPECT_EQ(bleu("", ""), 0);
  EXPECT_EQ(bleu("", "a b c d"), 0);
  EXPECT_EQ(bleu("a b c d", ""), 0);
  EXPECT_EQ(bleu("a b c d", "e f g h"), 0);
  EXPECT_EQ(bleu("a b c", "a b c"), 0);
  Bleu line;
  line.add("a b c", "a b c");
  EXPECT_NEAR(line.sentence_score(), 100, 1e-12);
}

}  // namespace
}  // namespace millrace
