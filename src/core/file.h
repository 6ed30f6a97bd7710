// The file layer. Every write of Millrace goes through here, so that faults can be injected in one
// place, and every failure carries the path and what the system said.
#pragma once
#include <sys/types.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace millrace {

namespace fs = std::filesystem;

// The whole file. Error names the path when it is missing, unreadable, a folder, or over `limit`.
std::string read_file(const fs::path& path, int64_t limit = int64_t{1} << 40);

// What a file holds, to notice when it no longer does: XXH3, 128 bits, 32 lower-case hexadecimal
// digits.
struct FileDigest {
  int64_t bytes = 0;
  std::string xxh3 = {};
  friend bool operator==(const FileDigest&, const FileDigest&) = default;
};
FileDigest digest_of(std::string_view bytes);
FileDigest digest_of_file(const fs::path& path);

// Replaces `path` by these bytes or leaves it as it was: temporary file beside it, fsync, rename,
// fsync of the folder.
void write_file(const fs::path& path, std::string_view bytes);
// The same without the care for what was there: for a folder that is staged under another name.
FileDigest write_new_file(const fs::path& path, std::string_view bytes);

void create_folders(const fs::path& path);
void rename_path(const fs::path& from, const fs::path& to);
void truncate_file(const fs::path& path, int64_t bytes);
// The folder with all that is in it; links are removed, not followed.
void remove_folder(const fs::path& path);
// A folder that was staged beside it takes the place of `folder`, whole or not at all, and is on
// disk then.
void put_folder_in_place(const fs::path& staged, const fs::path& folder);
// Points `link` at `target`, replacing what it pointed at.
void replace_link(const fs::path& link, const fs::path& target);

// An open file written from front to back (metrics.jsonl, logs, safetensors).
class OutputFile {
 public:
  enum class Mode { truncate, append };
  OutputFile();
  OutputFile(const fs::path& path, Mode mode);
  ~OutputFile();
  OutputFile(OutputFile&& other) noexcept;
  OutputFile& operator=(OutputFile&& other) noexcept;
  void write(std::string_view bytes);  // all of them, or Error
  void sync();                         // fsync
  void close();                        // reports what close() says; the destructor does not
  bool is_open() const { return fd_ >= 0; }
  const fs::path& path() const { return path_; }
  FileDigest digest() const;  // of what was written here

 private:
  struct Hash;
  int fd_ = -1;
  int64_t written_ = 0;
  std::unique_ptr<Hash> hash_;
  fs::path path_;
};

// An open file read at any place, by any number of threads. Unlike a mapped one it may become
// shorter under us: that is an Error, not a signal; and what was read does not count as ours.
class InputFile {
 public:
  explicit InputFile(const fs::path& path);
  ~InputFile();
  InputFile(InputFile&& other) noexcept;
  InputFile& operator=(InputFile&& other) noexcept;
  int64_t size() const;  // now
  // All of `out`, or Error.
  void read_at(int64_t offset, std::span<std::byte> out) const;
  // As much as there is, up to `out`.
  size_t read_some_at(int64_t offset, std::span<std::byte> out) const;
  const fs::path& path() const { return path_; }
  int fd() const { return fd_; }

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
  // These bytes were read and will hardly be again: they no longer count as this process's memory.
  void let_go(std::span<const std::byte> part) const;

 private:
  const std::byte* data_ = nullptr;
  size_t size_ = 0;
};

// Flushes a folder's entries to disk.
void sync_folder(const fs::path& path);

// An advisory lock that dies with its owner. The file says who that is.
class LockFile {
 public:
  // Takes the lock, or returns false and says in `owner` what the holder wrote. When the last owner
  // died without giving it back, `owner` is what it wrote, too.
  bool take(const fs::path& path, const std::string& me, std::string* owner);
  void give_back();  // the file stays, empty
  static bool is_taken(const fs::path& path);
  ~LockFile() { give_back(); }
  LockFile() = default;
  LockFile(const LockFile&) = delete;
  LockFile& operator=(const LockFile&) = delete;

 private:
  int fd_ = -1;
};

// Changes a small text file that processes share: `change` gets what is there, nothing where nothing
// can be read, and returns what is to stand there. One process at a time; a lock that is held for
// seconds is no longer waited for, so that nobody stands still for the sake of a cache.
void change_shared_file(const fs::path& path, int64_t limit,
                        const std::function<std::string(const std::string&)>& change);

// What this layer asks of the system, with errno as the system calls have it. Tests put another one
// in its place: calls that fail, or a disk that loses power.
class FileSystem {
 public:
  virtual ~FileSystem() = default;
  virtual int open(const char* path, int flags, unsigned mode);
  virtual ssize_t write(int fd, const void* bytes, size_t count);
  virtual int fsync(int fd);
  virtual int close(int fd);
  virtual int truncate(const char* path, int64_t bytes);
  virtual int rename(const char* from, const char* to);
  virtual int unlink(const char* path);
  virtual int mkdir(const char* path);
  virtual int rmdir(const char* path);
  virtual int symlink(const char* target, const char* link);
};
void set_file_system(FileSystem* system);  // nullptr: the real one

// Where remembered measurements live: $MILLRACE_CACHE, else $XDG_CACHE_HOME/millrace, else
// ~/.cache/millrace.
fs::path cache_folder();

}  // namespace millrace
