#include "train/ngrams.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>

namespace millrace {
namespace {

using Signs = std::vector<uint32_t>;

std::map<Signs, int64_t> ngrams(const Signs& text, size_t n) {
  std::map<Signs, int64_t> result;
  for (size_t i = 0; i + n <= text.size(); ++i)
    ++result[Signs(text.begin() + static_cast<int64_t>(i),
                   text.begin() + static_cast<int64_t>(i + n))];
  return result;
}

TEST(Ngrams, CountedAsByTablesOfThem) {
  std::mt19937 random(1);
  for (int i = 0; i < 500; ++i) {
    // Few different signs: the same n-grams come again.
    auto draw = [&] {
      Signs text(random() % 30);
      for (uint32_t& sign : text) sign = random() % (1 + i % 5);
      return text;
    };
    const Signs hypothesis = draw(), reference = draw();
    std::vector<NgramCounts> counts(6);
    count_ngrams(hypothesis, reference, counts);
    for (size_t n = 1; n <= counts.size(); ++n) {
      NgramCounts wanted;
      const auto mine = ngrams(hypothesis, n), theirs = ngrams(reference, n);
      for (const auto& [ngram, count] : mine) {
        wanted.hypothesis += count;
        const auto found = theirs.find(ngram);
        if (found != theirs.end()) wanted.shared += std::min(count, found->second);
      }
      for (const auto& [ngram, count] : theirs) wanted.reference += count;
      EXPECT_EQ(counts[n - 1].hypothesis, wanted.hypothesis);
      EXPECT_EQ(counts[n - 1].reference, wanted.reference);
      EXPECT_EQ(counts[n - 1].shared, wanted.shared);
    }
  }
}

TEST(Ngrams, CountsAreAdded) {
  std::vector<NgramCounts> counts(2);
  for (int i = 0; i < 3; ++i) count_ngrams(Signs{7, 8, 7}, Signs{7, 8}, counts);
  EXPECT_EQ(counts[0].hypothesis, 9);
  EXPECT_EQ(counts[0].reference, 6);
  EXPECT_EQ(counts[0].shared, 6);
  EXPECT_EQ(counts[1].shared, 3);
}

TEST(Ngrams, EqualWordsHaveEqualNumbers) {
  const std::vector<std::string> hypothesis{"a", "b", "a"}, reference{"c", "b"};
  const NumberedWords words = number_words(hypothesis, reference);
  EXPECT_EQ(words.hypothesis[0], words.hypothesis[2]);
  EXPECT_EQ(words.hypothesis[1], words.reference[1]);
  EXPECT_NE(words.hypothesis[0], words.hypothesis[1]);
  EXPECT_NE(words.hypothesis[0], words.reference[0]);
}

}  // namespace
}  // namespace millrace
