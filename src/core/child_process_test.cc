#include "core/child_process.h"

#include <gtest/gtest.h>

#include <csignal>

#include "core/error.h"

namespace millrace {
namespace {

TEST(ChildProcess, SaysHowItEnded) {
  const ChildResult r = run_child({"/bin/sh", "-c", "echo out; echo err >&2; cat; exit 7"}, 10);
  EXPECT_EQ(r.exit_code, 7);
  EXPECT_EQ(r.out, "out\n");
  EXPECT_EQ(r.err, "err\n");
  EXPECT_FALSE(r.timed_out);
  EXPECT_GT(r.peak_bytes, 0);
}

TEST(ChildProcess, ReadsMoreThanAPipeHolds) {
  const ChildResult r =
      run_child({"/bin/sh", "-c", "head -c 300000 /dev/zero; head -c 200000 /dev/zero >&2"}, 30);
  EXPECT_EQ(r.out.size(), 300000u);
  EXPECT_EQ(r.err.size(), 200000u);
}

TEST(ChildProcess, IsEndedWhenItTakesTooLong) {
  const ChildResult r = run_child({"/bin/sh", "-c", "echo begins; exec sleep 60"}, 0.3);
  EXPECT_TRUE(r.timed_out);
  EXPECT_EQ(r.signal, SIGKILL);
  EXPECT_EQ(r.out, "begins\n");
  EXPECT_LT(r.seconds, 10);
}

TEST(ChildProcess, ThatIsNotThereIsAnError) {
  EXPECT_THROW(run_child({"/nowhere/program"}, 1), Error);
}

}  // namespace
}  // namespace millrace
