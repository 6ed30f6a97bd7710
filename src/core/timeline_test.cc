#include "core/timeline.h"

#include <gtest/gtest.h>

#include <thread>

namespace millrace {
namespace {

TEST(Timeline, LanesAreFoundByName) {
  Timeline t(4);
  EXPECT_EQ(t.lane("host"), kHostLane);
  EXPECT_EQ(t.lane("compute"), kComputeLane);
  const uint32_t a = t.lane("loader 1"), b = t.lane("loader 2");
  EXPECT_NE(a, b);
  EXPECT_EQ(t.lane("loader 1"), a);
  EXPECT_EQ(t.lane("loader 2"), b);
  EXPECT_EQ(t.lanes(), (std::vector<std::string>{"host", "compute", "loader 1", "loader 2"}));
}

TEST(Timeline, WhatDoesNotFitIsCounted) {
  Timeline t(2);
  for (int64_t i = 0; i < 5; ++i) t.add({i, i + 1, 0, "run", "run", {}});
  EXPECT_EQ(t.spans().size(), 2u);
  EXPECT_EQ(t.left_out(), 3);
}

TEST(Timeline, SeveralThreadsAdd) {
  Timeline t(2000);
  std::vector<std::thread> team;
  for (int i = 0; i < 2; ++i)
    team.emplace_back([&, i] {
      const uint32_t lane = t.lane(i == 0 ? "a" : "b");
      for (int64_t n = 0; n < 1000; ++n) t.add({n, n + 1, lane, "x", "x", {}});
    });
  for (std::thread& thread : team) thread.join();
  EXPECT_EQ(t.spans().size(), 2000u);
  EXPECT_EQ(t.lanes().size(), 4u);
}

}  // namespace
}  // namespace millrace
