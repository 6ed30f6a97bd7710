#include "cuda/choices.h"

#include <gtest/gtest.h>

namespace millrace::cuda {
namespace {

class ChoicesTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string name = testing::TempDir() + "millrace-choices-XXXXXX";
    ASSERT_NE(mkdtemp(name.data()), nullptr);
    folder_ = name;
    file_ = folder_ / "cuda" / "choices.txt";
  }
  void TearDown() override { fs::remove_all(folder_); }
  fs::path folder_, file_;
};

TEST_F(ChoicesTest, NumbersStayAndAreNoChoices) {
  {
    Choices choices(file_);
    EXPECT_EQ(choices.number("overhead in bf16"), std::nullopt);
    choices.note_number("overhead in bf16", 500'000'000);
    EXPECT_EQ(choices.find("product", [] { return "algorithm 7"; }), "algorithm 7");
    EXPECT_EQ(choices.number("overhead in bf16"), 500'000'000);
    EXPECT_EQ(choices.used(), "product : algorithm 7\n");
  }
  Choices again(file_);
  EXPECT_EQ(again.number("overhead in bf16"), 500'000'000);
  EXPECT_EQ(again.number("overhead in fp32"), std::nullopt);
  EXPECT_EQ(again.number("product"), std::nullopt) << "a choice is no number";
  EXPECT_EQ(again.used(), "");
}

TEST_F(ChoicesTest, OnlyANumberThatDiffersIsWritten) {
  Choices choices(file_);
  choices.note_number("overhead", 1000);
  fs::remove(file_);
  choices.note_number("overhead", 1010);
  choices.note_number("overhead", 990);
  EXPECT_EQ(choices.number("overhead"), 1000);
  EXPECT_FALSE(fs::exists(file_));
  choices.note_number("overhead", 1011);
  EXPECT_EQ(Choices(file_).number("overhead"), 1011);
  choices.note_number("overhead", 500);
  EXPECT_EQ(Choices(file_).number("overhead"), 500);
}

// Two processes that began at the same time: neither loses what the other has found, and of what
// both have timed the first counts for both.
TEST_F(ChoicesTest, ProcessesShareTheFile) {
  Choices one(file_), two(file_);
  EXPECT_EQ(one.find("a", [] { return "1"; }), "1");
  EXPECT_EQ(two.find("b", [] { return "2"; }), "2");
  EXPECT_EQ(two.find("a", [] { return "of its own"; }), "1");
  EXPECT_EQ(one.find("b", [] { return "of its own"; }), "2");
  two.note_number("bytes", 5);
  one.note_number("bytes", 7);
  Choices later(file_);
  EXPECT_EQ(later.find("a", [] { return "again"; }), "1");
  EXPECT_EQ(later.find("b", [] { return "again"; }), "2");
  EXPECT_EQ(later.number("bytes"), 7);
}

// A card without memory to spare says nothing of the next start.
TEST_F(ChoicesTest, WhatCouldNotBeTimedIsTimedTheNextTime) {
  create_folders(file_.parent_path());
  write_file(file_, "before : \n");  // as it was once remembered
  int asked = 0;
  auto full = [&] { return ++asked, std::string(); };
  {
    Choices choices(file_);
    EXPECT_EQ(choices.find("product", full), "");
    EXPECT_EQ(choices.find("product", full), "");
    EXPECT_EQ(asked, 1) << "a run keeps to what it began with";
    EXPECT_EQ(choices.find("route", full, "behind"), "behind");
    EXPECT_EQ(choices.used(), "product : \nroute : behind\n");
  }
  Choices again(file_);
  EXPECT_EQ(again.find("product", [] { return "algorithm 7"; }), "algorithm 7");
  EXPECT_EQ(again.find("before", [] { return "algorithm 8"; }), "algorithm 8");
  EXPECT_EQ(Choices(file_).find("before", full), "algorithm 8");
  EXPECT_EQ(again.find(
                "route", [] { return "inside"; }, "behind"),
            "inside");
}

// A search among batches leaves nothing behind: not in a checkpoint, and not as a choice by rule
// for the run that follows.
TEST_F(ChoicesTest, PlansMadeForTheirSizesChooseNothing) {
  Choices choices(file_);
  EXPECT_EQ(choices.find("known", [] { return "3"; }), "3");
  Choices later(file_);
  EXPECT_FALSE(later.set_sizes_only(true));
  EXPECT_EQ(later.find("known", [] { return "of its own"; }), "3");
  EXPECT_EQ(later.find("product", [] { return "7"; }), "");
  EXPECT_EQ(later.used(), "");
  EXPECT_TRUE(later.set_sizes_only(false));
  EXPECT_EQ(later.find("product", [] { return "7"; }), "7");
  EXPECT_EQ(later.used(), "product : 7\n");
}

TEST_F(ChoicesTest, WhatIsNoNumberIsNotKnown) {
  create_folders(file_.parent_path());
  write_file(file_, "a : 12x\nb : -3\nc : \nd : 99999999999999999999\ne : 12\n");
  Choices choices(file_);
  for (const char* key : {"a", "b", "c", "d"}) EXPECT_EQ(choices.number(key), std::nullopt) << key;
  EXPECT_EQ(choices.number("e"), 12);
  choices.note_number("a", 5);
  EXPECT_EQ(Choices(file_).number("a"), 5);
}

}  // namespace
}  // namespace millrace::cuda
