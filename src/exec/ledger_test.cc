#include "exec/ledger.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>

#include "graph/builder.h"

namespace millrace {
namespace {

int64_t sum_of_parts(const Ledger& ledger) {
  int64_t sum = 0;
  for (size_t i = 0; i < kOwners; ++i) sum += ledger.ns(static_cast<Owner>(i));
  return sum;
}

void spend(int64_t ns) {
  const int64_t start = now_ns();
  while (now_ns() - start < ns) {
  }
}

class OneKernel : public KernelChooser {
 public:
  KernelChoice choose(const OpCard&, const OpSite&) override {
    return {.name = "one", .workspace_bytes = 0, .declined = {}};
  }
};

// Two layers of y = tanh(x w), and a number outside any scope.
Plan small_plan() {
  Builder b;
  Value x = b.input("x", {{2, 3}, DType::f32});
  for (const char* layer : {"layers.0", "layers.1"}) {
    const auto scope = b.layer(layer);
    x = b.matmul(x, b.parameter(b.path("weight"), {3, 3}));
    const auto inner = b.scope("mlp");
    x = b.apply(Function::tanh, x);
  }
  b.output("y", b.scale(x, 2));
  OneKernel chooser;
  PassOptions options;
  for (std::string_view name : pass_names()) options.off.insert(std::string(name));
  return make_plan(b.finish(), options, chooser);
}

TEST(Ledger, PartsAddUpToTheWholeExactly) {
  Ledger ledger;
  EXPECT_EQ(ledger.current(), Owner::residual);
  EXPECT_EQ(sum_of_parts(ledger), ledger.total_ns());
  for (int round = 0; round < 100; ++round) {
    ledger.change(static_cast<Owner>(round % static_cast<int>(kOwners)));
    ASSERT_EQ(sum_of_parts(ledger), ledger.total_ns()) << "after change " << round;
  }
  EXPECT_GT(ledger.total_ns(), 0);
}

// A device that was busy all the time hides what the host did; one that stood still shows it.
TEST(Ledger, ADevicesTimeIsNotTheHosts) {
  constexpr int64_t kStep = 4'000'000;
  auto step = [](Ledger& ledger, int64_t filling, int64_t waiting) {
    {
      const OwnerScope owner(ledger, Owner::h2d);
      spend(filling);
    }
    const OwnerScope owner(ledger, Owner::idle_launch);
    spend(waiting);
  };
  Ledger busy;
  step(busy, kStep / 4, 3 * kStep / 4);
  // More than there was, also where others took the processor in between.
  busy.add_device(std::array<int64_t, 3>{1000 * kStep, 2000 * kStep, 1000 * kStep});
  EXPECT_EQ(sum_of_parts(busy), busy.total_ns());
  EXPECT_LE(busy.ns(Owner::h2d) + busy.ns(Owner::idle_launch) + busy.ns(Owner::residual), 10);
  EXPECT_NEAR(static_cast<double>(busy.ns(Owner::backward)),
              0.5 * static_cast<double>(busy.total_ns()), 10);

  Ledger waiting;  // half of the time nothing ran
  step(waiting, kStep / 4, 3 * kStep / 4);
  const int64_t filled = waiting.ns(Owner::h2d), waited = waiting.ns(Owner::idle_launch);
  waiting.add_device(std::array<int64_t, 3>{kStep / 2, 0, 0});
  EXPECT_EQ(sum_of_parts(waiting), waiting.total_ns());
  EXPECT_EQ(waiting.ns(Owner::forward), kStep / 2);
  EXPECT_EQ(waiting.ns(Owner::h2d), filled);  // all of it: the device waited for that and more
  EXPECT_EQ(waiting.ns(Owner::idle_launch), waited - kStep / 2);
  // What was settled stays.
  step(waiting, kStep / 4, 0);
  waiting.add_device(std::array<int64_t, 3>{0, 0, 0});
  EXPECT_EQ(waiting.ns(Owner::forward), kStep / 2);
  EXPECT_GE(waiting.ns(Owner::h2d), kStep / 2);
}

// Validation runs while no update is under way: the next ones, which keep the device busy, hide
// none of it.
TEST(Ledger, WhatTheHostDidAloneStays) {
  Ledger ledger;
  ledger.change(Owner::eval);
  spend(2'000'000);
  ledger.change(Owner::h2d);
  ledger.settle_host();
  const int64_t validated = ledger.ns(Owner::eval);
  spend(2'000'000);
  ledger.add_device(std::array<int64_t, 3>{1'000'000'000, 0, 0});
  EXPECT_EQ(ledger.ns(Owner::eval), validated);
  EXPECT_LE(ledger.ns(Owner::h2d), 10'000);
  EXPECT_EQ(sum_of_parts(ledger), ledger.total_ns());
}

TEST(Ledger, TimeGoesToWhoOwnsIt) {
  Ledger ledger;
  ledger.change(Owner::input_wait);
  spend(200'000);
  const int64_t at = ledger.change(Owner::logging);
  spend(100'000);
  const int64_t end = ledger.change(Owner::residual);
  EXPECT_GE(ledger.ns(Owner::input_wait), 200'000);
  EXPECT_EQ(ledger.ns(Owner::logging), end - at);
  EXPECT_EQ(ledger.ns(Owner::eval), 0);
  EXPECT_EQ(sum_of_parts(ledger), ledger.total_ns());
}

TEST(Ledger, ScopesNestAndGiveBack) {
  Ledger ledger;
  {
    OwnerScope eval(ledger, Owner::eval);
    spend(50'000);
    {
      OwnerScope logging(ledger, Owner::logging);
      EXPECT_EQ(ledger.current(), Owner::logging);
      spend(50'000);
    }
    EXPECT_EQ(ledger.current(), Owner::eval);
  }
  EXPECT_EQ(ledger.current(), Owner::residual);
  EXPECT_GE(ledger.ns(Owner::eval), 50'000);
  EXPECT_GE(ledger.ns(Owner::logging), 50'000);
  EXPECT_EQ(sum_of_parts(ledger), ledger.total_ns());
}

TEST(Ledger, ARunIsSplitIntoPhasesAndTheRestStaysWithTheOwner) {
  Ledger ledger;
  ledger.change(Owner::h2d);
  const int64_t before = ledger.ns(Owner::h2d), total = ledger.total_ns(), start = now_ns();
  spend(100'000);
  const int64_t phases[3] = {40'000, 30'000, 20'000}, end = now_ns();
  ledger.add_run(phases, end);
  EXPECT_EQ(ledger.ns(Owner::forward), 40'000);
  EXPECT_EQ(ledger.ns(Owner::backward), 30'000);
  EXPECT_EQ(ledger.ns(Owner::optimizer), 20'000);
  EXPECT_GE(ledger.ns(Owner::h2d) - before, end - start - 90'000);
  EXPECT_EQ(ledger.total_ns() - total, ledger.ns(Owner::h2d) - before + 90'000);
  EXPECT_EQ(sum_of_parts(ledger), ledger.total_ns());
}

TEST(Ledger, NamesAreThoseOfTheDesign) {
  EXPECT_EQ(owner_name(Owner::input_wait), "input_wait");
  EXPECT_EQ(owner_name(Owner::idle_launch), "idle_launch");
  EXPECT_EQ(owner_name(Owner::residual), "residual");
}

TEST(Ledger, NodeTimesAreKeptPerPlan) {
  const Plan one = small_plan(), two = small_plan();
  Ledger ledger;
  ledger.times_of(one).ns[2] = 5;
  ledger.times_of(two).ns[2] = 7;
  EXPECT_EQ(ledger.times_of(one).ns[2], 5);
  EXPECT_EQ(ledger.node_times().size(), 2u);
  EXPECT_EQ(ledger.times_of(one).ns.size(), one.graph.nodes.size());
}

TEST(Ledger, RowsJoinLayersAndLoseNothing) {
  const Plan plan = small_plan();
  Ledger ledger;
  NodeTimes& times = ledger.times_of(plan);
  times.runs = 3;
  int64_t spent = 0;
  double flops = 0;
  for (NodeId id = 0; id < plan.graph.size(); ++id) {
    if (plan.graph[id].leaf != Leaf::none) continue;
    times.ns[static_cast<size_t>(id)] = 1000 + id;
    spent += 1000 + id;
    flops += 3 * plan.graph.cost(plan.graph[id]).flops;
  }
  for (const auto& rows : {rows_by_op(ledger), rows_by_component(ledger)}) {
    int64_t ns = 0;
    double row_flops = 0;
    for (size_t i = 0; i < rows.size(); ++i) {
      ns += rows[i].ns;
      row_flops += rows[i].flops;
      EXPECT_LE(rows[i].ns, rows[i > 0 ? i - 1 : 0].ns) << "not sorted";
    }
    EXPECT_EQ(ns, spent);
    EXPECT_EQ(row_flops, flops);
  }
  // Some nodes are limited by arithmetic and others by bytes: the limit of a group is the sum.
  const Ceiling ceiling{.flops = 1, .bytes = 5};
  double limit_ns = 0, expected_ns = 0;
  int arithmetic = 0, memory = 0;
  for (const LedgerRow& row : rows_by_component(ledger, ceiling)) limit_ns += row.limit_ns;
  for (NodeId id = 0; id < plan.graph.size(); ++id) {
    if (plan.graph[id].leaf != Leaf::none) continue;
    const Cost cost = plan.graph.cost(plan.graph[id]);
    const double seconds = std::max(cost.flops / ceiling.flops, cost.bytes / ceiling.bytes);
    (seconds == cost.flops ? arithmetic : memory) += 1;
    expected_ns += 3e9 * seconds;
  }
  EXPECT_GT(arithmetic, 0);
  EXPECT_GT(memory, 0);
  EXPECT_DOUBLE_EQ(limit_ns, expected_ns);
  // What fits into a cache may come from there, the rest comes from behind it.
  const Ceiling caches{1, 5, {{100, 1000}, {1000, 50}}};
  EXPECT_DOUBLE_EQ(limit_seconds({0, 80}, caches), 0.08);
  EXPECT_DOUBLE_EQ(limit_seconds({0, 200}, caches), 2);
  EXPECT_DOUBLE_EQ(limit_seconds({0, 1250}, caches), 50);
  EXPECT_DOUBLE_EQ(limit_seconds({60, 1250}, caches), 60);
  const Ceiling best = best_of(caches, {2, 4, {{100, 900}, {1000, 60}}});
  EXPECT_EQ(best.flops, 2);
  EXPECT_EQ(best.bytes, 5);
  EXPECT_EQ(best.caches[0].bytes, 1000);
  EXPECT_EQ(best.caches[1].bytes, 60);
  EXPECT_EQ(best_of(caches, {}).caches.size(), 2u);
  // What was outdone is raised until nothing outdoes it.
  EXPECT_EQ(raised({}, ledger).flops, 0);
  EXPECT_EQ(raised({1e30, 1e30, {}}, ledger).bytes, 1e30);
  const double huge = 1e30;  // nothing outdoes that, and nothing lies behind such a cache
  const Ceiling high = raised({1, 1, {{16, huge}, {64, 1.5}}}, ledger),
                cached = raised({1, 1, {{huge, 1}}}, ledger);
  EXPECT_EQ(high.caches[0].bytes, huge);
  EXPECT_GT(high.caches[1].bytes, 1.5);
  EXPECT_EQ(cached.bytes, 1) << "all of it ran in a cache";
  for (const Ceiling& level :
       {Ceiling{0, high.bytes, {{64, 0}}}, Ceiling{0, 0, {{16, 0}, {64, high.caches[1].bytes}}},
        Ceiling{0, 0, cached.caches}}) {
    double most = 0;
    for (const LedgerRow& row : rows_by_op(ledger, level))
      most = std::max(most, row.limit_ns / static_cast<double>(row.ns));
    EXPECT_NEAR(most, 1, 1e-12);
  }
  for (const LedgerRow& row : rows_by_op(ledger))
    if (row.name == "matmul") {
      EXPECT_DOUBLE_EQ(high.flops, 1e9 * row.flops / static_cast<double>(row.ns));
    }
  // Twice as long with nothing beside them: rates are half, and so are ceilings that they raise.
  Ledger overlapping = ledger;
  overlapping.times_of(plan).alone_ns = times.ns;
  for (int64_t& ns : overlapping.times_of(plan).alone_ns) ns *= 2;
  const Ceiling raised_less = raised({1, 1, {}}, overlapping),
                raised_more = raised({1, 1, {}}, ledger);
  EXPECT_DOUBLE_EQ(raised_less.flops, raised_more.flops / 2);
  EXPECT_DOUBLE_EQ(raised_less.bytes, raised_more.bytes / 2);
  EXPECT_EQ(rows_by_op(overlapping)[0].ns, rows_by_op(ledger)[0].ns);
  const std::string profile = profile_text(ledger, {});
  EXPECT_NE(profile.find("\t2\t3\t0.00\t"), std::string::npos) << profile;
  EXPECT_NE(profile.find("forward\tlayers.*\tmatmul\tone\tf32[2,3] f32[3,3] -> f32[2,3]\n"),
            std::string::npos)
      << profile;

  std::vector<std::string> names;
  for (const LedgerRow& row : rows_by_component(ledger)) names.push_back(row.name);
  std::sort(names.begin(), names.end());
  EXPECT_EQ(names, (std::vector<std::string>{"layers.*", "layers.*.mlp", "update"}));
  names.clear();
  for (const LedgerRow& row : rows_by_op(ledger)) names.push_back(row.name);
  std::sort(names.begin(), names.end());
  EXPECT_EQ(names, (std::vector<std::string>{"elementwise", "matmul"}));
}

}  // namespace
}  // namespace millrace
