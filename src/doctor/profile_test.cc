#include "doctor/profile.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

namespace millrace {
namespace {

struct Updates {
  std::vector<double> times;
  std::vector<int64_t> sizes;
};
// Updates of `places` each, a microsecond a place; every third is slower by a share, and so is the
// second half of the run.
Updates updates_of(const std::vector<int64_t>& places, double slower) {
  Updates run;
  for (size_t i = 0; i < places.size(); ++i) {
    const double factor = (i % 3 == 2 ? 1 + slower : 1) * (2 * i < places.size() ? 1 : 1 + slower);
    run.times.push_back(1e-6 * factor * static_cast<double>(places[i]));
    run.sizes.push_back(places[i]);
  }
  return run;
}
Pace pace_of(const Updates& run) { return undisturbed_pace(run.times, run.sizes, 1); }

std::vector<int64_t> different(int64_t count) {
  std::vector<int64_t> sizes;
  for (int64_t i = 0; i < count; ++i) sizes.push_back(1000 + i * 7 % count);
  return sizes;
}

TEST(Pace, OfOneSizeIsThatOfItsFasterParts) {
  const Pace steady = pace_of(updates_of(std::vector<int64_t>(60, 1000), 0));
  EXPECT_NEAR(steady.seconds, 1e-3, 1e-9);
  ASSERT_TRUE(steady.noise);
  EXPECT_NEAR(*steady.noise, 0, 1e-9);
  const Pace disturbed = pace_of(updates_of(std::vector<int64_t>(60, 1000), 0.3));
  EXPECT_GT(*disturbed.noise, 0.02);
  EXPECT_LT(*disturbed.noise, 0.3);
}

// Each update would be the best of its size.
TEST(Pace, OfUpdatesThatAllDifferHasANoise) {
  for (const int64_t count : {20, 97}) {
    const Pace disturbed = pace_of(updates_of(different(count), 0.3));
    ASSERT_TRUE(disturbed.noise);
    EXPECT_GT(*disturbed.noise, 0.02) << count;
    const Pace steady = pace_of(updates_of(different(count), 0));
    EXPECT_NEAR(*steady.noise, 0, 1e-9) << count;
  }
}

// Attention makes a place of a long row dearer: sizes that came often are not compared with others.
TEST(Pace, OfTwoSizesIsThatOfEach) {
  Updates run;
  for (int i = 0; i < 60; ++i) {
    run.sizes.push_back(i % 2 == 0 ? 100 : 1000);
    run.times.push_back(i % 2 == 0 ? 1e-4 : 5e-3);
  }
  const Pace pace = pace_of(run);
  EXPECT_NEAR(pace.seconds, 0.5 * (1e-4 + 5e-3), 1e-9);
  EXPECT_NEAR(*pace.noise, 0, 1e-9);
}

TEST(Pace, OfTwoUpdatesHasNoKnownNoise) {
  for (const size_t count : {1, 2}) {
    const Pace pace = pace_of(updates_of(std::vector<int64_t>(count, 1000), 0.1));
    EXPECT_GT(pace.seconds, 0);
    EXPECT_FALSE(pace.noise);
  }
  EXPECT_TRUE(pace_of(updates_of({1000, 1000, 1000}, 0.1)).noise);
}

TEST(ErrorOfMean, IsOfWhatNeighboursDifferBy) {
  std::vector<double> losses;
  for (int i = 0; i < 400; ++i) losses.push_back(2 + (i % 4 < 2 ? 0.1 : -0.1));
  // Half of all steps are of 0.2: a deviation of 0.1 around the mean.
  EXPECT_NEAR(error_of_mean(losses), 0.1 / 20, 2e-4);
  for (int i = 0; i < 400; ++i) losses[static_cast<size_t>(i)] = 4 - 0.001 * i;
  EXPECT_LT(error_of_mean(losses), 1e-4) << "a trend is none";
  EXPECT_TRUE(std::isnan(error_of_mean(std::vector<double>{1})));
}

}  // namespace
}  // namespace millrace
