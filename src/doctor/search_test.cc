// The search against a machine that is made up: what each change does to its speed is known.
#include "doctor/search.h"

#include <gtest/gtest.h>

#include <chrono>
#include <map>
#include <thread>

namespace millrace {
namespace {

class FakeMachine {
 public:
  std::map<std::string, double> factor;  // of a change
  std::map<std::string, Measured::Outcome> fails;
  std::map<std::string, double> loss;
  double drift = 1, noise = 0.005, seconds = 0;  // of a run
  int64_t runs = 0;

  Measured operator()(const std::vector<std::string>& overrides, int64_t) {
    ++runs;
    speed_ *= drift;
    Measured m;
    m.tokens_per_second = speed_ * (runs % 2 == 0 ? 1 + noise : 1 - noise);
    m.noise = noise;
    m.seconds = seconds;
    m.loss = 2;
    for (const std::string& o : overrides) {
      if (const auto at = fails.find(o); at != fails.end()) {
        m.outcome = at->second;
        m.reason = "as planned";
      }
      if (const auto at = factor.find(o); at != factor.end()) m.tokens_per_second *= at->second;
      if (const auto at = loss.find(o); at != loss.end()) m.loss = at->second;
    }
    return m;
  }

 private:
  double speed_ = 1000;
};

Remedy remedy(const std::string& id, const std::string& change, double ceiling = 0.5,
              Maths maths = Maths::same_bits) {
  return {id, change, {change}, maths, ceiling};
}

SearchResult searched(FakeMachine& machine, std::vector<Remedy> remedies, double budget = 1000) {
  const TryOut try_out = [&](const std::vector<std::string>& o, int64_t u) {
    return machine(o, u);
  };
  return search(try_out, machine({}, 10), 10, std::move(remedies), {.budget_seconds = budget});
}

TEST(Search, KeepsWhatIsFasterTogether) {
  FakeMachine machine;
  machine.factor = {{"a=1", 1.5}, {"b=1", 1.2}, {"c=1", 0.8}, {"d=1", 1.001}};
  const SearchResult r = searched(
      machine, {remedy("c", "c=1"), remedy("b", "b=1"), remedy("a", "a=1"), remedy("d", "d=1")});
  EXPECT_EQ(r.overrides, (std::vector<std::string>{"a=1", "b=1"}));
  ASSERT_TRUE(r.confirmed);
  EXPECT_NEAR(r.confirmed->ratio, 1.8, 0.05);
  EXPECT_LT(r.confirmed->noise, 0.03);
  ASSERT_EQ(r.alone.size(), 4u);
  EXPECT_EQ(r.alone[0].verdict, "slower");
  EXPECT_EQ(r.alone[3].verdict, "no effect");
}

TEST(Search, TakesTheBestOfAKind) {
  FakeMachine machine;
  machine.factor = {{"batch=8", 2.0}, {"batch=16", 3.0}};
  machine.fails = {{"batch=32", Measured::Outcome::does_not_fit}};
  const SearchResult r = searched(
      machine,
      {remedy("batch", "batch=32"), remedy("batch", "batch=16"), remedy("batch", "batch=8")});
  EXPECT_EQ(r.overrides, std::vector<std::string>{"batch=16"});
  EXPECT_EQ(r.alone[0].verdict, "does not fit: as planned");
}

TEST(Search, DoesNotChangeTheProblemForTheUser) {
  FakeMachine machine;
  machine.factor = {{"layers=1", 4.0}};
  const SearchResult r =
      searched(machine, {remedy("layers", "layers=1", 0.5, Maths::other_problem)});
  EXPECT_TRUE(r.overrides.empty());
  EXPECT_FALSE(r.confirmed);
  EXPECT_EQ(r.alone[0].verdict, "faster");
}

TEST(Search, DriftIsNoGain) {
  FakeMachine machine;
  machine.drift = 1.01;  // everything gets faster all the time
  const SearchResult r = searched(machine, {remedy("a", "a=1"), remedy("b", "b=1")});
  EXPECT_TRUE(r.overrides.empty());
}

// A small gain that the first turns leave unclear; one that is none stays so.
TEST(Search, LooksAgainAtWhatIsUnclear) {
  for (const double factor : {1.10, 1.0}) {
    FakeMachine machine;
    machine.factor = {{"a=1", factor}};
    // As it is, changed, as it is, changed: the pace of those turns.
    const double paces[] = {0.95, 0.95, 0.9};
    size_t turn = 0;
    const TryOut try_out = [&](const std::vector<std::string>& o, int64_t u) {
      Measured m = machine(o, u);
      if (turn < std::size(paces)) m.tokens_per_second *= paces[turn];
      ++turn;
      return m;
    };
    const Measured first = machine({}, 10);
    const SearchResult r =
        search(try_out, first, 10, {remedy("a", "a=1")}, {.budget_seconds = 1e3});
    ASSERT_EQ(r.alone.size(), 1u);
    EXPECT_EQ(r.alone[0].verdict, factor > 1 ? "faster" : "no effect");
    EXPECT_EQ(r.overrides.size(), factor > 1 ? 1u : 0u);
    EXPECT_GT(r.alone[0].runs.size(), 2u);
  }
}

// A neighbour on the machine makes some runs half as fast.
TEST(Search, DisturbedRunsDoNotCount) {
  for (int phase = 0; phase < 5; ++phase) {
    FakeMachine machine;
    machine.factor = {{"a=1", 1.3}, {"b=1", 0.99}};
    int64_t runs = phase;
    const TryOut try_out = [&](const std::vector<std::string>& o, int64_t u) {
      Measured m = machine(o, u);
      if (++runs % 5 == 0) m.tokens_per_second *= 0.5;
      return m;
    };
    const SearchResult r =
        search(try_out, machine({}, 10), 10, {remedy("a", "a=1"), remedy("b", "b=1")},
               {.budget_seconds = 1e3});
    EXPECT_EQ(r.overrides, std::vector<std::string>{"a=1"}) << phase;
    ASSERT_TRUE(r.confirmed);
    EXPECT_NEAR(r.confirmed->ratio, 1.3, 0.03) << phase;
    EXPECT_LT(r.confirmed->noise, 0.1) << phase;
  }
}

TEST(Search, LeavesOutWhatCannotPayAndSaysSo) {
  FakeMachine machine;
  const SearchResult r = searched(machine, {remedy("a", "a=1", 0.004)});
  EXPECT_TRUE(r.alone.empty());
  EXPECT_EQ(r.left_out, std::vector<std::string>{"a=1: could save at most 0.4 %"});
  EXPECT_EQ(machine.runs, 1);
}

TEST(Search, WhatHasNoTimeIsNamed) {
  FakeMachine machine;
  machine.factor = {{"a=1", 2}};
  machine.seconds = 9.35;
  const std::vector<Remedy> both{remedy("a", "a=1"), remedy("b", "b=1")};
  // Three runs of each that is tried, four behind them, and what the first run took is known.
  const SearchResult none = searched(machine, both, 50);
  EXPECT_EQ(machine.runs, 1);
  EXPECT_EQ(none.left_out,
            (std::vector<std::string>{"a=1: the time was up; --time-budget 66s has time for it",
                                      "b=1: the time was up; --time-budget 94s has time for it"}));
  EXPECT_EQ(searched(machine, both, 66).alone.size(), 1u);
  EXPECT_EQ(searched(machine, both, 200).left_out.size(), 0u);
}

TEST(Search, TheLastComparisonIsWithinTheTime) {
  FakeMachine machine;
  machine.factor = {{"a=1", 2}};
  const TryOut slow = [&](const std::vector<std::string>& o, int64_t u) {
    if (machine.runs == 3) std::this_thread::sleep_for(std::chrono::milliseconds(300));
    return machine(o, u);
  };
  const SearchResult r =
      search(slow, machine({}, 10), 10, {remedy("a", "a=1")}, {.budget_seconds = 0.2});
  EXPECT_EQ(machine.runs, 4);
  EXPECT_EQ(r.overrides, std::vector<std::string>{"a=1"});
  EXPECT_FALSE(r.is_faster());
  ASSERT_EQ(r.left_out.size(), 1u);
  EXPECT_TRUE(r.left_out[0].starts_with("all together, once more: the time was up"))
      << r.left_out[0];
}

TEST(Search, FindingsComeBeforeChoices) {
  FakeMachine machine;
  Remedy choice = remedy("choice", "a=1", 0.9);
  choice.is_choice = true;
  const SearchResult r = searched(machine, {choice, remedy("b", "b=1", 0.1)});
  ASSERT_EQ(r.alone.size(), 2u);
  EXPECT_EQ(r.alone[0].remedy.id, "b");
}

// Faster, and not the same training any more: not kept. Another problem has another loss.
TEST(Search, AHigherLossIsNotKept) {
  for (const Maths maths : {Maths::other_rounding, Maths::other_problem}) {
    FakeMachine machine;
    machine.factor = {{"a=1", 2}, {"b=1", 1.5}};
    machine.loss = {{"a=1", 2.5}, {"b=1", 2.001}};
    const SearchResult r =
        searched(machine, {remedy("a", "a=1", 0.5, maths), remedy("b", "b=1", 0.5, maths)});
    EXPECT_EQ(r.alone[0].verdict,
              maths == Maths::other_rounding ? "faster, higher loss" : "faster");
    EXPECT_EQ(r.alone[1].verdict, "faster");
    EXPECT_EQ(r.overrides, maths == Maths::other_rounding ? std::vector<std::string>{"b=1"}
                                                          : std::vector<std::string>{});
  }
}

TEST(Search, NoiseLargerThanAGainIsNotNothing) {
  FakeMachine machine;
  machine.factor = {{"a=1", 3}};
  machine.noise = 0.9;
  const TryOut steady = [&](const std::vector<std::string>& o, int64_t u) {
    Measured m = machine(o, u);
    m.tokens_per_second = o.empty() ? 1000 : 3000;
    return m;
  };
  const SearchResult r = search(steady, steady({}, 10), 10, {remedy("a", "a=1")}, {});
  EXPECT_EQ(r.alone[0].verdict, "not told from noise");
  EXPECT_TRUE(r.overrides.empty());
}

TEST(Search, UpdatesOfATrialFillItsTime) {
  auto updates = [](double seconds, double budget = 1e6) {
    Measured look;
    look.update_seconds = look.more_seconds = seconds;
    look.updates = 3;
    look.seconds = 1 + 3 * seconds;
    return updates_of_trial(look, 3, 8, budget);
  };
  EXPECT_EQ(updates(0.1), 30);
  EXPECT_EQ(updates(60), 8);
  EXPECT_EQ(updates(1e-5), 20000);
  // Eight runs, each a second and its updates.
  EXPECT_EQ(updates(0.1, 8 * 2.001), 10);
  EXPECT_EQ(updates(60, 60), 3);
  Measured look;
  look.updates = 3;
  look.update_seconds = 0.1;
  look.more_seconds = 0.4;  // it saves at each
  EXPECT_EQ(updates_of_trial(look, 3, 1, 2), 8);
}

}  // namespace
}  // namespace millrace
