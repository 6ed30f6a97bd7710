#include "core/duration.h"

#include <gtest/gtest.h>

namespace millrace {
namespace {

TEST(Duration, ReadsWhatPeopleWrite) {
  struct Row {
    const char* text;
    Duration value;
  };
  using Unit = Duration::Unit;
  for (const auto& [text, value] :
       {Row{"500", {500, Unit::steps}}, Row{"1 step", {1, Unit::steps}},
        Row{"1_000 steps", {1000, Unit::steps}}, Row{"1e9 tokens", {1e9, Unit::tokens}},
        Row{"1e+3tokens", {1000, Unit::tokens}}, Row{"0.5 epochs", {0.5, Unit::epochs}},
        Row{"2 epoch", {2, Unit::epochs}}, Row{"90s", {90, Unit::seconds}},
        Row{"10 minutes", {600, Unit::seconds}}, Row{"1.5 h", {5400, Unit::seconds}},
        Row{"0", {}}}) {
    Duration got;
    EXPECT_TRUE(parse_duration(text, &got)) << text;
    EXPECT_EQ(got, value) << text;
    Duration again;
    EXPECT_TRUE(parse_duration(got.str(), &again)) << got.str();
    EXPECT_EQ(again, got) << got.str();
  }
}

TEST(Duration, RefusesTheRest) {
  for (const char* text : {"", "steps", "-1", "nan", "inf steps", "1e", "1e400", "1e16", "3 weeks",
                           "3 steps ", "1..2", "_1", "0x10", "5 Steps", "1e 3"}) {
    Duration got{7, Duration::Unit::tokens};
    EXPECT_FALSE(parse_duration(text, &got)) << text;
    EXPECT_EQ(got.count, 7);
  }
}

}  // namespace
}  // namespace millrace
