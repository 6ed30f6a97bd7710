#include "core/file.h"

#include <fcntl.h>
#include <pwd.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <new>
#include <system_error>
#include <utility>

#include "core/error.h"
#include "core/text.h"

namespace millrace {
namespace {

std::string remedy_for(int error) {
  switch (error) {
    case ENOENT:
      return "check the path";
    case EACCES:
    case EPERM:
      return "check the owner and the permissions";
    case EISDIR:
      return "name a file, not a folder";
    case ENOTDIR:
      return "a part of the path is a file where a folder is needed";
    case ENOSPC:
    case EDQUOT:
      return "free some space, or write to another disk";
    case EROFS:
      return "the file system is read-only; write to another place";
    case EMFILE:
    case ENFILE:
      return "too many open files; raise the limit (ulimit -n)";
    case EFBIG:
      return "the file is larger than the file system or `ulimit -f` allows";
    default:
      return "";
  }
}

[[noreturn]] void fail(const char* doing, const fs::path& path, int error) {
  throw Error({.code = ErrorCode::failure,
               .what = fmt::format("{}: {}", doing, std::generic_category().message(error)),
               .where = path.string(),
               .remedy = remedy_for(error)});
}

[[noreturn]] void fail_on_size(const fs::path& path, int64_t limit) {
  throw Error({.code = ErrorCode::failure,
               .what = "the file is too large",
               .where = path.string(),
               .expected = fmt::format("at most {} ({} bytes)", human_bytes(limit), limit),
               .remedy = "check that this is the file you meant"});
}

// Closes on the way out; reading needs no word from close().
struct ReadHandle {
  int fd;
  explicit ReadHandle(const fs::path& path) : fd(open(path.c_str(), O_RDONLY | O_CLOEXEC)) {
    if (fd < 0) fail("cannot open the file", path, errno);
  }
  ~ReadHandle() { ::close(fd); }
  ReadHandle(const ReadHandle&) = delete;
  ReadHandle& operator=(const ReadHandle&) = delete;
};

struct stat status_of(int fd, const fs::path& path) {
  struct stat status;
  if (fstat(fd, &status) != 0) fail("cannot read the file", path, errno);
  if (S_ISDIR(status.st_mode)) fail("cannot read the file", path, EISDIR);
  return status;
}

}  // namespace

std::string read_file(const fs::path& path, int64_t limit) {
  const ReadHandle file(path);
  const struct stat status = status_of(file.fd, path);
  if (status.st_size > limit) fail_on_size(path, limit);

  // The size is a hint: pipes and /proc report 0, and a file may grow while it is read.
  std::string bytes;
  size_t used = 0;
  try {
    bytes.resize(static_cast<size_t>(status.st_size) + 1);
    while (true) {
      if (used == bytes.size()) bytes.resize(used + std::max<size_t>(used, 4096));
      const ssize_t got = read(file.fd, bytes.data() + used, bytes.size() - used);
      if (got < 0 && errno == EINTR) continue;
      if (got < 0) fail("cannot read the file", path, errno);
      if (got == 0) break;
      used += static_cast<size_t>(got);
      if (static_cast<int64_t>(used) > limit) fail_on_size(path, limit);
    }
  } catch (const std::bad_alloc&) {
    fail("cannot read the file", path, ENOMEM);
  }
  bytes.resize(used);
  return bytes;
}

void write_file(const fs::path& path, std::string_view bytes) {
  // Unique per process and call, so that two writers never share a temporary.
  static std::atomic<uint64_t> counter{0};
  fs::path temporary = path;
  temporary += fmt::format(".{}-{}.tmp", getpid(), counter++);
  try {
    OutputFile file(temporary, OutputFile::Mode::truncate);
    file.write(bytes);
    file.sync();
    file.close();
    if (rename(temporary.c_str(), path.c_str()) != 0) fail("cannot replace the file", path, errno);
  } catch (...) {
    unlink(temporary.c_str());
    throw;
  }
  sync_folder(path.parent_path());
}

void create_folders(const fs::path& path) {
  std::error_code error;
  fs::create_directories(path, error);
  if (error) fail("cannot create the folder", path, error.value());
}

OutputFile::OutputFile(const fs::path& path, Mode mode) : path_(path) {
  const int how = mode == Mode::append ? O_APPEND : O_TRUNC;
  fd_ = open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC | how, 0666);
  if (fd_ < 0) fail("cannot open the file for writing", path, errno);
}

