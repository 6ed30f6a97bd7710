#include "doctor/comparison.h"

#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

namespace millrace {
namespace {

// Ten windows after a slow first one; every other is `spread` slower or faster.
RecordedRun run_of(double forward, double wait, double spread) {
  RecordedRun run;
  run.state = "finished";
  run.config = {{"model.type", "gpt"}, {"training.batch_size", "8"}, {"run_name", "x"}};
  for (int i = 0; i <= 10; ++i) {
    const double seconds = (forward + wait) * (i == 0 ? 20 : 1) + (i % 2 ? spread : -spread);
    TrainPoint p{i + 1, 0, 0, 3.0 - 0.1 * i, 1024 / seconds, seconds, {}};
    p.shares[static_cast<size_t>(Owner::forward)] = forward / (forward + wait);
    p.shares[static_cast<size_t>(Owner::input_wait)] = wait / (forward + wait);
    run.train.push_back(p);
  }
  return run;
}

TEST(ComparisonTest, WhereTheTimeWent) {
  const RecordedRun a = run_of(0.5, 0.3, 0), b = run_of(0.4, 0.0, 0);
  const Comparison c = compare(a, b);
  EXPECT_NEAR(c.a.total, 0.8, 1e-9);
  EXPECT_NEAR(c.b.total, 0.4, 1e-9);
  ASSERT_GE(c.changes.size(), 2u);
  EXPECT_EQ(c.changes[0].first, Owner::input_wait);
  EXPECT_NEAR(c.changes[0].second, -0.3, 1e-9);
  EXPECT_EQ(c.changes[1].first, Owner::forward);
  double sum = 0;
  for (const auto& [owner, change] : c.changes) sum += change;
  EXPECT_NEAR(sum, c.b.total - c.a.total, 1e-12);
  EXPECT_TRUE(c.workload.empty());
  const std::string text = comparison_text(c, a, b, 0.05, false);
  for (const char* word : {"A 800 ms -> B 400 ms (-50.0 %): input_wait -300 ms, forward -100 ms",
                           "loss at 11", "not slower"})
    EXPECT_NE(text.find(word), std::string::npos) << word << "\nin\n" << text;
}

TEST(ComparisonTest, ARegressionIsBeyondTheNoise) {
  const RecordedRun a = run_of(1, 0, 0.001), slower = run_of(1.2, 0, 0.001);
  EXPECT_TRUE(compare(a, slower).is_regression(0.05));
  EXPECT_FALSE(compare(a, slower).is_regression(0.25));
  EXPECT_FALSE(compare(slower, a).is_regression(0));
  // The same difference between runs that swing by half.
  EXPECT_FALSE(compare(run_of(1, 0, 0.5), run_of(1.2, 0, 0.5)).is_regression(0.05));
  // Two standard errors of a mean of n times that are d above or below it: 2 d / sqrt(n - 1).
  const double one = 4 * 0.25 / 9;
  EXPECT_NEAR(*compare(run_of(1, 0, 0.5), run_of(1, 0, 0.5)).noise, std::sqrt(2 * one), 1e-9);
}

TEST(ComparisonTest, TooShortToBeJudged) {
  RecordedRun a = run_of(1, 0, 0), b = run_of(2, 0, 0);
  b.train.resize(3);
  EXPECT_FALSE(compare(a, b).noise);
  EXPECT_FALSE(compare(a, b).is_regression(0.05));
  const RecordedRun nothing;
  EXPECT_NE(comparison_text(compare(a, nothing), a, nothing, 0.05, false).find("no times: B"),
            std::string::npos);
  EXPECT_TRUE(
      comparison_json(compare(nothing, nothing), nothing, nothing, 0.05)["regression"].is_null());
}

TEST(ComparisonTest, OtherWorkIsSaid) {
  const RecordedRun a = run_of(1, 0, 0);
  RecordedRun b = a;
  b.config["run_name"] = "y";
  b.config["runtime.threads"] = "2";
  EXPECT_TRUE(compare(a, b).workload.empty());
  EXPECT_EQ(compare(a, b).config.size(), 1u);
  b.config["training.batch_size"] = "16";
  for (TrainPoint& p : b.train) p.tokens_per_second *= 2;
  b.machine = "another";
  const Comparison c = compare(a, b);
  EXPECT_EQ(c.workload.size(), 2u);  // the setting, and what is seen of it
  EXPECT_EQ(c.machine.size(), 1u);
  EXPECT_NE(comparison_text(c, a, b, 0.05, false).find("do not do the same work"),
            std::string::npos);
}

}  // namespace
}  // namespace millrace
