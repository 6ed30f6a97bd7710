#include "train/report.h"

#include <gtest/gtest.h>

namespace millrace {
namespace {

// As the scripts of the first users print it, so that what reads their logs reads ours.
TEST(ReportTest, AnEpochIsTwoLines) {
  EXPECT_EQ(describe(EpochReport{.epoch = 1,
                                 .epochs = 25,
                                 .loss = 2.12341,
                                 .seconds = 180.52,
                                 .samples_per_second = 1420.4,
                                 .shares = {}}),
            "Epoch [1/25] Average Train Loss: 2.1234\n"
            "  Epoch time: 180.5s | Throughput: 1420 samples/sec");
}

TEST(ReportTest, ItsTimeIsSharedOut) {
  const std::string text =
      describe(EpochReport{.epoch = 2,
                           .epochs = 2,
                           .loss = 1,
                           .seconds = 1,
                           .samples_per_second = 3,
                           .shares = {{"backward", 0.6}, {"forward", 0.3}, {"logging", 0.004}}});
  EXPECT_TRUE(text.ends_with("samples/sec | backward 60 %, forward 30 %")) << text;
}

}  // namespace
}  // namespace millrace
