// A file that is written once and read in place for a long time: every block has a checksum, kept
// in a second file beside it, and is checked when it is first touched.
#pragma once
#include <atomic>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/error.h"
#include "core/file.h"

namespace millrace {

class CheckedFileWriter {
 public:
  explicit CheckedFileWriter(const fs::path& path) : file_(path, OutputFile::Mode::truncate) {}
  void write(std::string_view bytes);
  void close();  // both files are on disk

 private:
  void flush();
  OutputFile file_;
  std::string block_;
  std::vector<uint64_t> sums_;
};

class CheckedFile {
 public:
  static constexpr int64_t kBlock = 1 << 20;
  // Error when it is not `bytes` long or its checksums are not whole.
  CheckedFile(const fs::path& path, int64_t bytes);
  // By any number of threads. Error when a block is not what was written.
  void read(int64_t offset, std::span<std::byte> out) const;
  void check_all() const;
  const fs::path& path() const { return file_.path(); }

 private:
  void check(int64_t block) const;
  InputFile file_;
  int64_t bytes_;
  std::vector<uint64_t> sums_;
  mutable std::vector<std::atomic<bool>> checked_;
};

// What the second file holds, for so many blocks. Error when it is not what was written.
std::vector<uint64_t> parse_block_sums(std::string_view bytes, int64_t blocks,
                                       const fs::path& name);
std::string block_sums_bytes(std::vector<uint64_t> sums);

// Parts that stand side by side from 0 to `end`, none shorter than `shortest`.
struct Parts {
  int64_t count = 0, end = 0, shortest = 0;
};
// Error when parts [first, first + begins.size()) cannot begin there; the one behind the last
// begins at the end. `path`: where it was read.
void check_begins(std::span<const int64_t> begins, int64_t first, const Parts& parts,
                  const fs::path& path);

Error damaged_cache(const fs::path& path, const std::string& expected, const std::string& got);
bool is_damaged_cache(const Error& error);

}  // namespace millrace
