#include "train/trainer_state.h"

#include <gtest/gtest.h>

#include <cmath>

namespace millrace {
namespace {

Settings by(const std::string& metric) {
  Settings s;
  s.checkpoint.metric = metric;
  return s;
}

TEST(TrainerState, AnotherMetricBeginsAnew) {
  TrainerState state;
  EXPECT_FALSE(state.judge_by("eval/loss")) << "there was nothing to forget";
  EXPECT_TRUE(state.add_evaluation(0.5, by("eval/loss")));
  EXPECT_FALSE(state.add_evaluation(0.75, by("eval/loss")));
  EXPECT_FALSE(state.judge_by("eval/loss"));
  EXPECT_EQ(state.best_metric, 0.5);
  EXPECT_EQ(state.evaluations_without_gain, 1);
  EXPECT_TRUE(state.judge_by("eval/perplexity"));
  EXPECT_FALSE(state.has_best);
  EXPECT_EQ(state.evaluations_without_gain, 0);
  // A checkpoint that is written before the next evaluation must not carry it by the new name.
  EXPECT_TRUE(std::isnan(state.last_metric));
  EXPECT_FALSE(state.judge_by("eval/perplexity"));
  EXPECT_TRUE(state.add_evaluation(2, by("eval/perplexity")))
      << "larger than the old metric's best";
}

TEST(TrainerState, TheMetricIsKeptAndMayBeMissing) {
  TrainerState state;
  state.add_evaluation(0.5, by("eval/loss"));
  const std::string text = state.to_json(10, 1);
  TrainerState read = TrainerState::from_json(text, "here");
  EXPECT_EQ(read.metric_name, "eval/loss");
  EXPECT_TRUE(read.judge_by("eval/perplexity"));
  // As it was written before the name was kept.
  const std::string line = "  \"metric_for_best_model\": \"eval/loss\",\n";
  const size_t at = text.find(line);
  ASSERT_NE(at, std::string::npos);
  read = TrainerState::from_json(std::string(text).erase(at, line.size()), "here");
  EXPECT_TRUE(read.has_best);
  EXPECT_FALSE(read.judge_by("eval/perplexity"));
}

}  // namespace
}  // namespace millrace
