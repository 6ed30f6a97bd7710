// What tests/golden/text_metrics_test.cc, which compares with rouge-score, does not reach.
#include "train/rouge.h"

#include <gtest/gtest.h>

namespace millrace {
namespace {

using Words = std::vector<std::string>;

TEST(TokenizeRouge, RunsOfLettersAndDigits) {
  EXPECT_EQ(tokenize_rouge("The U.S. won't pay 1,000.5_x"),
            (Words{"the", "u", "s", "won", "t", "pay", "1", "000", "5", "x"}));
  EXPECT_EQ(tokenize_rouge("na\u00EFve \u4E2D\u6587 \xFF \xE2\x84"), (Words{"na", "ve"}));
  EXPECT_EQ(tokenize_rouge("5\u212A\u212Ag \u0130stanbul"), (Words{"5kkg", "i", "stanbul"}));
  EXPECT_EQ(tokenize_rouge("cats flying skies", true), (Words{"cat", "fli", "sky"}));
  EXPECT_EQ(tokenize_rouge("was ties"), (Words{"was", "ties"}));
  EXPECT_EQ(tokenize_rouge("was ties", true), (Words{"was", "tie"}));  // three letters stay
}

TEST(Rouge, ByHand) {
  Rouge rouge;
  rouge.add("police killed the gunman", "the gunman police killed yesterday");
  const Rouge::Scores scores = rouge.mean();
  EXPECT_NEAR(scores.rouge1.precision, 100, 1e-12);
  EXPECT_NEAR(scores.rouge1.recall, 80, 1e-12);
  EXPECT_NEAR(scores.rouge1.f1, 100 * 2 * 0.8 / 1.8, 1e-12);
  EXPECT_NEAR(scores.rouge2.precision, 200.0 / 3, 1e-12);
  EXPECT_NEAR(scores.rouge2.recall, 50, 1e-12);
  EXPECT_NEAR(scores.rougeL.precision, 50, 1e-12);
  EXPECT_NEAR(scores.rougeL.recall, 40, 1e-12);
}

TEST(Rouge, MeanOfPairs) {
  EXPECT_EQ(Rouge().mean().rouge1.f1, 0);
  Rouge rouge;
  rouge.add("a b", "a b");
  rouge.add("", "a");
  rouge.add("a", "");
  rouge.add("", "");
  EXPECT_NEAR(rouge.mean().rouge1.f1, 25, 1e-12);
  EXPECT_NEAR(rouge.mean().rouge2.recall, 25, 1e-12);
  EXPECT_NEAR(rouge.mean().rougeL.precision, 25, 1e-12);
}

}  // namespace
}  // namespace millrace
