// What tests/golden/text_metrics_test.cc, which compares with sacrebleu, does not reach.
#include "train/chrf.h"

#include <gtest/gtest.h>

namespace millrace {
namespace {

double chrf(std::string_view hypothesis, std::string_view reference) {
  Chrf chrf;
  chrf.add(hypothesis, reference);
  return chrf.score();
}

TEST(Chrf, ByHand) {
  EXPECT_EQ(chrf("abc", "abc"), 100);
  EXPECT_EQ(chrf("a b\u00A0c", "\tabc"), 100);  // white space does not count
  // Of 3 characters 2 and of 2 pairs 1, in a reference of 2 and 1: longer ones are in neither.
  const double precision = (2.0 / 3 + 1.0 / 2) / 2, recall = 1;
  EXPECT_NEAR(chrf("abx", "ab"), 100 * 5 * precision * recall / (4 * precision + recall), 1e-12);
}

TEST(Chrf, CharactersAreCodePoints) {
  EXPECT_EQ(chrf("\u00E9", "\u00E8"), 0);              // though they begin with the same byte
  EXPECT_EQ(chrf("\u00E9", "e\u0301"), 0);             // nor is one the other's composition
  EXPECT_EQ(chrf("\xFF", "\xFF"), 100);                // a byte that is no text is a sign
  EXPECT_EQ(chrf("\xFF", "\xFE"), 0);                  // and another byte another sign
  EXPECT_GT(chrf("\u4E2D\u6587", "\u4E2D\u56FD"), 0);  // of two signs one
}

TEST(Chrf, WithoutMatchesIsNought) {
  EXPECT_EQ(Chrf().score(), 0);
  EXPECT_EQ(chrf("", ""), 0);
  EXPECT_EQ(chrf("a", ""), 0);
  EXPECT_EQ(chrf("", "a"), 0);
  EXPECT_EQ(chrf("a", "b"), 0);
}

}  // namespace
}  // namespace millrace
