#include "io/byte_stream.h"

#include <zlib.h>
#include <zstd.h>

#include <algorithm>
#include <array>
#include <new>
#include <vector>

#include "core/error.h"
#include "core/text.h"

namespace millrace {
namespace {

constexpr size_t kBuffer = 1 << 18;

Error damaged(const fs::path& path, const char* format, int64_t at, const std::string& got) {
  return Error({.code = ErrorCode::config,
                .what = "damaged or incomplete file",
                .where = fmt::format("{} (byte {})", path.string(), at),
                .expected = format,
                .got = got,
                .remedy = "fetch or pack the file again"});
}

class PlainStream : public ByteStream {
 public:
  explicit PlainStream(InputFile file) : file_(std::move(file)) {}
  size_t read(std::span<char> out) override {
    const size_t got = file_.read_some_at(at_, std::as_writable_bytes(out));
    at_ += static_cast<int64_t>(got);
    return got;
  }
  int64_t file_bytes_read() const override { return at_; }
  const fs::path& path() const { return file_.path(); }

 private:
  InputFile file_;
  int64_t at_ = 0;
};

// Members one behind the other are one text, as gzip itself has it.
class GzipStream : public ByteStream {
 public:
  explicit GzipStream(InputFile file) : from_(std::move(file)), in_(kBuffer) {
    MR_CHECK(inflateInit2(&z_, 15 + 16) == Z_OK, "zlib");
  }
  ~GzipStream() override { inflateEnd(&z_); }

  size_t read(std::span<char> out) override {
    size_t done = 0;
    while (done < out.size()) {
      if (z_.avail_in == 0) {
        z_.next_in = reinterpret_cast<Bytef*>(in_.data());
        z_.avail_in = static_cast<uInt>(from_.read(in_));
      }
      if (z_.avail_in == 0) {
        if (inside_) throw damaged("the end of the gzip data", "the end of the file");
        break;
      }
      inside_ = true;
      const size_t room = std::min<size_t>(out.size() - done, 1 << 30);
      z_.next_out = reinterpret_cast<Bytef*>(out.data() + done);
      z_.avail_out = static_cast<uInt>(room);
      const int status = inflate(&z_, Z_NO_FLUSH);
      done += room - z_.avail_out;
      if (status == Z_STREAM_END) {
        inside_ = false;
        inflateReset(&z_);
      } else if (status != Z_OK && status != Z_BUF_ERROR) {
        throw damaged("gzip data", z_.msg ? z_.msg : "other bytes");
      }
    }
    return done;
  }
  int64_t file_bytes_read() const override { return from_.file_bytes_read() - z_.avail_in; }

 private:
  Error damaged(const char* expected, const std::string& got) const {
    return millrace::damaged(from_.path(), expected, file_bytes_read(), got);
  }
  PlainStream from_;
  std::vector<char> in_;
  z_stream z_{};
  bool inside_ = false;  // of a member
};

class ZstdStream : public ByteStream {
 public:
  explicit ZstdStream(InputFile file)
      : from_(std::move(file)), in_(kBuffer), z_(ZSTD_createDStream(), ZSTD_freeDStream) {
    MR_CHECK(z_ != nullptr, "zstd");
  }

  size_t read(std::span<char> out) override {
    ZSTD_outBuffer to{out.data(), out.size(), 0};
    while (to.pos < to.size) {
      if (piece_.pos == piece_.size) piece_ = {in_.data(), from_.read(in_), 0};
      const size_t in_before = piece_.pos, out_before = to.pos;
      const size_t status = ZSTD_decompressStream(z_.get(), &to, &piece_);
      if (ZSTD_isError(status)) throw damaged("Zstandard data", ZSTD_getErrorName(status));
      if (piece_.pos > in_before || to.pos > out_before) {
        inside_ = status != 0;
      } else if (piece_.size == 0) {
        if (inside_) throw damaged("the end of the Zstandard data", "the end of the file");
        break;
      }
    }
    return to.pos;
  }
  int64_t file_bytes_read() const override {
    return from_.file_bytes_read() - static_cast<int64_t>(piece_.size - piece_.pos);
  }

 private:
  Error damaged(const char* expected, const std::string& got) const {
    return millrace::damaged(from_.path(), expected, file_bytes_read(), got);
  }
  PlainStream from_;
  std::vector<char> in_;
  std::unique_ptr<ZSTD_DStream, decltype(&ZSTD_freeDStream)> z_;
  ZSTD_inBuffer piece_{nullptr, 0, 0};
  bool inside_ = false;  // of a frame
};

}  // namespace

std::unique_ptr<ByteStream> open_byte_stream(const fs::path& path) {
  InputFile file(path);
  file.size();  // a folder is an Error here
  std::array<unsigned char, 4> first{};
  file.read_some_at(0, std::as_writable_bytes(std::span(first)));
  if (first[0] == 0x1F && first[1] == 0x8B) return std::make_unique<GzipStream>(std::move(file));
  if (first == std::array<unsigned char, 4>{0x28, 0xB5, 0x2F, 0xFD})
    return std::make_unique<ZstdStream>(std::move(file));
  return std::make_unique<PlainStream>(std::move(file));
}

void append_unpacked_file(const fs::path& path, std::string& to) {
  constexpr size_t kPiece = 1 << 20;
  const auto stream = open_byte_stream(path);
  try {
    for (size_t size = to.size(), got = kPiece; got == kPiece; size += got) {
      to.resize(size + kPiece);
      got = stream->read(std::span(to).subspan(size));
      to.resize(size + got);
    }
  } catch (const std::bad_alloc&) {
    throw Error({.what = "the file does not fit into memory",
                 .where = path.string(),
                 .expected = "room for what is in it",
                 .got = fmt::format("none behind {}", human_bytes(static_cast<int64_t>(to.size()))),
                 .remedy = "use a part of it"});
  }
}

}  // namespace millrace
