#include "io/byte_stream.h"

#include <gtest/gtest.h>
#include <unistd.h>
#include <zlib.h>
#include <zstd.h>

#include "core/error.h"
#include "core/rng.h"

namespace millrace {
namespace {

std::string gzip(const std::string& text) {
  z_stream z{};
  deflateInit2(&z, 6, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY);
  std::string out(deflateBound(&z, text.size()), '\0');
  z.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
  z.avail_in = static_cast<uInt>(text.size());
  z.next_out = reinterpret_cast<Bytef*>(out.data());
  z.avail_out = static_cast<uInt>(out.size());
  EXPECT_EQ(deflate(&z, Z_FINISH), Z_STREAM_END);
  out.resize(z.total_out);
  deflateEnd(&z);
  return out;
}

std::string zstd(const std::string& text) {
  std::string out(ZSTD_compressBound(text.size()), '\0');
  out.resize(ZSTD_compress(out.data(), out.size(), text.data(), text.size(), 3));
  return out;
}

class ByteStreamTest : public testing::Test {
 protected:
  void SetUp() override {
    path_ = fs::temp_directory_path() / fmt::format("millrace-bytes-{}", getpid());
    RandomStream random(1, RandomUse::test, 0);
    for (int i = 0; i < 300000; ++i) text_ += static_cast<char>('a' + random.below(3));
  }
  void TearDown() override { fs::remove(path_); }

  std::string read_all(const std::string& bytes, size_t piece) {
    write_file(path_, bytes);
    const auto stream = open_byte_stream(path_);
    std::string all, part(piece, '\0');
    for (size_t got = piece; got == piece;) {
      got = stream->read(part);
      all.append(part, 0, got);
    }
    EXPECT_EQ(stream->read(part), 0u);
    EXPECT_EQ(stream->file_bytes_read(), static_cast<int64_t>(bytes.size()));
    return all;
  }
  fs::path path_;
  std::string text_;
};

TEST_F(ByteStreamTest, ReadsPlainAndPackedTexts) {
  for (const size_t piece : {size_t{1000}, size_t{65536}, size_t{1} << 20}) {
    EXPECT_EQ(read_all(text_, piece), text_);
    EXPECT_EQ(read_all(gzip(text_), piece), text_);
    EXPECT_EQ(read_all(zstd(text_), piece), text_);
    EXPECT_EQ(read_all(gzip(text_) + gzip("more"), piece), text_ + "more");
    EXPECT_EQ(read_all(zstd(text_) + zstd("more"), piece), text_ + "more");
  }
  EXPECT_EQ(read_all("", 10), "");
  EXPECT_EQ(read_all("x", 10), "x");
  EXPECT_EQ(read_all(gzip(""), 10), "");
  EXPECT_EQ(read_all(zstd(""), 10), "");
}

TEST_F(ByteStreamTest, CutOrDamagedIsAnError) {
  for (const std::string& whole : {gzip(text_), zstd(text_)}) {
    for (const size_t size : {whole.size() - 1, whole.size() / 2, size_t{5}})
      EXPECT_THROW(read_all(whole.substr(0, size), 4096), Error) << size;
    std::string bad = whole;
    for (size_t i = 0; i < 40; ++i) bad[bad.size() / 2 + i] = static_cast<char>(i * 37);
    EXPECT_THROW(read_all(bad, 4096), Error);
  }
  EXPECT_THROW(open_byte_stream("/nowhere/at/all"), Error);
  EXPECT_THROW(open_byte_stream(fs::temp_directory_path()), Error);
}

}  // namespace
}  // namespace millrace
