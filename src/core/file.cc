#include "core/file.h"

#include <fcntl.h>
#include <pwd.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <new>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "core/error.h"
#include "core/text.h"

namespace millrace {

int FileSystem::open(const char* path, int flags, unsigned mode) {
  return ::open(path, flags, mode);
}
ssize_t FileSystem::write(int fd, const void* bytes, size_t count) {
  return ::write(fd, bytes, count);
}
int FileSystem::fsync(int fd) { return ::fsync(fd); }
int FileSystem::close(int fd) { return ::close(fd); }
int FileSystem::truncate(const char* path, int64_t bytes) { return ::truncate(path, bytes); }
int FileSystem::rename(const char* from, const char* to) { return ::rename(from, to); }
int FileSystem::unlink(const char* path) { return ::unlink(path); }
int FileSystem::mkdir(const char* path) { return ::mkdir(path, 0777); }
int FileSystem::rmdir(const char* path) { return ::rmdir(path); }
int FileSystem::symlink(const char* target, const char* link) { return ::symlink(target, link); }

namespace {

FileSystem real_system;
std::atomic<FileSystem*> current_system{&real_system};
FileSystem& file_system() { return *current_system.load(std::memory_order_relaxed); }

std::string hexadecimal(XXH128_hash_t hash) {
  return fmt::format("{:016x}{:016x}", hash.high64, hash.low64);
}

// Unique per process and call, so that two writers never share a temporary.
fs::path temporary_beside(const fs::path& path) {
  static std::atomic<uint64_t> counter{0};
  fs::path temporary = path;
  temporary += fmt::format(".{}-{}.tmp", getpid(), counter++);
  return temporary;
}

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

// Where people did not choose the place themselves they are told how to.
bool is_in_cache(const fs::path& path) {
  try {
    const fs::path cache = cache_folder();
    return std::mismatch(cache.begin(), cache.end(), path.begin(), path.end()).first == cache.end();
  } catch (const Error&) {
    return false;  // there is none
  }
}

// `asked` is what this was done for.
[[noreturn]] void fail(const char* doing, const fs::path& path, int error, const fs::path& asked) {
  std::string remedy = remedy_for(error);
  if (is_in_cache(asked))
    remedy += std::string(remedy.empty() ? "" : ", or ") + "set MILLRACE_CACHE to another folder";
  throw Error({.code = ErrorCode::failure,
               .what = fmt::format("{}: {}", doing, std::generic_category().message(error)),
               .where = path.string(),
               .remedy = remedy});
}
[[noreturn]] void fail(const char* doing, const fs::path& path, int error) {
  fail(doing, path, error, path);
}

[[noreturn]] void fail_on_size(const fs::path& path, int64_t limit) {
  throw Error({.code = ErrorCode::failure,
               .what = "the file is too large",
               .where = path.string(),
               .expected = fmt::format("at most {} ({} bytes)", human_bytes(limit), limit),
               .remedy = "check that this is the file you meant"});
}

struct stat status_of(int fd, const fs::path& path) {
  struct stat status;
  if (fstat(fd, &status) != 0) fail("cannot read the file", path, errno);
  if (S_ISDIR(status.st_mode)) fail("cannot read the file", path, EISDIR);
  return status;
}

}  // namespace

std::string read_file(const fs::path& path, int64_t limit) {
  const InputFile file(path);
  const struct stat status = status_of(file.fd(), path);
  if (status.st_size > limit) fail_on_size(path, limit);

  // The size is a hint: pipes and /proc report 0, and a file may grow while it is read.
  std::string bytes;
  size_t used = 0;
  try {
    bytes.resize(static_cast<size_t>(status.st_size) + 1);
    while (true) {
      if (used == bytes.size()) bytes.resize(used + std::max<size_t>(used, 4096));
      const ssize_t got = read(file.fd(), bytes.data() + used, bytes.size() - used);
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
  const fs::path temporary = temporary_beside(path);
  try {
    OutputFile file(temporary, OutputFile::Mode::truncate);
    file.write(bytes);
    file.sync();
    file.close();
    rename_path(temporary, path);
  } catch (...) {
    file_system().unlink(temporary.c_str());
    throw;
  }
  sync_folder(path.parent_path());
}

FileDigest write_new_file(const fs::path& path, std::string_view bytes) {
  OutputFile file(path, OutputFile::Mode::truncate);
  file.write(bytes);
  file.sync();
  file.close();
  return file.digest();
}

FileDigest digest_of(std::string_view bytes) {
  return {static_cast<int64_t>(bytes.size()),
          hexadecimal(XXH3_128bits(bytes.data(), bytes.size()))};
}

// In pieces: what is read does not stay in memory, and a file that becomes shorter is no signal.
FileDigest digest_of_file(const fs::path& path) {
  const InputFile file(path);
  const std::unique_ptr<XXH3_state_t, decltype(&XXH3_freeState)> state(XXH3_createState(),
                                                                       XXH3_freeState);
  XXH3_128bits_reset(state.get());
  std::vector<std::byte> piece(1 << 20);
  int64_t bytes = 0;
  for (size_t got = piece.size(); got == piece.size(); bytes += static_cast<int64_t>(got)) {
    got = file.read_some_at(bytes, piece);
    XXH3_128bits_update(state.get(), piece.data(), got);
  }
  return {bytes, hexadecimal(XXH3_128bits_digest(state.get()))};
}

void set_file_system(FileSystem* system) { current_system = system ? system : &real_system; }

namespace {

void create_folders_for(const fs::path& path, const fs::path& asked) {
  if (path.empty()) return;
  int made = file_system().mkdir(path.c_str());
  if (made != 0 && errno == ENOENT && path.has_parent_path() && path.parent_path() != path) {
    create_folders_for(path.parent_path(), asked);
    made = file_system().mkdir(path.c_str());
  }
  if (made == 0) {
    sync_folder(path.parent_path());  // or a power cut takes the folder with all that is in it
    return;
  }
  const int error = errno;
  std::error_code ignored;
  if (!(error == EEXIST && fs::is_directory(path, ignored)))
    fail("cannot create the folder", path, error == EEXIST ? ENOTDIR : error, asked);
}

}  // namespace

void create_folders(const fs::path& path) { create_folders_for(path, path); }

void rename_path(const fs::path& from, const fs::path& to) {
  if (file_system().rename(from.c_str(), to.c_str()) != 0) fail("cannot rename to", to, errno);
}

void truncate_file(const fs::path& path, int64_t bytes) {
  if (file_system().truncate(path.c_str(), bytes) != 0)
    fail("cannot shorten the file", path, errno);
}

void remove_folder(const fs::path& path) {
  std::error_code error;
  for (fs::directory_iterator entry(path, error), end; !error && entry != end;
       entry.increment(error)) {
    if (entry->symlink_status().type() == fs::file_type::directory)
      remove_folder(entry->path());
    else if (file_system().unlink(entry->path().c_str()) != 0 && errno != ENOENT)
      fail("cannot remove the file", entry->path(), errno);
  }
  if (error) fail("cannot read the folder", path, error.value());
  if (file_system().rmdir(path.c_str()) != 0) fail("cannot remove the folder", path, errno);
}

void put_folder_in_place(const fs::path& staged, const fs::path& folder) {
  sync_folder(staged);
  if (fs::exists(folder)) remove_folder(folder);
  rename_path(staged, folder);
  sync_folder(folder.parent_path());
}

void replace_link(const fs::path& link, const fs::path& target) {
  const fs::path temporary = temporary_beside(link);
  if (file_system().symlink(target.c_str(), temporary.c_str()) != 0)
    fail("cannot make the link", link, errno);
  try {
    rename_path(temporary, link);
  } catch (...) {
    file_system().unlink(temporary.c_str());
    throw;
  }
}

struct OutputFile::Hash {
  XXH3_state_t* state = XXH3_createState();
  Hash() { XXH3_128bits_reset(state); }
  ~Hash() { XXH3_freeState(state); }
  Hash(const Hash&) = delete;
  Hash& operator=(const Hash&) = delete;
};

OutputFile::OutputFile() = default;

OutputFile::OutputFile(const fs::path& path, Mode mode)
    : hash_(std::make_unique<Hash>()), path_(path) {
  const int how = mode == Mode::append ? O_APPEND : O_TRUNC;
  fd_ = file_system().open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC | how, 0666);
  if (fd_ < 0) fail("cannot open the file for writing", path, errno);
}

OutputFile::~OutputFile() {
  if (fd_ >= 0) file_system().close(fd_);
}

OutputFile::OutputFile(OutputFile&& other) noexcept
    : fd_(std::exchange(other.fd_, -1)),
      written_(other.written_),
      hash_(std::move(other.hash_)),
      path_(std::move(other.path_)) {}

OutputFile& OutputFile::operator=(OutputFile&& other) noexcept {
  if (this != &other) {
    if (fd_ >= 0) file_system().close(fd_);
    fd_ = std::exchange(other.fd_, -1);
    written_ = other.written_;
    hash_ = std::move(other.hash_);
    path_ = std::move(other.path_);
  }
  return *this;
}

void OutputFile::write(std::string_view bytes) {
  MR_CHECK(is_open(), "write to a closed file");
  while (!bytes.empty()) {
    const ssize_t put = file_system().write(fd_, bytes.data(), bytes.size());
    if (put < 0 && errno == EINTR) continue;
    if (put < 0) fail("cannot write the file", path_, errno);
    XXH3_128bits_update(hash_->state, bytes.data(), static_cast<size_t>(put));
    written_ += put;
    bytes.remove_prefix(static_cast<size_t>(put));
  }
}

FileDigest OutputFile::digest() const {
  return {written_, hexadecimal(XXH3_128bits_digest(hash_->state))};
}

void OutputFile::sync() {
  MR_CHECK(is_open(), "sync of a closed file");
  if (file_system().fsync(fd_) != 0) fail("cannot flush the file to disk", path_, errno);
}

void OutputFile::close() {
  MR_CHECK(is_open(), "close of a closed file");
  // Linux frees the descriptor even when close() is interrupted: never repeat it.
  if (file_system().close(std::exchange(fd_, -1)) != 0 && errno != EINTR) {
    fail("cannot write the file", path_, errno);
  }
}

InputFile::InputFile(const fs::path& path) : path_(path) {
  fd_ = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd_ < 0) fail("cannot open the file", path, errno);
}
InputFile::~InputFile() {
  if (fd_ >= 0) ::close(fd_);
}
InputFile::InputFile(InputFile&& other) noexcept
    : fd_(std::exchange(other.fd_, -1)), path_(std::move(other.path_)) {}
InputFile& InputFile::operator=(InputFile&& other) noexcept {
  std::swap(fd_, other.fd_);
  std::swap(path_, other.path_);
  return *this;
}

int64_t InputFile::size() const { return status_of(fd_, path_).st_size; }

size_t InputFile::read_some_at(int64_t offset, std::span<std::byte> out) const {
  size_t done = 0;
  while (done < out.size()) {
    const ssize_t got =
        pread(fd_, out.data() + done, out.size() - done, offset + static_cast<int64_t>(done));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) fail("cannot read the file", path_, errno);
    if (got == 0) break;
    done += static_cast<size_t>(got);
  }
  return done;
}

