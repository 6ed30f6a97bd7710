#include "doctor/prediction.h"

#include <gtest/gtest.h>

#include "doctor/absent_device.h"
#include "graph/builder.h"

namespace millrace {
namespace {

// y = tanh(x w): a product of 2*64*64*64 FLOP, and an element-wise node that is a product's end.
Plan small_plan() {
  Builder b;
  const Value x = b.input("x", {{64, 64}, DType::f32});
  b.output("y", b.op("softmax", {b.matmul(x, b.parameter("w", {64, 64}))}));
  const auto device = absent_device({.device = "d", .made_with = "", .precisions = {}});
  return make_plan(b.finish(), {}, *device);
}

PrecisionProfile machine() {
  PrecisionProfile p;
  p.ceiling = {2 * 64.0 * 64 * 64 * 1e3, 1e15};  // the product takes a millisecond
  return p;
}

TEST(PredictionTest, AtLeastEveryNodeAtItsCeiling) {
  const Plan plan = small_plan();
  const PredictedTime time = predict(plan, machine());
  const double rest = (plan.cost.flops - 2 * 64.0 * 64 * 64) / machine().ceiling.flops;
  EXPECT_NEAR(time.least, 1e-3 + rest, 1e-9);
  EXPECT_FALSE(time.expected);
  EXPECT_EQ(time.best_known(), time.least);
  // Copies that are slower than the arithmetic decide.
  PrecisionProfile slow = machine();
  slow.ceiling.bytes = 1;
  EXPECT_NEAR(predict(plan, slow).least, plan.cost.bytes, 1e-6 * plan.cost.bytes);
}

TEST(PredictionTest, ExpectedAsItsOpsWereSeen) {
  const Plan plan = small_plan();
  PrecisionProfile p = machine();
  p.ops["matmul"][size_class(1e-3)] = {1, 2e-3, 1e-3};
  const double least = predict(plan, p).least;
  // What was never seen is as far from its limit as the rest.
  PredictedTime time = predict(plan, p);
  EXPECT_NEAR(*time.expected, 2 * least, 1e-9);
  EXPECT_NEAR(time.unknown, 2 * (least - 1e-3), 1e-9);
  p.ops["softmax"][size_class(least - 1e-3)] = {1, 5 * (least - 1e-3), least - 1e-3};
  time = predict(plan, p);
  EXPECT_NEAR(*time.expected, 2e-3 + 5 * (least - 1e-3), 1e-9);
  EXPECT_EQ(time.unknown, 0);
  // Starting a node costs something.
  p.node_seconds = 1;
  EXPECT_NEAR(*predict(plan, p).expected, 2, 1e-9);
}

TEST(PredictionTest, AnUpdateIsItsShapesAndItsMicroBatches) {
  Programs programs;
  programs.steps = {small_plan(), small_plan()};
  programs.accumulates = {small_plan(), small_plan()};
  const double one = predict(small_plan(), machine()).least;
  const double even[] = {0.5, 0.5};
  EXPECT_NEAR(predict_update(programs, 4, even, machine()).least, 4 * one, 1e-12);
  programs.accumulates.clear();
  EXPECT_NEAR(predict_update(programs, 1, even, machine()).least, one, 1e-12);
}

}  // namespace
}  // namespace millrace
