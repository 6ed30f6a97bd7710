#include "core/error.h"

#include <gtest/gtest.h>

namespace millrace {
namespace {

TEST(ErrorTest, MessageHasOneLinePerField) {
  const Error error({.code = ErrorCode::config,
                     .what = "unknown key `modle`",
                     .where = "a.yaml:3:1",
                     .expected = "`model`",
                     .got = "`modle`",
                     .remedy = "rename the key"});
  EXPECT_STREQ(error.what(),
               "unknown key `modle`\n"
               "  where:    a.yaml:3:1\n"
               "  expected: `model`\n"
               "  got:      `modle`\n"
               "  remedy:   rename the key");
  EXPECT_EQ(error.code(), ErrorCode::config);
  EXPECT_EQ(error.fields().where, "a.yaml:3:1");
}

TEST(ErrorTest, EmptyFieldsAreLeftOut) {
  const Error error({.what = "broken", .remedy = "mend it"});
  EXPECT_STREQ(error.what(), "broken\n  remedy:   mend it");
  EXPECT_EQ(error.code(), ErrorCode::failure);
}

TEST(ErrorTest, IsAStandardException) { EXPECT_THROW(throw Error({.what = "x"}), std::exception); }

// The numbers are promised to scripts.
TEST(ErrorTest, ExitCodes) {
  EXPECT_EQ(static_cast<int>(ErrorCode::failure), 1);
  EXPECT_EQ(static_cast<int>(ErrorCode::config), 2);
  EXPECT_EQ(static_cast<int>(ErrorCode::does_not_fit), 3);
  EXPECT_EQ(static_cast<int>(ErrorCode::findings), 4);
  EXPECT_EQ(static_cast<int>(ErrorCode::regression), 5);
  EXPECT_EQ(static_cast<int>(ErrorCode::diverged), 10);
  EXPECT_EQ(static_cast<int>(ErrorCode::stopped), 75);
}

TEST(CheckDeathTest, FailsWithPlaceConditionAndMessage) {
  const int two = 2;
  EXPECT_DEATH(MR_CHECK(two == 3, "two is {}", two),
               "internal error at .*error_test\\.cc:[0-9]+: two == 3 two is 2");
  EXPECT_DEATH(MR_CHECK(two == 3), "two == 3");
}

TEST(CheckDeathTest, PassesAndEvaluatesOnce) {
  int count = 0;
  MR_CHECK(++count == 1, "count {}", count);
  EXPECT_EQ(count, 1);
}

}  // namespace
}  // namespace millrace
