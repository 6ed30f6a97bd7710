// What is said of a finding once trials have spoken, or have not.
#include "doctor/diagnosis.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace millrace {
namespace {

Measured trained(double loss = 2) {
  Measured m;
  m.tokens_per_second = 1000;
  m.update_seconds = 0.04;
  m.peak_bytes = 1 << 20;
  m.loss = loss;
  m.loss_error = 0.01;
  m.updates = 40;
  m.profile = nlohmann::ordered_json::parse(R"({
    "budget_seconds": {"residual": 0.01, "forward": 0.03}, "seconds_with_occasions": 0.04,
    "updates_of_run": 1500, "useful_share": 1, "folder": "runs/a"})");
  return m;
}
Remedy remedy_of(const std::string& change, double ceiling = 0.5, Maths maths = Maths::same_bits) {
  return {"id", change, {change}, maths, ceiling};
}
Tried tried_with(const Remedy& of, Gain gain, double loss = 2) {
  return {of, {trained(loss)}, gain, false, std::string(verdict_of(gain))};
}
Tried not_run(const Remedy& of) {
  Tried t{of, {{}}, {}, false, "failed: as planned"};
  t.runs[0].outcome = Measured::Outcome::failed;
  return t;
}

// A finding worth half of the time, with two remedies, and what was tried.
Diagnosis diagnosed(std::vector<Tried> alone) {
  Diagnosis d;
  d.config = "a.yaml";
  d.parameters = 34'400;
  d.profile = trained();
  d.findings = {{"eval.share",
                 "validation takes a large share",
                 "50.0 % of the time",
                 0.5,
                 {remedy_of("a=1"), remedy_of("b=1")}}};
  SearchResult r;
  r.updates = 40;
  r.original = {trained()};
  r.alone = std::move(alone);
  d.searched = std::move(r);
  d.settle();
  return d;
}
bool holds(const std::string& text, const std::string& what) {
  return text.find(what) != std::string::npos;
}

constexpr Gain kTwiceAsFast{2, 0.05}, kNoGain{1, 0.03}, kAnything{1.82, 0.94};

TEST(Diagnosis, AMeasuredGainCanBeHadBack) {
  const Diagnosis d = diagnosed(
      {tried_with(remedy_of("a=1"), kTwiceAsFast), tried_with(remedy_of("b=1"), kNoGain)});
  EXPECT_NEAR(d.findings[0].recoverable, 0.5, 1e-9);
  EXPECT_TRUE(holds(d.verdict(), "50 % of the time can be had back."));
  EXPECT_EQ(diagnosis_json(d).at("findings")[0].at("measured"), true);
}

TEST(Diagnosis, WhatNobodyTriedIsNotClaimed) {
  const Diagnosis d = diagnosed({});
  EXPECT_NEAR(d.findings[0].recoverable, 0.5, 1e-9);
  EXPECT_TRUE(holds(d.verdict(), "could be had back at most: nothing that could help was tried."))
      << d.verdict();
  EXPECT_EQ(diagnosis_json(d).at("findings")[0].at("measured"), false);
}

// One remedy without effect says nothing of the other.
TEST(Diagnosis, AFindingIsLoweredOnceAllItsRemediesWereTried) {
  Diagnosis d = diagnosed({tried_with(remedy_of("a=1"), kNoGain)});
  EXPECT_NEAR(d.findings[0].recoverable, 0.5, 1e-9);
  EXPECT_TRUE(holds(d.verdict(), "not all that could help was tried")) << d.verdict();
  d = diagnosed({tried_with(remedy_of("a=1"), kNoGain), not_run(remedy_of("b=1"))});
  EXPECT_TRUE(holds(d.verdict(), "what could help did not run")) << d.verdict();
  d = diagnosed({tried_with(remedy_of("a=1"), kNoGain), tried_with(remedy_of("b=1"), kNoGain)});
  EXPECT_EQ(d.findings[0].recoverable, 0);
  EXPECT_EQ(d.verdict(), "Nothing was found that would make this training clearly faster here.");
}

TEST(Diagnosis, WhatIsNotToldFromNoiseIsNotNothing) {
  const Diagnosis d =
      diagnosed({tried_with(remedy_of("a=1"), kAnything), tried_with(remedy_of("b=1"), kNoGain)});
  EXPECT_EQ(d.searched->alone[0].verdict, "not told from noise");
  EXPECT_NEAR(d.findings[0].recoverable, 0.5, 1e-9);
  EXPECT_TRUE(holds(d.verdict(), "at most: what was tried is not told from noise.")) << d.verdict();
  Diagnosis without = d;
  without.findings.clear();
  EXPECT_TRUE(holds(without.verdict(), "; 1 of 2 trials are not told from noise."))
      << without.verdict();
}

TEST(Diagnosis, SaysWhatIsDoneToTheLoss) {
  constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
  const Remedy other = remedy_of("a=1", 0.5, Maths::other_rounding);
  for (const double loss : {2.01, 2.5, kNaN}) {
    Tried t = tried_with(other, kTwiceAsFast, loss);
    if (loss != 2.01) t.verdict = kHigherLoss;
    const Diagnosis d = diagnosed({std::move(t)});
    const std::string line =
        "a=1: mean loss of 40 updates " +
        std::string(loss == 2.01  ? "2.0100, as it is 2.0000 +-0.0283"
                    : loss == 2.5 ? "2.5000, as it is 2.0000 +-0.0283: higher, not kept"
                                  : "not finite, as it is 2.0000 +-0.0283: higher, not kept");
    EXPECT_TRUE(holds(diagnosis_text(d), line)) << diagnosis_text(d);
    EXPECT_TRUE(holds(diagnosis_markdown(d), "- " + line));
    EXPECT_EQ(diagnosis_json(d).at("alone")[0].at("loss").at("higher"), loss != 2.01);
  }
}

// A run that measures the machine, too, takes more than the training does.
TEST(Diagnosis, MemoryIsThatOfTheSmallestRun) {
  Tried t = tried_with(remedy_of("a=1"), kTwiceAsFast);
  t.runs.insert(t.runs.begin(), trained());
  t.runs[0].peak_bytes = 6 << 20;
  EXPECT_EQ(tried_rows({t}).at(0).memory, "1.00 MiB");
}

TEST(Diagnosis, SaysWhatTheRunTakesAndWhereNoiseIsNotKnown) {
  Diagnosis d = diagnosed({});
  const std::string text = diagnosis_text(d);
  EXPECT_TRUE(holds(text, "the run   1m 00s for 1,500 updates at this pace\n")) << text;
  EXPECT_TRUE(holds(text, "model     34.4 k parameters\n")) << text;
  EXPECT_TRUE(holds(text, "an update 40.0 ms (noise unknown), ")) << text;
  d.profile.noise = 0.012;
  EXPECT_TRUE(holds(diagnosis_text(d), "an update 40.0 ms +-1.2 %, "));
  EXPECT_TRUE(holds(diagnosis_markdown(d), "takes 40.0 ms ±1.2 %: 1.0 k tokens/s; the run 1m 00s"))
      << diagnosis_markdown(d);
}

}  // namespace
}  // namespace millrace
