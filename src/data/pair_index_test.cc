#include "data/pair_index.h"

#include <algorithm>
#include <set>

#include "data/batches.h"
#include "data/data_testing.h"
#include "data/word_tokenizer.h"

namespace millrace {
namespace {

using Texts = std::multiset<std::pair<std::string, std::string>>;

class PairIndexTest : public DataTest {
 protected:
  // Pairs of words of known lengths.
  Dataset pairs(const std::vector<std::pair<int, int>>& lengths) {
    std::string sources, targets;
    texts_.clear();
    for (size_t i = 0; i < lengths.size(); ++i) {
      const auto [s, t] = lengths[i];
      const std::string source(static_cast<size_t>(s), static_cast<char>('a' + i % 26)),
          target(static_cast<size_t>(t), static_cast<char>('A' + i % 26));
      texts_.emplace_back(source, target);
      sources += source + "\n";
      targets += target + "\n";
    }
    return open({.train = {file("a.src", sources)},
                 .train_target = {file("a.tgt", targets)},
                 .format = "lines",
                 .validation_fraction = 0,
                 .tokenizer = {.kind = "char"}});
  }
  std::unique_ptr<Batches> batches(const Dataset& data, int64_t rows, int64_t S, int64_t T,
                                   std::optional<uint64_t> seed = 5,
                                   std::vector<LengthStage> stages = {}) {
    BatchOptions o;
    o.batching = "buckets";
    o.batch_size = rows;
    o.sequences.max_length = T;
    o.max_source = S;
    o.seed = seed;
    o.stages = std::move(stages);
    return make_batches(data, SplitName::train, o, notes_);
  }
  // What an epoch reads, as text without the end tokens.
  Texts epoch(const Dataset& data, const Batches& batches) {
    Texts found;
    Batch batch;
    for (int64_t i = 0; i < batches.batches_per_epoch(); ++i) {
      batches.fill(i, batch);
      const BatchShape& shape = batches.shapes()[batch.shape];
      EXPECT_EQ(std::ssize(batch.source), shape.batch * shape.source);
      int64_t useful = 0, scored = 0;
      for (int64_t row = 0; row < shape.batch; ++row) {
        const int32_t length = batch.source_lengths[static_cast<size_t>(row)];
        const auto source = batch.source.begin() + row * shape.source;
        const auto tokens = batch.tokens.begin() + row * shape.length,
                   targets = batch.targets.begin() + row * shape.length;
        const int64_t target = std::find(targets, targets + shape.length, -1) - targets;
        EXPECT_EQ(length == 0, target == 0);
        if (target == 0) continue;
        // Each token stands before its target.
        EXPECT_EQ(tokens[0], data.start_id >= 0 ? data.start_id : data.end_id);
        EXPECT_TRUE(std::equal(targets, targets + target - 1, tokens + 1));
        EXPECT_EQ(std::count(targets + target, targets + shape.length, -1), shape.length - target);
        found.emplace(data.tokenizer().decode({source, source + length}),
                      data.tokenizer().decode({targets, targets + target}));
        useful += length + target;
        scored += target;
      }
      EXPECT_EQ(batch.useful, useful);
      EXPECT_EQ(batch.scored, scored);
    }
    return found;
  }

