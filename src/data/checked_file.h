// A file that is written once and read in place for a long time: every block has a checksum, kept
// in a second file beside it, and is checked when it is first touched.
#pragma once
#include <atomic>
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
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

// A JSON object with a checksum of itself. Error when the file is not what was written.
void write_checked_json(const fs::path& path, nlohmann::json object);
nlohmann::json read_checked_json(const fs::path& path);

Error damaged_cache(const fs::path& path, const std::string& expected, const std::string& got);
bool is_damaged_cache(const Error& error);

}  // namespace millrace
