#include "data/long_records.h"

#include "data/data_testing.h"

namespace millrace {
namespace {

class LongRecords : public DataTest {
 protected:
  // What is said of a data set's training records, or of another split's.
  ErrorFields refusal(const DataOptions& options, const BatchOptions& batches,
                      SplitName split = SplitName::train) {
    const Dataset data = open(options);
    return refusal_of([&] { refuse_long_records(data, split, batches, options); });
  }
  void expect_taken(const DataOptions& options, const BatchOptions& batches) {
    const Dataset data = open(options);
    for (const SplitName split : {SplitName::train, SplitName::validation, SplitName::test})
      refuse_long_records(data, split, batches, options);
  }
  static BatchOptions apart(int64_t max_source, int64_t max_target) {
    BatchOptions o;
    o.batching = "buckets";
    o.max_source = max_source;
    o.sequences.max_length = max_target;
    return o;
  }
};

// Lengths count the end token.
TEST_F(LongRecords, SidesOfPairsInTwoFiles) {
  const DataOptions options{.train = {file("a.en", "ab\nabcdef\n\nabcd\nabcde\n")},
                            .train_target = {file("a.de", "a\nabc\n\nabcdef\nabcdefgh\n")},
                            .validation_fraction = 0};
  expect_taken(options, apart(7, 9));
  ErrorFields e = refusal(options, apart(5, 9));
  EXPECT_EQ(e.code, ErrorCode::config);
  EXPECT_EQ(e.what, "a source is longer than training.max_source_length");
  EXPECT_EQ(e.where, path("a.en") + ":2");
  EXPECT_EQ(e.expected, "at most 5 tokens, its end token among them");
  EXPECT_EQ(e.got, "7 tokens; 2 of 4 are too long, the longest has 7");
  EXPECT_EQ(e.remedy, "training.max_source_length=7, or data.on_long_record=cut");
  e = refusal(options, apart(7, 6));
  EXPECT_EQ(e.what, "a target is longer than training.max_length");
  EXPECT_EQ(e.where, path("a.de") + ":4") << "the empty line counts";
  EXPECT_EQ(e.got, "7 tokens; 2 of 4 are too long, the longest has 9");
  EXPECT_EQ(e.remedy, "training.max_length=9, or data.on_long_record=cut");
}

TEST_F(LongRecords, OfADrawnSplitTheLineIsThatOfTheFile) {
  std::string rows = "q,a\n";
  for (int i = 0; i < 200; ++i) rows += "\"x\ny\",z\n";
  rows += "\"x\ny\",zzzzz\n";  // lines 402 and 403, where the target is
  for (int i = 0; i < 100; ++i) rows += "x,z\n";
  DataOptions options{.train = {file("a.csv", rows)},
                      .fields = {"q", "a"},
                      .validation_fraction = 0.3,
                      .test_fraction = 0.3};
  int found = 0;
  for (options.seed = 0; options.seed < 8; ++options.seed) {
    const Dataset data = open(options);
    for (const SplitName split : {SplitName::train, SplitName::validation, SplitName::test}) {
      try {
        refuse_long_records(data, split, apart(9, 3), options);
      } catch (const Error& error) {
        EXPECT_EQ(error.fields().where, path("a.csv") + ":403");
        ++found;
      }
    }
  }
  EXPECT_EQ(found, 8) << "it is in one of the splits";
}

// Refused is what would be cut: a record that makes several sequences, a pair that loses tokens.
TEST_F(LongRecords, InARow) {
  const std::string lines = file("a.txt", "ab\nab cd\nab cd ef\n");
  for (const char* kind : {"char", "byte", "word"})
    for (const bool pairs : {false, true}) {
      DataOptions options{.train = {lines},
                          .format = "lines",
                          .validation_fraction = 0,
                          .tokenizer = {.kind = kind}};
      if (pairs) options.train_target = {lines};
      const Dataset data = open(options);
      int64_t most = 0;
      for (BatchOptions row{.batching = "packing", .sequences = {.max_length = 22}};
           row.sequences.max_length > 1; --row.sequences.max_length) {
        const SequenceSummary cut =
            open_sequence_index(data, SplitName::train, row.sequences, notes_)
                ->current()
                ->summary();
        const int64_t max_length = row.sequences.max_length;
        if (cut.split + cut.cut == 0) {
          expect_taken(options, row);
          most = max_length;
          continue;
        }
        const ErrorFields e = refusal(options, row);
        EXPECT_EQ(e.what, "a record is longer than training.max_length") << max_length;
        if (max_length == most - 1) {
          EXPECT_EQ(e.where, path("a.txt") + ":3");
        }
        EXPECT_EQ(e.remedy,
                  fmt::format("training.max_length={}, or data.on_long_record=cut", most));
        EXPECT_TRUE(has(e.got, fmt::format("; {} of 3", cut.split + cut.cut))) << e.got;
      }
      EXPECT_GT(most, 0) << kind;
    }
  // One long text has no records.
  expect_taken({.train = {lines}, .format = "lines", .validation_fraction = 0},
               {.batching = "windows", .sequences = {.max_length = 3}});
}

}  // namespace
}  // namespace millrace
