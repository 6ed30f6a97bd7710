#include "doctor/findings.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace millrace {
namespace {

using Overrides = std::vector<std::string>;

// A profile of a step in which arithmetic and validation share the time.
nlohmann::ordered_json half_validation() {
  return {{"seconds_with_occasions", 2.0},
          {"budget_seconds", {{"forward", 0.4}, {"backward", 0.6}, {"eval", 1.0}}},
          {"ops", nlohmann::ordered_json::array()},
          {"ceiling", {{"flops_per_second", 1e12}}},
          {"flops_per_update", 1e11},
          {"update_seconds", {{"mean", 1.0}}},
          {"useful_share", 1.0},
          {"updates_of_run", 10.0},
          {"validation", {{"every_updates", 2.0}, {"seconds", 2.0}}}};
}

TEST(FindingsTest, FewerValidationBatchesAreAsManySequencesWhateverTheBatch) {
  for (const auto& [batch, accumulated] : {std::pair<int64_t, int64_t>{16, 1}, {1, 16}}) {
    Settings s;
    s.batch_size = batch;
    s.grad_accum = accumulated;
    const auto profile = half_validation();
    const std::vector<Finding> found = examine({.settings = s,
                                                .profile = profile,
                                                .batching = "windows",
                                                .saving = "",
                                                .fast_precision = s.precision});
    ASSERT_FALSE(found.empty());
    EXPECT_EQ(found.front().id, "eval.share");
    ASSERT_EQ(found.front().remedies.size(), 1u);
    const Remedy& fewer = found.front().remedies.front();
    EXPECT_EQ(with_same_validation(s, fewer.overrides), fewer.overrides);
    // With the whole update at once it is 20 batches, either way.
    Overrides both = fewer.overrides;
    both.push_back("training.batch_size=16");
    EXPECT_EQ(with_same_validation(s, both).back(),
              batch == 16 ? "training.batch_size=16" : "training.max_eval_batches=20");
  }
}

// Another pace of validation ends a run elsewhere, where validation ends it.
TEST(FindingsTest, WhatValidationEndsIsAnotherProblemWithoutIt) {
  Settings s;
  const auto profile = half_validation();
  for (const int64_t patience : {0, 2}) {
    s.early_stop_patience = patience;
    s.eval_context = 16;
    const std::vector<Finding> found = examine({.settings = s,
                                                .profile = profile,
                                                .batching = "windows",
                                                .saving = "",
                                                .fast_precision = s.precision});
    ASSERT_FALSE(found.empty());
    ASSERT_EQ(found.front().id, "eval.share");
    EXPECT_GE(found.front().remedies.size(), 2u);
    for (const Remedy& r : found.front().remedies)
      EXPECT_EQ(r.maths, patience > 0 ? Maths::other_problem : Maths::reporting) << r.title;
  }
}

// A limit of the config may be a mistake; one of the command line is what was asked for.
TEST(FindingsTest, AMemoryLimitThatIsGivenIsNoFault) {
  Settings s;
  s.memory_limit = 1 << 20;
  const auto profile = half_validation();
  for (const bool given : {false, true}) {
    const std::vector<Finding> found = examine({.settings = s,
                                                .profile = profile,
                                                .batching = "windows",
                                                .saving = "norms and activations",
                                                .limit_is_given = given,
                                                .fast_precision = s.precision});
    EXPECT_EQ(std::ranges::count(found, "recompute", &Finding::id), given ? 0 : 1);
  }
}

// What products in another precision save: by how fast both are here, else as if half of it.
TEST(FindingsTest, TheCeilingOfAPrecisionIsWhatItsProductsSave) {
  auto profile = half_validation();
  profile["ops"] = {{{"name", "matmul"}, {"seconds", 1.0}}};
  Settings s;
  s.precision = "fp32";
  for (const auto& [flops, ceiling] : {std::pair{0.0, 0.25}, {4e12, 0.375}, {0.5e12, 0.0}}) {
    const Situation situation{.settings = s,
                              .profile = profile,
                              .batching = "windows",
                              .saving = "",
                              .fast_precision = "bf16",
                              .fast_flops = flops};
    const std::vector<Remedy> tried = remedies_of(examine(situation), situation);
    ASSERT_FALSE(tried.empty());
    EXPECT_EQ(tried.back().id, "precision");
    EXPECT_NEAR(tried.back().ceiling, ceiling, 1e-9);
    EXPECT_TRUE(tried.back().is_choice);
    EXPECT_FALSE(tried.front().is_choice);
  }
}

TEST(FindingsTest, ALargerBatchLeavesValidationAsItWas) {
  Settings s;
  s.batch_size = 4;
  const Overrides larger{"training.batch_size=16"};
  EXPECT_EQ(with_same_validation(s, larger), larger);  // all of it: nothing to hold
  s.max_eval_batches = 10;
  EXPECT_EQ(with_same_validation(s, larger).back(), "training.max_eval_batches=3");  // 40 of 16
  EXPECT_EQ(with_same_validation(s, {"training.batch_size=2"}).back(),
            "training.max_eval_batches=20");
  EXPECT_EQ(with_same_validation(s, {"runtime.threads=0"}).size(), 1u);
}

// 32 bits are usual on a CPU: nothing is wrong with them, but what multiplies faster is tried.
TEST(FindingsTest, AFasterPrecisionIsAFaultOnADeviceAndAChoiceOnACpu) {
  auto profile = half_validation();
  profile["budget_seconds"] = {{"forward", 1.0}, {"backward", 1.0}};
  profile["validation"]["every_updates"] = 0.0;
  profile["ops"] = {{{"name", "matmul"}, {"seconds", 1.0}}};
  Settings s;
  for (const std::string precision : {"fp32", "bf16"})
    for (const bool on_host : {true, false}) {
      s.precision = precision;
      const Situation situation{.settings = s,
                                .profile = profile,
                                .on_host = on_host,
                                .batching = "windows",
                                .saving = "",
                                .fast_precision = "bf16"};
      const std::vector<Finding> found = examine(situation);
      EXPECT_EQ(found.size(), precision == "fp32" && !on_host ? 1u : 0u);
      const std::vector<Remedy> tried = remedies_of(found, situation);
      ASSERT_EQ(tried.size(), precision == "fp32" ? 1u : 0u);
      for (const auto& remedy : tried)
        EXPECT_EQ(remedy.overrides, Overrides{"training.precision=bf16"});
    }
}

TEST(FindingsTest, ADeviceThatStandsStillBetweenUpdatesIsGivenMoreOfThem) {
  auto profile = half_validation();
  profile["budget_seconds"] = {{"forward", 0.5}, {"backward", 1.0}, {"idle_launch", 0.5}};
  profile["validation"]["every_updates"] = 0.0;
  Settings s;
  auto found = [&](bool on_host) {
    return examine({.settings = s,
                    .profile = profile,
                    .on_host = on_host,
                    .batching = "windows",
                    .saving = "",
                    .fast_precision = s.precision});
  };
  EXPECT_TRUE(found(true).empty());
  ASSERT_EQ(found(false).size(), 1u);
  const Finding replay = found(false).front();
  EXPECT_EQ(replay.id, "replay.short");
  EXPECT_NEAR(replay.recoverable, 0.25, 1e-9);
  ASSERT_EQ(replay.remedies.size(), 2u);
  // Reports come every 10 updates: more of them must fit between two.
  EXPECT_EQ(replay.remedies[0].overrides,
            (Overrides{"training.steps_per_replay=4", "training.log_interval=16"}));
  EXPECT_EQ(replay.remedies[0].maths, Maths::reporting);
  s.log_interval = 32;
  EXPECT_EQ(found(false).front().remedies[0].overrides, Overrides{"training.steps_per_replay=4"});
  EXPECT_EQ(found(false).front().remedies[0].maths, Maths::same_bits);
  s.steps_per_replay = 4;
  ASSERT_EQ(found(false).size(), 1u);
  EXPECT_EQ(found(false).front().remedies.size(), 1u);
  s.steps_per_replay = 1;
  s.grad_accum = 2;  // then only larger batches are a remedy
  for (const Finding& f : found(false)) EXPECT_EQ(f.id, "batch.small");
}

}  // namespace
}  // namespace millrace