OutputFile::~OutputFile() {
  if (fd_ >= 0) ::close(fd_);
}

OutputFile::OutputFile(OutputFile&& other) noexcept
    : fd_(std::exchange(other.fd_, -1)), path_(std::move(other.path_)) {}

OutputFile& OutputFile::operator=(OutputFile&& other) noexcept {
  if (this != &other) {
    if (fd_ >= 0) ::close(fd_);
    fd_ = std::exchange(other.fd_, -1);
    path_ = std::move(other.path_);
  }
  return *this;
}

void OutputFile::write(std::string_view bytes) {
  MR_CHECK(is_open(), "write to a closed file");
  while (!bytes.empty()) {
    const ssize_t put = ::write(fd_, bytes.data(), bytes.size());
    if (put < 0 && errno == EINTR) continue;
    if (put < 0) fail("cannot write the file", path_, errno);
    bytes.remove_prefix(static_cast<size_t>(put));
  }
}

void OutputFile::sync() {
  MR_CHECK(is_open(), "sync of a closed file");
  if (fsync(fd_) != 0) fail("cannot flush the file to disk", path_, errno);
}

void OutputFile::close() {
  MR_CHECK(is_open(), "close of a closed file");
  // Linux frees the descriptor even when close() is interrupted: never repeat it.
  if (::close(std::exchange(fd_, -1)) != 0 && errno != EINTR) {
    fail("cannot write the file", path_, errno);
  }
}

MappedFile::MappedFile(const fs::path& path) {
  const ReadHandle file(path);
  const struct stat status = status_of(file.fd, path);
  if (!S_ISREG(status.st_mode)) {
    throw Error({.code = ErrorCode::failure,
                 .what = "cannot map the file",
                 .where = path.string(),
                 .expected = "a regular file",
                 .got = "a pipe or a device",
                 .remedy = "copy the data into a file first"});
  }
  size_ = static_cast<size_t>(status.st_size);
  if (size_ == 0) return;  // mmap refuses an empty range
  void* data = mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, file.fd, 0);
  if (data == MAP_FAILED) fail("cannot map the file", path, errno);
  data_ = static_cast<const std::byte*>(data);
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) munmap(const_cast<std::byte*>(data_), size_);
}

void sync_folder(const fs::path& path) {
  const fs::path folder = path.empty() ? fs::path(".") : path;
  const int fd = open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) fail("cannot open the folder", folder, errno);
  const int error = fsync(fd) == 0 ? 0 : errno;
  ::close(fd);
  // EINVAL: a file system that cannot flush folders (some network and FUSE mounts).
  if (error != 0 && error != EINVAL) fail("cannot flush the folder to disk", folder, error);
}

fs::path cache_folder() {
  auto variable = [](const char* name) -> fs::path {
    const char* value = std::getenv(name);
    return value ? value : "";
  };
  if (const fs::path own = variable("MILLRACE_CACHE"); !own.empty()) return own;
  // The XDG rules say that a relative path here is to be ignored.
  if (const fs::path xdg = variable("XDG_CACHE_HOME"); xdg.is_absolute()) return xdg / "millrace";
  fs::path home = variable("HOME");
  if (home.empty()) {
    if (const passwd* user = getpwuid(getuid()); user != nullptr) home = user->pw_dir;
  }
  if (home.empty()) {
    throw Error({.code = ErrorCode::failure,
                 .what = "no place for the cache: this user has no home folder",
                 .where = "environment",
                 .expected = "MILLRACE_CACHE, XDG_CACHE_HOME or HOME to be set",
                 .remedy = "set MILLRACE_CACHE to a folder"});
  }
  return home / ".cache" / "millrace";
}

}  // namespace millrace
