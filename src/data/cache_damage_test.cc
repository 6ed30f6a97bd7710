// Files of the cache that say what cannot be, with checksums that are right: a fault of ours, or
// somebody's doing. Whatever they say, it is an Error or made again, and nothing outside is read or
// removed. What headers may say is in tests/fuzz/corpus_cache.cc.
#include <fcntl.h>
#include <sys/stat.h>

#include <cstring>
#include <nlohmann/json.hpp>

#include "data/batches.h"
#include "data/checked_json.h"
#include "data/data_testing.h"
#include "data/source_files.h"
#include "data/token_store.h"

namespace millrace {
namespace {

using Json = nlohmann::json;

class CacheDamageTest : public DataTest {
 protected:
  // One value of a header becomes another.
  static void set(const fs::path& header, const std::string& pointer, const Json& value) {
    Json object = Json::parse(read_file(header));
    object.erase("xxh3");
    object[Json::json_pointer(pointer)] = value;
    write_file(header, checked_json_text(object));
  }
  // The bytes of a file from `at` on become others.
  template <typename Value>
  static void put(const fs::path& path, size_t at, const Value& value) {
    std::string bytes = read_file(path);
    ASSERT_LE(at + sizeof value, bytes.size());
    std::memcpy(bytes.data() + at, &value, sizeof value);
    CheckedFileWriter writer(path);
    writer.write(bytes);
    writer.close();
  }

  // Three records of two tokens.
  fs::path tokens() {
    const fs::path folder = folder_ / "tokens";
    TokenStoreWriter writer(folder, "key", 300);
    for (const int32_t first : {10, 20, 30}) {
      writer.add(std::vector<int32_t>{first, first + 1});
      writer.end_record();
    }
    writer.commit();
    return folder;
  }
  // Three paths of two points.
  fs::path values() {
    const fs::path folder = folder_ / "values";
    fs::remove_all(folder);
    ValueStoreWriter writer(folder, "key", 2);
    for (const float first : {1.0F, 2.0F, 3.0F})
      writer.add_path(std::vector<float>{first, -first, first, -first});
    writer.commit();
    return folder;
  }

