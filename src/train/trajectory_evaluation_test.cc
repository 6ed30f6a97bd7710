#include "train/trajectory_evaluation.h"

#include <gtest/gtest.h>

#include <cmath>

namespace millrace {
namespace {

// Two sequences of two predicted states in one row of five places, deviations 2 and 3.
TEST(DisplacementErrors, AreDistancesBetweenPositions) {
  const Normalisation normalisation{{7, -5}, {2, 3}};
  DisplacementErrors errors({2, 2}, normalisation);
  Batch batch;
  batch.weights = {1, 1, 0, 1, 1};
  batch.states.assign(10, 0);
  batch.state_targets = {0, 0, 0, 0, 9, 9, 1, 1, 1, 1};
  // First: off by (2 * 1.5, 3 * 4/3) = (3, 4), and as far from there on: 5 and 5. Second: right,
  // then off by (2 * 0, 3 * 1): 0 and 3. What is not scored does not count.
  errors.add(batch, {1.5, 4.0f / 3, 0, 0, 0, 0, 1, 1, 1, 2});
  const Metrics metrics = errors.metrics();
  EXPECT_NEAR(metrics.at("eval/ade"), (5 + 5 + 0 + 3) / 4.0, 1e-6);
  EXPECT_NEAR(metrics.at("eval/fde"), (5 + 3) / 2.0, 1e-6);
}

}  // namespace
}  // namespace millrace
