// BLEU, chrF and ROUGE against sacrebleu and rouge-score on small corpora of odd texts
// (make_text_metrics.py). Counts are whole numbers and the formulas a few operations in double, at
// most 100: 1e-10 is 7,000 times their rounding, and far below what one n-gram more or less does.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "core/file.h"
#include "train/bleu.h"
#include "train/chrf.h"
#include "train/rouge.h"

namespace millrace {
namespace {

constexpr double kScoreTolerance = 1e-10;

void expect_rouge(const RougeScore& got, const nlohmann::json& wanted) {
  EXPECT_NEAR(got.precision, 100 * wanted[0].get<double>(), kScoreTolerance);
  EXPECT_NEAR(got.recall, 100 * wanted[1].get<double>(), kScoreTolerance);
  EXPECT_NEAR(got.f1, 100 * wanted[2].get<double>(), kScoreTolerance);
}

TEST(GoldenTextMetrics, SmallCorpora) {
  const auto file = nlohmann::json::parse(
      read_file(fs::path(MILLRACE_SOURCE_DIR) / "tests" / "golden" / "text_metrics.json"));
  ASSERT_FALSE(file["corpora"].empty());
  for (const auto& corpus : file["corpora"]) {
    Bleu bleu;
    Chrf chrf;
    Rouge rouge, rouge_of_stems(true);
    for (size_t i = 0; i < corpus["hypotheses"].size(); ++i) {
      const auto hypothesis = corpus["hypotheses"][i].get<std::string>();
      const auto reference = corpus["references"][i].get<std::string>();
      SCOPED_TRACE(hypothesis + "\n" + reference);
      bleu.add(hypothesis, reference);
      chrf.add(hypothesis, reference);
      rouge.add(hypothesis, reference);
      rouge_of_stems.add(hypothesis, reference);
      Bleu alone;
      alone.add(hypothesis, reference);
      EXPECT_NEAR(alone.sentence_score(), corpus["sentence_bleu"][i].get<double>(),
                  kScoreTolerance);
    }
    SCOPED_TRACE(corpus["hypotheses"].dump() + "\n" + corpus["references"].dump());
    EXPECT_NEAR(bleu.score(), corpus["bleu"].get<double>(), kScoreTolerance);
    EXPECT_NEAR(chrf.score(), corpus["chrf"].get<double>(), kScoreTolerance);
    const Rouge::Scores words = rouge.mean(), stems = rouge_of_stems.mean();
    expect_rouge(words.rouge1, corpus["rouge1"]);
    expect_rouge(words.rouge2, corpus["rouge2"]);
    expect_rouge(words.rougeL, corpus["rougeL"]);
    expect_rouge(stems.rouge1, corpus["rouge1_stem"]);
    expect_rouge(stems.rouge2, corpus["rouge2_stem"]);
    expect_rouge(stems.rougeL, corpus["rougeL_stem"]);
  }
}

}  // namespace
}  // namespace millrace
