// Replays the examples of every reader: hand-made ones, and what the fuzzer has found.
#include <gtest/gtest.h>

#include <set>

#include "io/quote.h"
#include "tests/fuzz/fuzz.h"

namespace millrace::fuzz {
namespace {

TEST(Corpus, EveryExampleGetsItsVerdict) {
  for (const Target& target : targets()) {
    std::set<std::string> seen;
    for (const Example& example : target.examples()) {
      SCOPED_TRACE(target.name + ": " + printable(example.bytes));
      EXPECT_TRUE(seen.insert(example.bytes).second) << "the same example twice";
      Verdict verdict;
      ASSERT_NO_THROW(verdict = target.run(example.bytes));
      EXPECT_EQ(verdict.accepted, example.words.empty()) << verdict.message;
      for (const std::string& word : example.words) {
        EXPECT_NE(verdict.message.find(word), std::string::npos) << word << "\nin\n"
                                                                 << verdict.message;
      }
    }
  }
}

// The same number gives the same bytes, and the damage leaves something to read.
TEST(Corpus, InputsAreMadeAgain) {
  for (const Target& target : targets()) {
    std::set<std::string> inputs;
    int accepted = 0;
    for (uint64_t i = 0; i < 300; ++i) {
      const std::string input = make_input(target, 5, i);
      EXPECT_EQ(input, make_input(target, 5, i));
      inputs.insert(input);
      accepted += target.run(input).accepted ? 1 : 0;
    }
    EXPECT_GT(inputs.size(), 200u) << target.name;
    EXPECT_GT(accepted, 3) << target.name;
    EXPECT_LT(accepted, 297) << target.name;
  }
}

}  // namespace
}  // namespace millrace::fuzz
