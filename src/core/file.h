// The file layer. Every write of Millrace goes through here, so that faults can be injected in one
// place, and every failure carries the path and what the system said.
#pragma once
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>

namespace millrace {

namespace fs = std::filesystem;

// The whole file. Error names the path when it is missing, unreadable, a folder, or over `limit`.
std::string read_file(const fs::path& path, int64_t limit = int64_t{1} << 40);

// Replaces `path` by these bytes or leaves it as it was: temporary file beside it, fsync, rename,
// fsync of the folder.
void write_file(const fs::path& path, std::string_view bytes);

void create_folders(const fs::path& path);

// An open file written from front to back (metrics.jsonl, logs, safetensors).
class OutputFile {
 public:
  enum class Mode { truncate, append };
  OutputFile() = default;
  OutputFile(const fs::path& path, Mode mode);
  ~OutputFile();
  OutputFile(OutputFile&& other) noexcept;
  OutputFile& operator=(OutputFile&& other) noexcept;
  void write(std::string_view bytes);  // all of them, or Error
  void sync();                         // fsync
  void close();                        // reports what close() says; the destructor does not
  bool is_open() const { return fd_ >= 0; }

 private:
  int fd_ = -1;
  fs::path path_;
};

// A file mapped for reading. Empty files map to an empty span.
class MappedFile {
 public:
  explicit MappedFile(const fs::path& path);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;
  std::span<const std::byte> bytes() const { return {data_, size_}; }
  std::string_view text() const { return {reinterpret_cast<const char*>(data_), size_}; }

 private:
  const std::byte* data_ = nullptr;
  size_t size_ = 0;
};

// Flushes a folder's entries to disk.
void sync_folder(const fs::path& path);

// Where remembered measurements live: $MILLRACE_CACHE, else $XDG_CACHE_HOME/millrace, else
// ~/.cache/millrace.
fs::path cache_folder();

}  // namespace millrace
