#include "cpu/parallel.h"

#include <gtest/gtest.h>

#include <atomic>
#include <set>
#include <thread>
#include <vector>

#include "core/process.h"

namespace millrace::cpu {
namespace {

class Parallel : public testing::Test {
 protected:
  void TearDown() override { set_threads(0); }
};

TEST_F(Parallel, EveryTaskRunsOnce) {
  for (const int count : {1, 2, 3, 7}) {
    set_threads(count);
    EXPECT_EQ(threads(), count);
    for (const int64_t tasks : {0, 1, 2, 3, 64, 1000}) {
      std::vector<std::atomic<int>> runs(static_cast<size_t>(tasks));
      parallel_tasks(tasks, [&](int64_t t) { ++runs[static_cast<size_t>(t)]; });
      for (auto& r : runs) EXPECT_EQ(r, 1);
    }
  }
}

TEST_F(Parallel, ManySmallJobsInARow) {
  set_threads(3);
  std::atomic<int64_t> sum{0};
  for (int64_t job = 0; job < 20000; ++job) parallel_tasks(4, [&](int64_t t) { sum += t; });
  EXPECT_EQ(sum, 20000 * 6);
}

TEST_F(Parallel, TeamsComeAndGo) {  // a worker that falls asleep while the team ends must still end
  for (int i = 0; i < 300; ++i) {
    set_threads(2 + i % 3);
    if (i % 2) parallel_tasks(5, [](int64_t) {});
  }
}

TEST_F(Parallel, InsideATaskWorkStaysOnItsThread) {
  set_threads(2);
  std::atomic<int> strangers{0};
  parallel_tasks(8, [&](int64_t) {
    const auto here = std::this_thread::get_id();
    parallel_tasks(8, [&](int64_t) { strangers += std::this_thread::get_id() != here; });
  });
  EXPECT_EQ(strangers, 0);
}

TEST_F(Parallel, ThreadIndicesAreBelowTheCount) {
  set_threads(3);
  std::atomic<int> wrong{0};
  for (int i = 0; i < 100; ++i)
    parallel_tasks(16,
                   [&](int64_t) { wrong += thread_index() < 0 || thread_index() >= threads(); });
  EXPECT_EQ(wrong, 0);
}

// Pinned threads keep to one core each; the caller, whose mask threads that it starts inherit, does
// not.
TEST_F(Parallel, PinnedThreadsKeepToACore) {
  const size_t all = allowed_cores().size();
  for (const bool pinned : {true, false}) {
    set_threads(2, pinned);
    size_t cores[2] = {};
    std::atomic<int> arrived{0};
    parallel_tasks(2, [&](int64_t) {
      ++arrived;
      while (arrived < 2) std::this_thread::yield();  // so that both threads have one
      cores[thread_index()] = allowed_cores().size();
    });
    EXPECT_EQ(cores[0], all);
    EXPECT_EQ(cores[1], pinned ? 1 : all);
  }
}

TEST_F(Parallel, TwoCallersAtOnce) {
  set_threads(2);
  std::atomic<int64_t> sum{0};
  auto call = [&] {
    for (int i = 0; i < 500; ++i) parallel_tasks(8, [&](int64_t t) { sum += t; });
  };
  std::thread other(call);
  call();
  other.join();
  EXPECT_EQ(sum, 2 * 500 * 28);
}

TEST_F(Parallel, RangesCoverEverythingOnce) {
  set_threads(2);
  std::vector<std::atomic<int>> seen(1001);
  parallel_ranges(1001, 64, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) ++seen[static_cast<size_t>(i)];
  });
  for (auto& s : seen) EXPECT_EQ(s, 1);
}

}  // namespace
}  // namespace millrace::cpu