  DataOptions lines() {
    return {.train = {file("a.txt", "one\ntwo\nthree\nfour\nfive\n")},
            .format = "lines",
            .validation_fraction = 0};
  }
  std::unique_ptr<Batches> batches(const Dataset& data, const std::string& batching) {
    BatchOptions o;
    o.batching = batching;
    o.batch_size = 2;
    o.sequences.max_length = 16;
    return make_batches(data, SplitName::train, o, notes_);
  }
  static fs::path index_of(const Dataset& data) {
    for (const auto& entry : fs::directory_iterator(data.folder))
      if (entry.is_directory() && entry.path().filename().string().starts_with("train-"))
        return entry.path();
    ADD_FAILURE() << "no index in " << data.folder;
    return {};
  }
  // It was noticed, said, and made again.
  void expect_mended(const DataOptions& options) {
    notes_.notes.clear();
    const Dataset data = open(options);
    EXPECT_EQ(records_of(data, data.train).size(), 5u);
    ASSERT_FALSE(notes_.notes.empty());
    EXPECT_TRUE(has(notes_.notes[0], "damaged data cache in")) << notes_.notes[0];
    EXPECT_TRUE(has(notes_.notes[0], "made again")) << notes_.notes[0];
  }
};

TEST_F(CacheDamageTest, TokenStoreOfOtherSizes) {
  for (const auto& [key, value] :
       {std::pair("/tokens", Json(7)), std::pair("/records", Json(4)),
        std::pair("/vocab_size", Json(70000)),  // wider ids
        std::pair("/tokens", Json(int64_t{1} << 47)), std::pair("/key", Json("\x1b[31mother"))}) {
    const fs::path folder = tokens();
    set(folder / "meta.json", key, value);
    const ErrorFields e = refusal_of([&] { TokenStore(folder, "key"); });
    EXPECT_EQ(e.what, "damaged data cache") << key;
    EXPECT_FALSE(has(e.got, "\x1b")) << e.got;
  }
  const fs::path folder = tokens();
  set(folder / "meta.json", "/vocab_size", 31);
  const TokenStore store(folder, "key");
  std::vector<int32_t> ids(5);
  store.read(0, ids);
  EXPECT_EQ(refusal_of([&] { store.read(1, ids); }).got, "31");
}

TEST_F(CacheDamageTest, RecordsBeginWhereTheyCan) {
  std::vector<int64_t> begins(4);
  for (const auto& [place, begin] : {std::pair<size_t, int64_t>{0, 1},
                                     {1, -1},
                                     {1, 5},
                                     {2, 7},
                                     {2, INT64_MAX},
                                     {3, 5},
                                     {3, 7}}) {
    const fs::path folder = tokens();
    put(folder / "records.bin", 8 * place, begin);
    const TokenStore store(folder, "key");
    const ErrorFields e = refusal_of([&] { store.record_begins(0, begins); });
    EXPECT_TRUE(has(e.where, "records.bin")) << place << " " << begin;
  }
  const fs::path folder = tokens();
  put(folder / "records.bin", 8, int64_t{0});  // a record may be empty
  TokenStore(folder, "key").record_begins(0, begins);
  EXPECT_EQ(begins, (std::vector<int64_t>{0, 0, 4, 6}));
}

TEST_F(CacheDamageTest, ValueStoreOfOtherSizes) {
  std::vector<int64_t> begins(4);
  {
    const ValueStore store(values(), "key");
    store.path_begins(0, begins);
    EXPECT_EQ(begins, (std::vector<int64_t>{0, 2, 4, 6}));
    std::vector<float> points(4);
    store.read(3, points);
    EXPECT_EQ(points, (std::vector<float>{2, -2, 3, -3}));
  }
  for (const auto& [key, value] : {std::pair("/points", 7), std::pair("/paths", 2),
                                   std::pair("/channels", 3), std::pair("/channels", 0)}) {
    const fs::path folder = values();
    set(folder / "meta.json", key, value);
    EXPECT_EQ(refusal_of([&] { ValueStore(folder, "key"); }).what, "damaged data cache") << key;
  }
  // A path without a point would be a sequence of length 0, which nobody expects.
  for (const auto& [place, begin] :
       {std::pair<size_t, int64_t>{0, 1}, {1, 0}, {1, 4}, {2, 6}, {3, 5}, {3, 7}}) {
    const fs::path folder = values();
    put(folder / "paths.bin", 8 * place, begin);
    const ValueStore store(folder, "key");
    const ErrorFields e = refusal_of([&] { store.path_begins(0, begins); });
    EXPECT_TRUE(has(e.where, "paths.bin")) << place << " " << begin;
  }
}

TEST_F(CacheDamageTest, ChecksumsOfAnotherLength) {
  const fs::path folder = tokens();
  const std::string sums = read_file(folder / "tokens.bin.xxh3");
  for (const std::string& others :
       {std::string(), sums.substr(8), sums + sums, std::string(1 << 20, '\0')}) {
    write_file(folder / "tokens.bin.xxh3", others);
    const ErrorFields e = refusal_of([&] { TokenStore(folder, "key"); });
    EXPECT_TRUE(has(e.where, "tokens.bin.xxh3")) << others.size();
  }
}

// An entry that cannot be is noticed when its batch is made; the index is made again, and the batch
// is what it should be.
TEST_F(CacheDamageTest, SequencesOutsideTheirTokens) {
  const Dataset data = open(lines());
  auto epoch = [](const Batches& b) {
    std::vector<int32_t> tokens;
    Batch batch;
    for (int64_t i = 0; i < b.positions_per_epoch(); i += b.stride()) {
      b.fill(i, batch);
      tokens.insert(tokens.end(), batch.tokens.begin(), batch.tokens.end());
    }
    return tokens;
  };
  for (const Sequence bad : {Sequence{int64_t{1} << 40, 4, 0, true}, Sequence{-1, 4, 0, true},
                             Sequence{INT64_MAX, 4, 0, true}, Sequence{0, 4, 0, false},
                             Sequence{data.train.end - 3, 4, 0, true}, Sequence{0, 15, 0, true},
                             Sequence{0, INT32_MAX, 0, true}, Sequence{0, 4, 4, true}})
    for (const char* batching : {"buckets", "packing"}) {
      const std::vector<int32_t> good = epoch(*batches(data, batching));
      notes_.notes.clear();
      put(index_of(data) / "sequences.bin", 0, encode_sequence(bad));
      EXPECT_EQ(epoch(*batches(data, batching)), good);
      ASSERT_EQ(notes_.notes.size(), 1u);
      EXPECT_TRUE(has(notes_.notes[0], "made again")) << notes_.notes[0];
    }
}

TEST_F(CacheDamageTest, AnIndexOfOtherLengthsIsMadeAgain) {
  const Dataset data = open(lines());
  const Batch first = [&] {
    Batch batch;
    batches(data, "packing")->fill(0, batch);
    return batch;
  }();
  for (const auto& [key, value] :
       {std::pair("/lengths", Json{{17, 5}}), std::pair("/size", Json(4)),
        std::pair("/size", Json(-1)), std::pair("/bars", Json{-1}),
        std::pair("/lengths", Json{{4, 1}, {5, 3}}), std::pair("/key", Json("other"))}) {
    notes_.notes.clear();
    set(index_of(data) / "meta.json", key, value);
    Batch batch;
    batches(data, "packing")->fill(0, batch);
    EXPECT_EQ(batch.tokens, first.tokens) << key;
    ASSERT_FALSE(notes_.notes.empty()) << key << " " << value;
    EXPECT_TRUE(has(notes_.notes[0], "made again")) << notes_.notes[0];
  }
  // Lengths that fit into rows, but are not those of the entries, show when those are read.
  set(index_of(data) / "meta.json", "/lengths/0/0", 3);
  Batch batch;
  const auto b = batches(data, "packing");
  EXPECT_EQ(refusal_of([&] { b->fill(0, batch); }).where, index_of(data).string());
}

TEST_F(CacheDamageTest, ADataSetThatContradictsItsStores) {
  const DataOptions options = lines();
  const fs::path folder = open(options).folder;
  for (const auto& [key, value] :
       {std::pair("/counts/0", Json(6)), std::pair("/stored_size", Json(1000)),
        std::pair("/fields", Json(2)), std::pair("/splits", Json::array()),
        std::pair("/records", Json(false)), std::pair("/trajectories", Json{"train"}),
        std::pair("/tokenizer", Json("../dataset.json"))}) {
    SCOPED_TRACE(key);
    set(folder / "dataset.json", key, value);
    expect_mended(options);
  }
  set(folder / "train/meta.json", "/vocab_size", 60000);
  expect_mended(options);
  // The tokenizer is read in the background.
  set(folder / "dataset.json", "/end_ids", Json::array({0}));
  const Dataset data = open(options);
  EXPECT_TRUE(has(refusal_of([&] { data.tokenizer(); }).expected, "the tokenizer of the tokens"));
}

// Places were chosen in a store that turned out to be another one: those of the new store they are
// not.
TEST_F(CacheDamageTest, AStoreThatIsShorterWhenMadeAgain) {
  const DataOptions options{.train = {file("a.txt", "one two three")}, .validation_fraction = 0};
  const fs::path folder = open(options).folder;
  {
    TokenStoreWriter writer(folder / "train", open(options).key, open(options).vocab_size);
    writer.add(std::vector<int32_t>(1000));
    writer.end_record();
    writer.commit();
  }
  std::string bytes = read_file(folder / "train/tokens.bin");
  bytes[5] ^= 1;
  write_file(folder / "train/tokens.bin", bytes);
  const Dataset data = open(options);
  ASSERT_EQ(data.train.end, 1000);
  std::vector<int32_t> ids(10);
  for (int i = 0; i < 2; ++i) {
    const ErrorFields e = refusal_of([&] { data.train.tokens->read(900, ids); });
    EXPECT_EQ(e.what, "damaged data cache");
  }
  EXPECT_EQ(open(options).train.end, 13);
}

// What is remembered of a request names a folder, which is replaced when it holds something else.
TEST_F(CacheDamageTest, AMemoLeadsNowhereElse) {
  const DataOptions options = lines();
  const std::string key = open(options).key;
  const auto memo = [&] { return fs::directory_iterator(folder_ / "cache/data/seen")->path(); }();
  const std::string kept = file("kept/dataset.json", "{}");
  const int64_t later = INT64_MAX;  // noted long after the files were written
  set(memo, "/noted_ns", later);
  for (const std::string& other : {std::string("../../kept"), path("kept"), std::string(),
                                   std::string("."), std::string("..")}) {
    set(memo, "/key", other);
    EXPECT_EQ(open(options).key, key);
    EXPECT_EQ(read_file(kept), "{}");
    set(memo, "/noted_ns", later);
  }
  // It was read, and would have been followed.
  const std::string plausible(32, 'a');
  set(memo, "/key", plausible);
  EXPECT_EQ(open(options).key, plausible);
}

// How long a file must have been left alone before it was looked at, for its stamp to be believed.
TEST_F(CacheDamageTest, AStampIsBelievedOnceTheClockHasMovedOn) {
  const DataOptions options = lines();
  constexpr int64_t kMillisecond = 1'000'000;
  // Whether what was noted so long after the last change of the file is followed.
  const auto believed = [&](int64_t after_ns) {
    const fs::path seen = folder_ / "cache/data/seen";
    fs::remove_all(seen);
    const std::string key = open(options).key, plausible(32, 'a');
    const fs::path memo = fs::directory_iterator(seen)->path();
    const FileStamp stamp = stamp_of(options.train[0]);
    set(memo, "/noted_ns", std::max(stamp.modified_ns, stamp.changed_ns) + after_ns);
    set(memo, "/key", plausible);
    return open(options).key != key;
  };
  const auto write_at = [&](timespec time) {
    const timespec times[2] = {time, time};
    ASSERT_EQ(utimensat(AT_FDCWD, options.train[0].c_str(), times, 0), 0);
  };
  write_at({1'000'000'000, 123});  // a clock that counts in nanoseconds
  EXPECT_FALSE(believed(5 * kMillisecond));
  EXPECT_TRUE(believed(30 * kMillisecond));
  write_at({1'000'000'000, 0});  // in seconds
  EXPECT_FALSE(believed(1500 * kMillisecond));
  EXPECT_TRUE(believed(2500 * kMillisecond));
}

TEST_F(CacheDamageTest, FilesMayBeCalledAnything) {
  const DataOptions options{.train = {file("caf\xE9\x1b[31m.csv", "text\nfine\n\"bad\n")},
                            .validation_fraction = 0,
                            .skip_bad_records = true};
  for (int i = 0; i < 2; ++i) {
    const Dataset data = open(options);
    EXPECT_EQ(data.counts.records[0], 1);
    EXPECT_EQ(data.counts.bad, 1);
    EXPECT_TRUE(has(data.counts.first_bad, "caf??[31m.csv")) << data.counts.first_bad;
    EXPECT_TRUE(has(data.counts.first_bad, "\n"));
  }
}

}  // namespace
}  // namespace millrace
