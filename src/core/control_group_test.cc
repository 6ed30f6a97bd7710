#include "core/control_group.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>

namespace millrace {
namespace {

class ControlGroupTest : public testing::Test {
 protected:
  void SetUp() override {
    root_ = fs::temp_directory_path() / ("millrace-groups-" + std::to_string(getpid()));
    fs::remove_all(root_);
  }
  void TearDown() override { fs::remove_all(root_); }
  void put(const std::string& file, const std::string& text) {
    fs::create_directories((root_ / file).parent_path());
    std::ofstream(root_ / file) << text;
  }
  fs::path root_;
};

TEST_F(ControlGroupTest, NoneWhereThereAreNone) {
  EXPECT_FALSE(control_group_limits(root_).cores);
  put("proc/self/cgroup", "0::/\nnonsense\n::\n");
  put("sys/fs/cgroup/cpu.max", "max 100000\n");
  put("sys/fs/cgroup/memory.max", "max\n");
  EXPECT_FALSE(control_group_limits(root_).cores);
  EXPECT_FALSE(control_group_limits(root_).memory_bytes);
}

TEST_F(ControlGroupTest, TheLowestOfAGroupAndItsParents) {
  put("proc/self/cgroup", "0::/a/b\n");
  put("sys/fs/cgroup/a/b/cpu.max", "400000 100000\n");
  put("sys/fs/cgroup/a/cpu.max", "150000 100000\n");
  put("sys/fs/cgroup/a/b/memory.max", "1000000\n");
  put("sys/fs/cgroup/a/memory.max", "max\n");
  const GroupLimits limits = control_group_limits(root_);
  EXPECT_EQ(limits.cores, 1.5);
  EXPECT_EQ(limits.memory_bytes, 1000000);
}

TEST_F(ControlGroupTest, OfTheFirstVersionToo) {
  put("proc/self/cgroup", "4:memory:/box\n2:cpu,cpuacct:/box\n0::/\n");
  put("sys/fs/cgroup/cpu,cpuacct/box/cpu.cfs_quota_us", "200000\n");
  put("sys/fs/cgroup/cpu,cpuacct/box/cpu.cfs_period_us", "100000\n");
  put("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "-1\n");
  put("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us", "100000\n");
  put("sys/fs/cgroup/memory/box/memory.limit_in_bytes", "2000000\n");
  put("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
  const GroupLimits limits = control_group_limits(root_);
  EXPECT_EQ(limits.cores, 2);
  EXPECT_EQ(limits.memory_bytes, 2000000);
}

// From inside a container the path is the host's, and what is mounted is the container's own group.
TEST_F(ControlGroupTest, SeenFromInsideAContainer) {
  put("proc/self/cgroup", "0::/../../host/path\n");
  put("sys/fs/cgroup/cpu.max", "50000 100000\n");
  EXPECT_EQ(control_group_limits(root_).cores, 0.5);
  put("proc/self/cgroup", "0::/host/path\n");
  EXPECT_EQ(control_group_limits(root_).cores, 0.5);
}

}  // namespace
}  // namespace millrace
