// A text as its writer meant it, on whatever system: without the mark that some editors put first
// (U+FEFF), and with LF at the end of lines that end with CR LF, as Python's open(path) reads it.
#pragma once
#include <memory>
#include <optional>

#include "io/byte_stream.h"

namespace millrace {

class PlainText : public ByteStream {
 public:
  explicit PlainText(const fs::path& path) : stream_(open_byte_stream(path)) {}
  // `out` has room for a mark.
  size_t read(std::span<char> out) override;
  int64_t file_bytes_read() const override { return stream_->file_bytes_read(); }

  // What was changed so far.
  bool had_mark() const { return had_mark_; }
  int64_t line_ends() const { return line_ends_; }

 private:
  std::unique_ptr<ByteStream> stream_;
  std::optional<char> ahead_;  // read, to know what a CR belongs to
  bool is_first_ = true, had_mark_ = false;
  int64_t line_ends_ = 0;
};

// Whether the file's bytes are what PlainText gives.
bool is_plain_text(const fs::path& path);

}  // namespace millrace