void InputFile::read_at(int64_t offset, std::span<std::byte> out) const {
  const size_t got = read_some_at(offset, out);
  if (got == out.size()) return;
  throw Error({.what = "the file is shorter than it was",
               .where = path_.string(),
               .expected = fmt::format("{} bytes from {} on", out.size(), offset),
               .got = fmt::format("{} bytes", got),
               .remedy = "do not change data files while they are in use"});
}

MappedFile::MappedFile(const fs::path& path) {
  const InputFile file(path);
  const struct stat status = status_of(file.fd(), path);
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
  void* data = mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, file.fd(), 0);
  if (data == MAP_FAILED) fail("cannot map the file", path, errno);
  data_ = static_cast<const std::byte*>(data);
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) munmap(const_cast<std::byte*>(data_), size_);
}

void MappedFile::let_go(std::span<const std::byte> part) const {
  const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  const auto offset = static_cast<size_t>(part.data() - data_);
  const size_t begin = offset / page * page;
  madvise(const_cast<std::byte*>(data_) + begin, offset + part.size() - begin, MADV_DONTNEED);
}

void sync_folder(const fs::path& path) {
  const fs::path folder = path.empty() ? fs::path(".") : path;
  const int fd = file_system().open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC, 0);
  if (fd < 0) fail("cannot open the folder", folder, errno);
  const int error = file_system().fsync(fd) == 0 ? 0 : errno;
  file_system().close(fd);
  // EINVAL: a file system that cannot flush folders (some network and FUSE mounts).
  if (error != 0 && error != EINVAL) fail("cannot flush the folder to disk", folder, error);
}

