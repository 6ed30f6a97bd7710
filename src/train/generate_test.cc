#include "train/generate.h"

#include <gtest/gtest.h>

#include <cmath>

namespace millrace {
namespace {

// Probabilities 0.4, 0.1, 0.3, 0.05, 0.15 at temperature 1.
const std::vector<double> kProbabilities{0.4, 0.1, 0.3, 0.05, 0.15};
std::vector<float> logits() {
  std::vector<float> l;
  for (double p : kProbabilities) l.push_back(static_cast<float>(std::log(p) + 7));
  return l;
}

std::vector<double> frequencies(const GenerateOptions& options, int draws = 20000) {
  std::vector<double> counts(kProbabilities.size());
  for (int i = 0; i < draws; ++i)
    counts[static_cast<size_t>(sample_token(logits(), options, (i + 0.5) / draws))] += 1.0 / draws;
  return counts;
}

// Evenly spaced uniform numbers: each frequency is exact to one draw at each end of its interval.
void expect_frequencies(const GenerateOptions& options, std::vector<double> wanted) {
  double sum = 0;
  for (double w : wanted) sum += w;
  const auto got = frequencies(options);
  for (size_t v = 0; v < wanted.size(); ++v) {
    EXPECT_NEAR(got[v], wanted[v] / sum, 2.0 / 20000 + 1e-6) << "token " << v;
    if (wanted[v] == 0) {
      EXPECT_EQ(got[v], 0) << "token " << v;
    }
  }
}

TEST(SampleToken, ZeroTemperatureIsTheLikeliestAndTheFirstOfEqualOnes) {
  for (double uniform : {0.0, 0.5, 0.999999})
    EXPECT_EQ(sample_token(logits(), {.temperature = 0}, uniform), 0);
  EXPECT_EQ(sample_token(std::vector<float>{1, 3, 3, 2}, {.temperature = 0}, 0.9), 1);
  EXPECT_EQ(sample_token(std::vector<float>{-5}, {.temperature = 0}, 0.9), 0);
}

TEST(SampleToken, TemperatureIsAnExponent) {
  expect_frequencies({.temperature = 1}, kProbabilities);
  for (double temperature : {0.5, 2.0, 30.0}) {
    std::vector<double> wanted;
    for (double p : kProbabilities) wanted.push_back(std::pow(p, 1 / temperature));
    expect_frequencies({.temperature = temperature}, wanted);
  }
}

TEST(SampleToken, TopKKeepsTheLikeliest) {
  expect_frequencies({.temperature = 1, .top_k = 1}, {1, 0, 0, 0, 0});
  expect_frequencies({.temperature = 1, .top_k = 3}, {0.4, 0, 0.3, 0, 0.15});
  expect_frequencies({.temperature = 1, .top_k = 5}, kProbabilities);
  expect_frequencies({.temperature = 1, .top_k = 900}, kProbabilities);
  // Of equal ones, the lower id.
  for (double u : {0.1, 0.9}) {
    const int32_t token =
        sample_token(std::vector<float>{0, 1, 1, 1}, {.temperature = 1, .top_k = 2}, u);
    EXPECT_TRUE(token == 1 || token == 2) << token;
  }
}

TEST(SampleToken, TopPKeepsTheFewestThatHaveTheProbability) {
  expect_frequencies({.temperature = 1, .top_p = 0.39}, {1, 0, 0, 0, 0});
  expect_frequencies({.temperature = 1, .top_p = 0.41}, {0.4, 0, 0.3, 0, 0});
  expect_frequencies({.temperature = 1, .top_p = 0.69}, {0.4, 0, 0.3, 0, 0});
  expect_frequencies({.temperature = 1, .top_p = 0.71}, {0.4, 0, 0.3, 0, 0.15});
  expect_frequencies({.temperature = 1, .top_p = 1e-9}, {1, 0, 0, 0, 0});
  expect_frequencies({.temperature = 1, .top_p = 1}, kProbabilities);
}

TEST(SampleToken, TopPCountsWhatTopKLeft) {
  // Of 0.4 and 0.3 alone, the first has 0.571.
  expect_frequencies({.temperature = 1, .top_k = 2, .top_p = 0.57}, {1, 0, 0, 0, 0});
  expect_frequencies({.temperature = 1, .top_k = 2, .top_p = 0.58}, {0.4, 0, 0.3, 0, 0});
}

TEST(SampleToken, ExtremeLogitsAndDraws) {
  EXPECT_EQ(sample_token(std::vector<float>{-3e38f, 3e38f}, {.temperature = 1}, 0.999999999), 1);
  EXPECT_EQ(sample_token(std::vector<float>{3e38f, -3e38f}, {.temperature = 0.01}, 0), 0);
  for (double u : {0.0, 1 - 0x1p-53}) {
    const int32_t token = sample_token(logits(), {.temperature = 1}, u);
    EXPECT_EQ(token, u == 0 ? 0 : 4);
  }
}

}  // namespace
}  // namespace millrace