  std::vector<std::pair<std::string, std::string>> texts_;
};

TEST_F(PairIndexTest, AnEpochReadsEveryPairOnce) {
  std::vector<std::pair<int, int>> lengths;
  for (int i = 0; i < 230; ++i) lengths.emplace_back(1 + i * 7 % 23, 1 + i * 11 % 19);
  const Dataset data = pairs(lengths);
  for (const int64_t rows : {1, 4, 7})
    for (const auto seed : {std::optional<uint64_t>(3), std::optional<uint64_t>()}) {
      const auto made = batches(data, rows, 64, 64, seed);
      EXPECT_EQ(epoch(data, *made), Texts(texts_.begin(), texts_.end())) << rows;
      EXPECT_GT(made->useful_share(), 0.6);
    }
}

TEST_F(PairIndexTest, WhatIsTooLongIsCutAtItsEnd) {
  const Dataset data = pairs({{9, 4}, {3, 8}, {2, 2}});
  const auto made = batches(data, 2, 5, 6);
  EXPECT_EQ(epoch(data, *made), (Texts{{"aaaaa", "AAAA"}, {"bbb", "BBBBBB"}, {"cc", "CC"}}));
  EXPECT_EQ(made->cut(),
            "1 of 3 sources to their first 5 tokens (the longest has 10), 1 of 3 targets to their "
            "first 6 tokens (the longest has 9)");
  EXPECT_EQ(batches(data, 2, 10, 9)->cut(), "");
  const auto index = open_pair_index(data, SplitName::train, {5, 6, 8}, notes_)->current();
  EXPECT_EQ(index->summary().cut_sources, 1);
  EXPECT_EQ(index->summary().cut_targets, 1);
  EXPECT_EQ(index->summary().source.most, 10);  // with its end token
}

// A stage of a curriculum cuts what a batch holds; which pairs those are stays as it is, in the
// middle of an epoch too.
TEST_F(PairIndexTest, StagesCutTheSameBatches) {
  std::vector<std::pair<int, int>> lengths;
  for (int i = 0; i < 230; ++i) lengths.emplace_back(1 + i * 7 % 23, 1 + i * 11 % 19);
  const Dataset data = pairs(lengths);
  const std::vector<LengthStage> stages{{10, 4, 3}, {70, 12, 3}};
  const auto plain = batches(data, 4, 64, 64), staged = batches(data, 4, 64, 64, 5, stages);
  ASSERT_GT(plain->batches_per_epoch(), 20);
  ASSERT_LT(plain->batches_per_epoch(), 70) << "the second stage ends in another epoch";
  EXPECT_EQ(staged->batches_per_epoch(), plain->batches_per_epoch());
  EXPECT_EQ(staged->shapes()[0], plain->shapes()[0]) << "the largest is that of full lengths";
  for (size_t i = 0; i < staged->shapes().size(); ++i)
    EXPECT_EQ(std::count(staged->shapes().begin(), staged->shapes().end(), staged->shapes()[i]), 1);
  Batch whole, cut;
  std::vector<bool> used(staged->shapes().size());
  for (int64_t position = 2 * plain->batches_per_epoch(); position-- > 0;) {
    plain->fill(position, whole);
    staged->fill(position, cut);
    used[cut.shape] = true;
    const int64_t S = position < 10 ? 4 : position < 70 ? 12 : 64, T = position < 70 ? 3 : 64;
    const BatchShape full = plain->shapes()[whole.shape], shape = staged->shapes()[cut.shape];
    EXPECT_EQ(shape,
              (BatchShape{full.batch, std::min(full.length, T), false, std::min(full.source, S)}))
        << position;
    ASSERT_EQ(std::ssize(cut.targets), shape.batch * shape.length);
    int64_t useful = 0;
    for (int64_t row = 0; row < shape.batch; ++row) {
      const auto at = static_cast<size_t>(row);
      EXPECT_EQ(cut.source_lengths[at], std::min<int64_t>(whole.source_lengths[at], S));
      EXPECT_TRUE(std::equal(cut.source.begin() + row * shape.source,
                             cut.source.begin() + (row + 1) * shape.source,
                             whole.source.begin() + row * full.source));
      for (auto list : {&Batch::tokens, &Batch::targets})
        EXPECT_TRUE(std::equal((cut.*list).begin() + row * shape.length,
                               (cut.*list).begin() + (row + 1) * shape.length,
                               (whole.*list).begin() + row * full.length));
      useful += cut.source_lengths[at];
    }
    const auto scored =
        std::ssize(cut.targets) - std::count(cut.targets.begin(), cut.targets.end(), -1);
    EXPECT_EQ(cut.scored, scored);
    EXPECT_EQ(cut.useful, useful + scored);
  }
  EXPECT_EQ(std::count(used.begin(), used.end(), false), 0)
      << "a shape that is planned for nothing";
}

// "plugh" and "xyzzy" are rare; what is copied is what stands in the part of the source that is
// read.
TEST_F(PairIndexTest, RareWordsOfASourceCanBeCopied) {
  const Dataset data = open({.train = {file("a.src", "a a plugh xyzzy frob\na\n")},
                             .train_target = {file("a.tgt", "a xyzzy quux frob\nplugh\n")},
                             .format = "lines",
                             .validation_fraction = 0,
                             .tokenizer = {.kind = "word", .min_frequency = 3}});
  BatchOptions o;
  o.batching = "buckets";
  o.batch_size = 2;
  o.sequences.max_length = 8;
  o.max_source = 4;
  o.open_words = true;
  const auto made = make_batches(data, SplitName::train, o, notes_);
  Batch batch;
  made->fill(0, batch);
  const auto& tokenizer = dynamic_cast<const WordTokenizer&>(data.tokenizer());
  auto text = [&](const std::vector<int32_t>& ids) {
    std::string words;
    for (const int32_t id : ids) words += fmt::format("{} ", id < 0 ? "-" : tokenizer.word(id));
    return words;
  };
  EXPECT_EQ(text(batch.source), "a a <unk> <unk> a </s> <unk> <unk> ");
  EXPECT_EQ(text(batch.source_open), "a a plugh xyzzy a </s> - - ");
  EXPECT_EQ(text(batch.tokens), "<s> a <unk> <unk> <unk> <s> <unk> <unk> <unk> <unk> ");
  EXPECT_EQ(text(batch.targets), "a xyzzy <unk> <unk> </s> <unk> </s> - - - ");
  o.stages = {{1, 3, 8}};  // and "xyzzy" is not
  make_batches(data, SplitName::train, o, notes_)->fill(0, batch);
  EXPECT_EQ(text(batch.source_open), "a a plugh a </s> - ");
  EXPECT_EQ(text(batch.targets), "a <unk> <unk> <unk> </s> <unk> </s> - - - ");
  o.stages.clear();
  o.open_words = false;
  make_batches(data, SplitName::train, o, notes_)->fill(0, batch);
  EXPECT_EQ(text(batch.targets), "a <unk> <unk> <unk> </s> <unk> </s> - - - ");
}

TEST_F(PairIndexTest, DamageIsMended) {
  std::vector<std::pair<int, int>> lengths;
  for (int i = 0; i < 60; ++i) lengths.emplace_back(1 + i % 13, 1 + i % 7);
  const Dataset data = pairs(lengths);
  const auto made = batches(data, 4, 32, 32);
  for (const auto& entry : fs::recursive_directory_iterator(data.folder))
    if (entry.path().filename() == "pairs.bin") {
      std::string bytes = read_file(entry.path(), 1 << 20);
      bytes[20] = static_cast<char>(bytes[20] ^ 1);
      write_file(entry.path(), bytes);
    }
  EXPECT_EQ(epoch(data, *batches(data, 4, 32, 32)), Texts(texts_.begin(), texts_.end()));
  EXPECT_FALSE(notes_.notes.empty());
}

}  // namespace
}  // namespace millrace