bool LockFile::take(const fs::path& path, const std::string& me, std::string* owner) {
  MR_CHECK(fd_ < 0, "locked already");
  fd_ = file_system().open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
  if (fd_ < 0) fail("cannot open the lock", path, errno);
  // A lock of the open file description: it belongs to this object, and dies with the process.
  struct flock lock {};
  lock.l_type = F_WRLCK;
  const bool mine = fcntl(fd_, F_OFD_SETLK, &lock) == 0;
  const int error = errno;
  owner->resize(4096);
  const ssize_t got = pread(fd_, owner->data(), owner->size(), 0);
  owner->resize(static_cast<size_t>(std::max<ssize_t>(0, got)));
  if (!mine) {
    file_system().close(std::exchange(fd_, -1));
    if (error != EAGAIN && error != EACCES) fail("cannot lock", path, error);
    return false;
  }
  if (ftruncate(fd_, 0) != 0 ||
      pwrite(fd_, me.data(), me.size(), 0) != static_cast<ssize_t>(me.size()))
    fail("cannot write the lock", path, errno);
  return true;
}

bool LockFile::is_taken(const fs::path& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return false;
  struct flock lock {};
  lock.l_type = F_WRLCK;
  const bool taken = fcntl(fd, F_OFD_GETLK, &lock) == 0 && lock.l_type != F_UNLCK;
  ::close(fd);
  return taken;
}

void LockFile::give_back() {
  if (fd_ < 0) return;
  [[maybe_unused]] const int ignored = ftruncate(fd_, 0);  // a full lock only means a warning
  file_system().close(std::exchange(fd_, -1));
}

void change_shared_file(const fs::path& path, int64_t limit,
                        const std::function<std::string(const std::string&)>& change) {
  constexpr int kTries = 2000;  // a millisecond each
  create_folders(path.parent_path());
  LockFile lock;
  std::string owner;
  const fs::path lock_path = path.string() + ".lock";
  for (int i = 0; i < kTries && !lock.take(lock_path, "a change", &owner); ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  std::string text;
  try {
    if (fs::exists(path)) text = read_file(path, limit);
  } catch (const std::exception&) {
    // What cannot be read is replaced.
  }
  write_file(path, change(text));
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
