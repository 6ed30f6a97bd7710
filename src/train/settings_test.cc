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
  return learning_rate_at({kind, kWarmup, min_ratio, decay_fraction}, kPeak, step, kTotal);
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
    expect_rate(learning_rate_at({kind, 0, 0.1, 0.2}, kPeak, 0, 100), kPeak);
    // A warm-up as long as the run, or longer: no division by zero.
    expect_rate(learning_rate_at({kind, 100, 0.1, 0.2}, kPeak, 99, 100), kPeak);
    expect_rate(learning_rate_at({kind, 200, 0.1, 0.2}, kPeak, 49, 100), kPeak / 4);
    // One update in all.
    expect_rate(learning_rate_at({kind, 0, 0.1, 0.2}, kPeak, 0, 1), kPeak);
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

}  // namespace
}  // namespace millrace
