#include "train/settings.h"

#include <gtest/gtest.h>

#include <cmath>

#include "core/error.h"

namespace millrace {
namespace {

constexpr double kPeak = 0.02;
constexpr int64_t kWarmup = 10, kTotal = 110;  // a hundred updates after the warm-up

double rate(const std::string& kind, int64_t step, double min_ratio = 0.1,
            double decay_fraction = 0.2) {
  return learning_rate_at({kind, {kWarmup}, min_ratio, decay_fraction}, kPeak, step, {kTotal});
}

// Formulas are evaluated in double in another order: a few roundings apart.
void expect_rate(double got, double want) { EXPECT_NEAR(got, want, 1e-15) << want; }

const char* const kKinds[] = {"cosine", "constant", "linear", "inverse_sqrt", "wsd"};

TEST(LearningRate, WarmsUpLinearlyToThePeakInEverySchedule) {
  for (const char* kind : kKinds) {
    SCOPED_TRACE(kind);
    expect_rate(rate(kind, 0), kPeak / 10);
    expect_rate(rate(kind, 4), kPeak / 2);
    expect_rate(rate(kind, kWarmup - 1), kPeak);
  }
}

TEST(LearningRate, FirstUpdateAfterTheWarmUpIsAtThePeak) {
  for (const char* kind : {"cosine", "constant", "linear", "wsd"})
    expect_rate(rate(kind, kWarmup), kPeak);
  expect_rate(rate("inverse_sqrt", kWarmup), kPeak * std::sqrt(10.0 / 11));
}

TEST(LearningRate, MiddleOfTheRun) {
  const int64_t middle = kWarmup + 50;
  expect_rate(rate("cosine", middle), kPeak * 0.55);  // half way between 1 and 0.1
  expect_rate(rate("constant", middle), kPeak);
  expect_rate(rate("linear", middle), kPeak * 0.55);
  expect_rate(rate("inverse_sqrt", middle), kPeak * std::sqrt(10.0 / 61));
  expect_rate(rate("wsd", middle), kPeak);
  // A quarter in, cosine and line differ: (1 + cos(pi/4)) / 2.
  expect_rate(rate("cosine", kWarmup + 25), kPeak * (0.1 + 0.9 * 0.5 * (1 + std::sqrt(0.5))));
  expect_rate(rate("linear", kWarmup + 25), kPeak * 0.775);
}

TEST(LearningRate, EndOfTheRun) {
  for (const char* kind : {"cosine", "linear", "wsd"}) {
    SCOPED_TRACE(kind);
    expect_rate(rate(kind, kTotal), kPeak * 0.1);
    expect_rate(rate(kind, kTotal, 0), 0);
    expect_rate(rate(kind, kTotal, 1), kPeak);
    expect_rate(rate(kind, 10 * kTotal), kPeak * 0.1);  // never past the end
  }
  expect_rate(rate("constant", kTotal), kPeak);
  expect_rate(rate("inverse_sqrt", kTotal), kPeak * std::sqrt(10.0 / 111));
  expect_rate(rate("linear", kTotal - 1), kPeak * (1 - 0.9 * 0.99));
}

TEST(LearningRate, WsdIsFlatAndThenFallsOverItsLastPart) {
  expect_rate(rate("wsd", kWarmup + 79), kPeak);
  expect_rate(rate("wsd", kWarmup + 80), kPeak);
  expect_rate(rate("wsd", kWarmup + 90), kPeak * 0.55);
  expect_rate(rate("wsd", kWarmup + 50, 0.1, 1.0), kPeak * 0.55);  // all of it decays
  expect_rate(rate("wsd", kTotal - 1, 0.1, 0.0), kPeak);           // none of it
}

TEST(LearningRate, NeverRisesAfterTheWarmUpAndStaysInRange) {
  for (const char* kind : kKinds) {
    double before = kPeak;
    for (int64_t step = kWarmup; step <= kTotal + 5; ++step) {
      const double now = rate(kind, step);
      EXPECT_TRUE(now <= before && now >= 0) << kind << " at " << step;
      before = now;
    }
  }
}

TEST(LearningRate, EdgesOfTheCounts) {
  for (const char* kind : kKinds) {
    SCOPED_TRACE(kind);
    // No warm-up: the first update is at the peak.
    expect_rate(learning_rate_at({kind, {0}, 0.1, 0.2}, kPeak, 0, {100}), kPeak);
    // A warm-up as long as the run, or longer: no division by zero.
    expect_rate(learning_rate_at({kind, {100}, 0.1, 0.2}, kPeak, 99, {100}), kPeak);
    expect_rate(learning_rate_at({kind, {200}, 0.1, 0.2}, kPeak, 49, {100}), kPeak / 4);
    // One update in all.
    expect_rate(learning_rate_at({kind, {0}, 0.1, 0.2}, kPeak, 0, {1}), kPeak);
  }
}

TEST(Settings, DeclaredDefaultsAreThoseOfTheStruct) {
  Settings settings;
  Schema schema;
  settings.declare(schema);
  const Settings fresh;
  schema.load_text(
      "training:\n  learning_rate: 0.5\n  schedule: wsd\nruntime:\n  memory_limit: 1GiB\n",
      "test.yaml");
  schema.finish();
  EXPECT_EQ(settings.optimizer.learning_rate, 0.5);
  EXPECT_EQ(settings.schedule.kind, "wsd");
  EXPECT_EQ(settings.memory_limit, int64_t{1} << 30);
  EXPECT_EQ(settings.batch_size, fresh.batch_size);
  EXPECT_EQ(schema.origin("training.schedule"), "test.yaml:3:13");
}

TEST(Settings, ValuesOutsideTheirRangeAreRefused) {
  for (const char* bad : {"training.learning_rate=0", "training.learning_rate=nan",
                          "training.beta2=1", "training.batch_size=0", "data.validation_fraction=1",
                          "training.schedule=cos", "training.gradient_clip=-1",
                          "training.max_length=0", "seed=-1", "runtime.memory_limit=much"}) {
    Settings settings;
    Schema schema;
    settings.declare(schema);
    EXPECT_THROW(schema.override_with(bad), Error) << bad;
  }
}

TEST(RunLength, FollowsStepsTokensOrEpochs) {
  Settings s;
  s.batch_size = 4;
  s.grad_accum = 2;
  s.max_length = 10;
  s.num_epochs = 3;
  // 10 updates of 80 tokens an epoch.
  EXPECT_EQ(run_length(s, 10.0, 80).total, 30);
  s.max_tokens = 1000;  // 80 tokens an update
  EXPECT_EQ(run_length(s, 10.0, 80).total, 13);
  s.max_steps = 7;
  const RunLength length = run_length(s, 10.0, 80);
  EXPECT_EQ(length.total, 7);
  using Unit = Duration::Unit;
  EXPECT_EQ(length.steps({5, Unit::steps}), 5);
  EXPECT_EQ(length.steps({160, Unit::tokens}), 2);
  EXPECT_EQ(length.steps({0.5, Unit::epochs}), 5);
  EXPECT_EQ(length.steps({60, Unit::seconds}), 0);
}

TEST(RunLength, DueOncePerInterval) {
  const RunLength length{100, 10, 80};
  using Unit = Duration::Unit;
  auto count = [&](const std::vector<Duration>& every) {
    int due = 0;
    for (int64_t step = 1; step <= 100; ++step) due += length.due(every, step);
    return due;
  };
  EXPECT_EQ(count({}), 0);
  EXPECT_EQ(count({{0}}), 0);
  EXPECT_EQ(count({{1}}), 100);
  EXPECT_EQ(count({{7}}), 14);
  EXPECT_EQ(count({{2.5}}), 40);
  EXPECT_EQ(count({{0.25, Unit::epochs}}), 40);
  EXPECT_EQ(count({{800, Unit::tokens}}), 10);
  EXPECT_EQ(count({{1, Unit::epochs}, {25}}), 12);  // 50 and 100 are both
  EXPECT_EQ(count({{10, Unit::seconds}}), 0);       // the clock is not a step
  EXPECT_TRUE(length.due({{7}}, 7));
  EXPECT_FALSE(length.due({{7}}, 8));
}

TEST(CheckpointSettings, GuessesWhatIsBetter) {
  CheckpointSettings c;
  EXPECT_FALSE(c.larger_is_better());
  c.metric = "eval/bleu";
  EXPECT_TRUE(c.larger_is_better());
  c.goal = "min";
  EXPECT_FALSE(c.larger_is_better());
}

}  // namespace
}  // namespace millrace
