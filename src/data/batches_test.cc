#include "data/batches.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <set>

#include "data/data_testing.h"
#include "data/loader.h"

namespace millrace {
namespace {

using Ids = std::vector<int32_t>;

Dataset counting(int64_t tokens) {
  Ids ids(static_cast<size_t>(tokens));
  std::iota(ids.begin(), ids.end(), 0);
  return dataset_in_memory(make_byte_tokenizer(), ids, {});
}

std::unique_ptr<Batches> windows(const Dataset& data, int64_t T, std::optional<uint64_t> seed,
                                 bool random = false, int64_t batch = 1, int64_t context = 0) {
  DataObserver nobody;
  BatchOptions o;
  o.batching = "windows";
  o.batch_size = batch;
  o.sequences.max_length = T;
  o.random_windows = random;
  o.seed = seed;
  o.window_context = context;
  return make_batches(data, SplitName::train, o, nobody);
}

Batch filled(const Batches& batches, int64_t position) {
  Batch batch;
  batches.fill(position, batch);
  return batch;
}

// Where windows begin: the data counts.
std::vector<int64_t> begins_of(const Batches& batches, int64_t first, int64_t count) {
  std::vector<int64_t> begins;
  for (int64_t i = 0; i < count; ++i) begins.push_back(filled(batches, first + i).tokens[0]);
  return begins;
}

TEST(WindowBatches, EpochHoldsEveryWindowOnce) {
  constexpr int64_t kT = 5;
  for (const int64_t count : {1, 2, 3, 7, 16, 17, 64, 65, 1000})
    for (const int64_t spare : {int64_t{1}, kT}) {  // tokens left after the last window's inputs
      const Dataset data = counting(count * kT + spare);
      const auto batches = windows(data, kT, 42);
      ASSERT_EQ(batches->positions_per_epoch(), count);
      for (const int64_t epoch : {int64_t{0}, int64_t{1}, int64_t{1} << 33}) {
        std::vector<int64_t> begins = begins_of(*batches, epoch * count, count);
        std::sort(begins.begin(), begins.end());
        for (int64_t i = 0; i < count; ++i)
          ASSERT_EQ(begins[static_cast<size_t>(i)], i * kT) << count << " windows";
      }
    }
}

TEST(WindowBatches, RandomBeginsAreEvenAndInBounds) {
  constexpr int64_t kTokens = 74, kT = 10, kBegins = kTokens - kT, kDraws = 64'000;
  const Dataset data = counting(kTokens);
  const auto batches = windows(data, kT, 3, true);
  EXPECT_EQ(batches->positions_per_epoch(), 7);
  std::vector<int> counts(kBegins);
  for (const int64_t begin : begins_of(*batches, 0, kDraws))
    ++counts.at(static_cast<size_t>(begin));
  double chi_squared = 0;
  for (const int count : counts) chi_squared += std::pow(count - 1000.0, 2) / 1000.0;
  // 63 degrees of freedom: mean 63, standard deviation sqrt(126).
  EXPECT_NEAR(chi_squared, 63, 5 * std::sqrt(126.0));
}

// The order cannot change silently: these were measured when it was made.
TEST(WindowBatches, OrderIsWhatItWas) {
  const Dataset data = counting(1001);
  EXPECT_EQ(begins_of(*windows(data, 10, 1), 0, 6),
            (std::vector<int64_t>{150, 470, 740, 850, 450, 200}));
  EXPECT_EQ(begins_of(*windows(data, 10, 1, true), 0, 6),
            (std::vector<int64_t>{185, 839, 276, 442, 202, 756}));
}

TEST(WindowBatches, IndependentOfBatchSplitAndOfHistory) {
  const Dataset data = counting(10'001);
  for (const bool random : {false, true}) {
    const auto by_8 = windows(data, 16, 7, random, 8), by_32 = windows(data, 16, 7, random, 32);
    EXPECT_EQ(by_8->stride(), 8);
    Ids eights, all;
    for (int64_t step = 0; step < 40; ++step) {
      const Batch batch = filled(*by_8, step * 8);
      eights.insert(eights.end(), batch.tokens.begin(), batch.tokens.end());
    }
    for (int64_t step = 0; step < 10; ++step) {
      const Batch batch = filled(*by_32, step * 32);
      all.insert(all.end(), batch.tokens.begin(), batch.tokens.end());
    }
    EXPECT_EQ(eights, all);
  }
}

TEST(WindowBatches, InOrderWithContext) {
  const Dataset data = counting(14);
  const auto batches = windows(data, 4, std::nullopt, false, 3, 1);
  EXPECT_EQ(batches->batches_per_epoch(), 2);  // windows at 0, 3, 6 and 9
  const Batch first = filled(*batches, 0), second = filled(*batches, 3);
  EXPECT_EQ(first.tokens, (Ids{0, 1, 2, 3, 3, 4, 5, 6, 6, 7, 8, 9}));
  EXPECT_EQ(first.targets, (Ids{1, 2, 3, 4, -1, 5, 6, 7, -1, 8, 9, 10}));
  EXPECT_EQ(first.scored, 10);
  EXPECT_EQ(second.tokens, (Ids{9, 10, 11, 12, 0, 0, 0, 0, 0, 0, 0, 0}));
  EXPECT_EQ(second.targets, (Ids{-1, 11, 12, 13, -1, -1, -1, -1, -1, -1, -1, -1}));
  EXPECT_EQ(second.scored, 3);
  EXPECT_EQ(second.useful, 4);
}

TEST(WindowBatches, ShorterThanOneWindow) {
  const Dataset data = counting(10);
  windows(data, 9, 1);
  const ErrorFields e = refusal_of([&] { windows(data, 10, 1); });
  EXPECT_EQ(e.code, ErrorCode::config);
  EXPECT_EQ(e.where, "data.train");
  EXPECT_TRUE(has(e.expected, "11 tokens"));
  EXPECT_EQ(e.got, "10 tokens in memory");
  EXPECT_TRUE(has(e.remedy, "training.max_length=9"));
}

// --- records

class RecordBatchesTest : public DataTest {
 protected:
  Dataset lines(const std::string& text, const std::string& targets = "") {
    DataOptions o{.train = {file("a.txt", text)}, .format = "lines", .validation_fraction = 0};
    if (!targets.empty()) o.train_target = {file("b.txt", targets)};
    return open(o);
  }
  // 300 records of 1 to 60 characters, all different.
  Dataset many() {
    std::string text;
    for (int i = 0; i < 300; ++i) {
      std::string line = fmt::format("{:03}", i);
      line.append(static_cast<size_t>(i * 7919 % 58), static_cast<char>('a' + i % 26));
      text += line + "\n";
    }
    return lines(text);
  }
  std::unique_ptr<Batches> batches(const Dataset& data, const std::string& batching,
                                   int64_t max_length, std::optional<uint64_t> seed = 1,
                                   int64_t rows = 4, SequenceOptions sequences = {}) {
    BatchOptions o;
    o.batching = batching;
    o.batch_size = rows;
    o.sequences = sequences;
    o.sequences.max_length = max_length;
    o.seed = seed;
    return make_batches(data, SplitName::train, o, notes_);
  }
  // Every sequence of an epoch as text: what is read, and of it what is scored.
  static std::multiset<std::pair<std::string, std::string>> sequences(const Dataset& data,
                                                                      const Batches& batches,
                                                                      int64_t epoch) {
    std::multiset<std::pair<std::string, std::string>> found;
    auto text = [&](const Ids& ids) {
      std::string s;
      for (const int32_t id : ids) s += id == data.end_id ? "|" : data.tokenizer().decode({&id, 1});
      return s;
    };
    for (int64_t i = 0; i < batches.batches_per_epoch(); ++i) {
      const Batch b = filled(batches, epoch * batches.positions_per_epoch() + i * batches.stride());
      const BatchShape shape = batches.shapes()[b.shape];
      EXPECT_EQ(std::ssize(b.tokens), shape.batch * shape.length);
      for (int64_t row = 0; row < shape.batch; ++row) {
        if (i * batches.stride() + row >= batches.positions_per_epoch() && batches.stride() > 1)
          break;  // the next epoch's
        std::map<int32_t, std::pair<Ids, Ids>> parts;
        for (int64_t t = 0; t < shape.length; ++t) {
          const auto at = static_cast<size_t>(row * shape.length + t);
          auto& [tokens, targets] = parts[shape.packed ? b.segments[at] : 0];
          if (shape.packed && std::ssize(tokens) > 0 && b.targets[at] >= 0) {
            EXPECT_EQ(b.positions[at], std::ssize(tokens)) << "positions restart";
          }
          tokens.push_back(b.tokens[at]);
          if (b.targets[at] >= 0) targets.push_back(b.targets[at]);
        }
        for (auto& [segment, part] : parts)
          if (!part.second.empty()) {
            part.first.resize(std::min(part.first.size(), part.second.size()));
            found.emplace(text(part.first), text(part.second));
          }
      }
    }
    return found;
  }
};

TEST_F(RecordBatchesTest, EveryRecordOncePerEpoch) {
  const Dataset data = many();
  std::multiset<std::pair<std::string, std::string>> wanted;
  for (const std::string& r : records_of(data, data.train)) wanted.emplace("|" + r, r + "|");
  for (const char* batching : {"buckets", "packing"})
    for (const std::optional<uint64_t> seed :
         {std::optional<uint64_t>(5), std::optional<uint64_t>()}) {
      SCOPED_TRACE(batching);
      const auto b = batches(data, batching, 64, seed);
      EXPECT_EQ(sequences(data, *b, 0), wanted);
      if (!seed) continue;
      EXPECT_EQ(sequences(data, *b, 3), wanted);
      EXPECT_NE(filled(*b, 0).tokens, filled(*b, 3 * b->positions_per_epoch()).tokens);
    }
}

TEST_F(RecordBatchesTest, UsefulAndScoredAreCounted) {
  const Dataset data = many();
  for (const char* batching : {"buckets", "packing"}) {
    const auto b = batches(data, batching, 64);
    int64_t useful = 0, places = 0;
    for (int64_t i = 0; i < b->batches_per_epoch(); ++i) {
      const Batch batch = filled(*b, i * b->stride());
      useful += batch.useful;
      places += std::ssize(batch.tokens);
      EXPECT_EQ(batch.scored, std::count_if(batch.targets.begin(), batch.targets.end(),
                                            [](int32_t t) { return t >= 0; }));
    }
    if (b->positions_per_epoch() % b->stride() == 0) {
      EXPECT_EQ(useful, data.train.size());
      EXPECT_NEAR(b->useful_share(), static_cast<double>(useful) / static_cast<double>(places),
                  1e-9);
    }
    EXPECT_GT(b->useful_share(), std::string(batching) == "packing" ? 0.97 : 0.9);
  }
}

TEST_F(RecordBatchesTest, LongRecordsAreCut) {
  const Dataset data = lines("abcdefghij\nxy\n");
  using Found = std::multiset<std::pair<std::string, std::string>>;
  EXPECT_EQ(sequences(data, *batches(data, "buckets", 4, std::nullopt), 0),
            (Found{{"|abc", "abcd"}, {"defg", "efgh"}, {"hij", "ij|"}, {"|xy", "xy|"}}));
  // An overlap is read and not scored.
  EXPECT_EQ(
      sequences(data, *batches(data, "buckets", 4, std::nullopt, 4, {.overlap = 2}), 0),
      (Found{
          {"|abc", "abcd"}, {"bc", "ef"}, {"de", "gh"}, {"fg", "ij"}, {"h", "|"}, {"|xy", "xy|"}}));
}

TEST_F(RecordBatchesTest, ChunksEndWhereSentencesDo) {
  const Dataset data = lines("One. Two is longer. Three 3.5 is it.\n");
  std::vector<std::string> scored;
  for (const auto& [read, targets] :
       sequences(data, *batches(data, "buckets", 24, std::nullopt, 4, {.chunking = "sentence"}), 0))
    scored.push_back(targets);
  EXPECT_EQ(scored, (std::vector<std::string>{" Three 3.5 is it.|", "One. Two is longer."}));
}

// Ids as text: what is not scored as -, ends as |.
auto text_of(const Dataset& data) {
  return [&data](const Ids& ids) {
    std::string s;
    for (const int32_t id : ids)
      s += id < 0 ? "-" : id == data.end_id ? "|" : data.tokenizer().decode({&id, 1});
    return s;
  };
}

TEST_F(RecordBatchesTest, PairsScoreTheTargetOnly) {
  const Dataset data = lines("ab\nlongsource\n", "cd\nt\n");
  const auto b = batches(data, "buckets", 8, std::nullopt, 1);
  ASSERT_EQ(b->batches_per_epoch(), 2);
  const auto text = text_of(data);
  const Batch first = filled(*b, 0), second = filled(*b, 1);
  EXPECT_EQ(text(first.tokens), "|ab|cd");
  EXPECT_EQ(text(first.targets), "---cd|");
  // Too long: the source loses its front.
  EXPECT_EQ(text(second.tokens), "source|t");
  EXPECT_EQ(text(second.targets), "------t|");
}

TEST_F(RecordBatchesTest, JoinedPairsHaveNothingBetween) {
  const Dataset data = open({.train = {file("a.jsonl",
                                            "{\"q\": \"ab\", \"a\": \"cd\"}\n"
                                            "{\"q\": \"longsource\", \"a\": \"t\"}\n")},
                             .fields = {"q", "a"},
                             .validation_fraction = 0,
                             .joined_pairs = true});
  const auto b = batches(data, "buckets", 8, std::nullopt, 1);
  const auto text = text_of(data);
  const Batch first = filled(*b, 0), second = filled(*b, 1);
  EXPECT_EQ(text(first.tokens), "|abcd");
  EXPECT_EQ(text(first.targets), "--cd|");
  EXPECT_EQ(text(second.tokens), "gsourcet");
  EXPECT_EQ(text(second.targets), "------t|");
}

// One place holds the end of a source, and nothing is left of the target.
TEST_F(RecordBatchesTest, NothingToPredictIsAnError) {
  const Dataset data = lines("a\nb\n", "c\nd\n");
  for (const char* batching : {"buckets", "packing"}) {
    const ErrorFields e = refusal_of([&] { batches(data, batching, 1); });
    EXPECT_EQ(e.what, "no record holds anything to predict");
    EXPECT_TRUE(has(e.got, "2 records")) << e.got;
  }
}

TEST_F(RecordBatchesTest, TheIndexIsKeptAndMended) {
  const Dataset data = many();
  const auto first = batches(data, "packing", 64);
  fs::path index;
  for (const auto& entry : fs::directory_iterator(data.folder))
    if (entry.path().filename().string().starts_with("train-") && entry.is_directory())
      index = entry.path();
  ASSERT_FALSE(index.empty());
  for (const char* name : {"meta.json", "sequences.bin"}) {
    std::string bytes = read_file(index / name);
    bytes[bytes.size() / 2] ^= 1;
    write_file(index / name, bytes);
    notes_.notes.clear();
    const auto again = batches(data, "packing", 64);
    EXPECT_EQ(filled(*again, 0).tokens, filled(*first, 0).tokens);
    ASSERT_FALSE(notes_.notes.empty());
    EXPECT_TRUE(has(notes_.notes[0], "made again")) << notes_.notes[0];
  }
}

// --- the loader

TEST_F(RecordBatchesTest, WorkersDoNotChangeABit) {
  const Dataset data = many();
  for (const char* batching : {"windows", "buckets", "packing"}) {
    const auto b = batches(data, batching, 64);
    std::vector<std::vector<Ids>> runs;
    for (const int workers : {0, 1, 2, 7, -1}) {
      Loader loader(*b, 3 * b->stride(), 2, {.workers = workers, .most_workers = 3});
      std::vector<Ids> seen;
      for (int i = 0; i < 200; ++i) {
        const UpdateBatches& update = loader.next();
        ASSERT_EQ(update.parts.size(), 2u);
        EXPECT_EQ(update.scored, update.parts[0].scored + update.parts[1].scored);
        for (const Batch& batch : update.parts) {
          seen.push_back(batch.tokens);
          seen.push_back(batch.targets);
        }
      }
      runs.push_back(std::move(seen));
    }
    for (size_t i = 1; i < runs.size(); ++i) EXPECT_EQ(runs[i], runs[0]) << batching << " " << i;
    // The same as asking for each.
    EXPECT_EQ(runs[0][4], filled(*b, 5 * b->stride()).tokens);
  }
}

class FailingBatches : public Batches {
 public:
  FailingBatches() {
    shapes_ = {{1, 1}};
    positions_ = 100;
  }
  void fill(int64_t position, Batch& batch) const override {
    if (position == 5) throw Error({.what = "the fifth"});
    batch.tokens = {static_cast<int32_t>(position)};
    batch.targets = {0};
  }
};

TEST(Loader, AFaultComesOutAtItsTurn) {
  const FailingBatches batches;
  for (const int workers : {0, 1, 3}) {
    Loader loader(batches, 0, 1, {.workers = workers});
    for (int i = 0; i < 5; ++i) EXPECT_EQ(loader.next().parts[0].tokens[0], i);
    EXPECT_THROW(loader.next(), Error);
  }
}

class SlowBatches : public Batches {
 public:
  SlowBatches() {
    shapes_ = {{1, 1}};
    positions_ = 1 << 20;
  }
  void fill(int64_t position, Batch& batch) const override {
    std::this_thread::sleep_for(std::chrono::milliseconds(3));
    batch.tokens = {static_cast<int32_t>(position)};
    batch.targets = {0};
  }
};

TEST(Loader, AutoAddsWorkersWhileTheStepWaits) {
  const SlowBatches batches;
  Loader loader(batches, 0, 1, {.workers = -1, .most_workers = 4});
  EXPECT_EQ(loader.workers(), 1);
  for (int i = 0; i < 100; ++i) loader.next();
  EXPECT_GT(loader.workers(), 1);
  EXPECT_LE(loader.workers(), 4);
  int64_t items = 0;
  for (const WorkTimes& t : loader.times()) {
    items += t.items;
    EXPECT_GT(t.busy_ns, 0);
  }
  EXPECT_GE(items, 100);
  // A step that does not wait gets no more.
  Loader patient(batches, 0, 1, {.workers = -1, .most_workers = 4});
  for (int i = 0; i < 20; ++i) {
    patient.next();
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  EXPECT_EQ(patient.workers(), 1);
}

}  // namespace
}  // namespace millrace
