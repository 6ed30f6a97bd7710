// The search against a machine that is made up: what each change does to its speed is known.
#include "doctor/search.h"

#include <gtest/gtest.h>

#include <map>

namespace millrace {
namespace {

class FakeMachine {
 public:
  std::map<std::string, double> factor;  // of a change
  std::map<std::string, Measured::Outcome> fails;
  double drift = 1, noise = 0.005;
  int64_t runs = 0;

  Measured operator()(const std::vector<std::string>& overrides, int64_t) {
    ++runs;
    speed_ *= drift;
    Measured m;
    m.tokens_per_second = speed_ * (runs % 2 == 0 ? 1 + noise : 1 - noise);
    m.noise = noise;
    for (const std::string& o : overrides) {
      if (const auto at = fails.find(o); at != fails.end()) {
        m.outcome = at->second;
        m.reason = "as planned";
      }
      if (const auto at = factor.find(o); at != factor.end()) m.tokens_per_second *= at->second;
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
    EXPECT_EQ(r.alone[0].runs.size() > 2, factor > 1);
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
  const SearchResult r = searched(machine, {remedy("a", "a=1")}, 0);
  EXPECT_EQ(r.left_out, std::vector<std::string>{"a=1: the time was up"});
}

TEST(Search, UpdatesOfATrialFillItsTime) {
  auto updates = [](double seconds) {
    Measured look;
    look.update_seconds = seconds;
    return updates_of_trial(look, 3);
  };
  EXPECT_EQ(updates(0.1), 30);
  EXPECT_EQ(updates(60), 8);
  EXPECT_EQ(updates(1e-5), 20000);
}

}  // namespace
}  // namespace millrace
