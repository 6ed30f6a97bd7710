#include "data/token_store.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <numeric>

#include "core/error.h"

namespace millrace {
namespace {

int64_t begin_of(const TokenStore& store, int64_t record) {
  int64_t begin = -1;
  store.record_begins(record, {&begin, 1});
  return begin;
}

class TokenStoreTest : public testing::Test {
 protected:
  void SetUp() override {
    root_ = fs::temp_directory_path() / fmt::format("millrace-store-{}", getpid());
    fs::create_directories(root_);
  }
  void TearDown() override { fs::remove_all(root_); }

  // Records of 0, 1, 2, ... tokens; token i is i modulo the vocabulary.
  void write(int64_t records, int64_t vocab_size) {
    TokenStoreWriter writer(folder(), "key", vocab_size);
    int64_t next = 0;
    for (int64_t r = 0; r < records; ++r) {
      std::vector<int32_t> tokens(static_cast<size_t>(r));
      for (int32_t& t : tokens) t = static_cast<int32_t>(next++ % vocab_size);
      writer.add(tokens);
      writer.end_record();
    }
    writer.commit();
  }
  void flip(const char* file, int64_t at) {
    std::string bytes = read_file(folder() / file);
    bytes[static_cast<size_t>(at)] = static_cast<char>(bytes[static_cast<size_t>(at)] ^ 1);
    write_file(folder() / file, bytes);
  }
  fs::path folder() const { return root_ / "store"; }
  fs::path root_;
};

TEST_F(TokenStoreTest, GivesBackWhatWasWritten) {
  for (const int64_t vocab : {7, 65536, 65537, 100000}) {
    write(2000, vocab);  // 2 M tokens: several blocks
    const TokenStore store(folder(), "key");
    EXPECT_EQ(store.info().tokens, 1999 * 2000 / 2);
    EXPECT_EQ(store.info().records, 2000);
    EXPECT_EQ(store.info().vocab_size, vocab);
    for (int64_t r : {0, 1, 2, 1000, 2000}) EXPECT_EQ(begin_of(store, r), r * (r - 1) / 2);
    for (const int64_t begin : {0, 1, 524287, 524289, 1998000}) {
      std::vector<int32_t> got(1000);
      store.read(begin, got);
      for (int64_t i = 0; i < 1000; ++i)
        ASSERT_EQ(got[static_cast<size_t>(i)], (begin + i) % vocab) << begin << " " << i;
    }
  }
}

TEST_F(TokenStoreTest, NothingIsThereBeforeItIsWhole) {
  {
    TokenStoreWriter writer(folder(), "key", 10);
    writer.add(std::vector<int32_t>{1, 2, 3});
    writer.end_record();
  }
  EXPECT_TRUE(fs::is_empty(root_));
  fs::create_directories(folder().string() + ".making/old");
  write(3, 10);
  EXPECT_EQ(TokenStore(folder(), "key").info().tokens, 3);
  write(4, 10);  // in its place
  EXPECT_EQ(TokenStore(folder(), "key").info().tokens, 6);
}

TEST_F(TokenStoreTest, NoticesDamageWhereItIsRead) {
  write(2000, 7);
  flip("tokens.bin", 3 << 20);
  {
    const TokenStore store(folder(), "key");
    std::vector<int32_t> got(10);
    store.read(0, got);  // another block
    EXPECT_THROW(store.read((3 << 19) + 100, got), Error);
    EXPECT_THROW(store.read((3 << 19) + 100, got), Error);  // and again
  }
  write(2000, 7);
  flip("records.bin", 8);
  EXPECT_THROW(begin_of(TokenStore(folder(), "key"), 0), Error);
  for (const char* file : {"meta.json", "tokens.bin.xxh3"}) {
    write(2000, 7);
    flip(file, 20);
    EXPECT_THROW(TokenStore(folder(), "key"), Error) << file;
  }
  write(2000, 7);
  EXPECT_THROW(TokenStore(folder(), "other"), Error);
  truncate_file(folder() / "tokens.bin", 100);
  EXPECT_THROW(TokenStore(folder(), "key"), Error);
}

TEST_F(TokenStoreTest, AFileThatShrinksIsAnError) {
  write(2000, 7);
  const TokenStore store(folder(), "key");
  std::vector<int32_t> got(10);
  store.read(1000, got);
  truncate_file(folder() / "tokens.bin", 100);
  EXPECT_THROW(store.read(1000, got), Error);
}

}  // namespace
}  // namespace millrace
