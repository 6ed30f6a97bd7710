#include "core/file.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <thread>
#include <vector>

#include "core/error.h"

namespace millrace {
namespace {

// A fresh folder for every test, removed afterwards.
class FileTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string name = ::testing::TempDir() + "millrace-file-XXXXXX";
    ASSERT_NE(mkdtemp(name.data()), nullptr);
    folder_ = name;
  }
  void TearDown() override { fs::remove_all(folder_); }

  // Runs `action`, which must throw an Error about `path`.
  template <typename Action>
  ErrorFields error_of(Action action) {
    try {
      action();
    } catch (const Error& error) {
      EXPECT_FALSE(error.fields().what.empty());
      EXPECT_EQ(error.code(), ErrorCode::failure);
      return error.fields();
    }
    ADD_FAILURE() << "no Error was thrown";
    return {};
  }
  size_t files_in_folder() const {
    return static_cast<size_t>(
        std::distance(fs::directory_iterator(folder_), fs::directory_iterator()));
  }

  fs::path folder_;
};

TEST_F(FileTest, WriteThenRead) {
  const fs::path path = folder_ / "a.bin";
  std::string bytes = "hello";
  bytes += '\0';
  bytes += "\xff\n";
  write_file(path, bytes);
  EXPECT_EQ(read_file(path), bytes);
  write_file(path, "");
  EXPECT_EQ(read_file(path), "");
  EXPECT_EQ(files_in_folder(), 1u);  // no temporary is left
}

TEST_F(FileTest, WriteWithoutAFolderUsesTheCurrentOne) {
  const fs::path before = fs::current_path();
  fs::current_path(folder_);
  write_file("plain.txt", "x");
  fs::current_path(before);
  EXPECT_EQ(read_file(folder_ / "plain.txt"), "x");
}

TEST_F(FileTest, ReadMissing) {
  const ErrorFields fields = error_of([&] { read_file(folder_ / "none"); });
  EXPECT_EQ(fields.where, (folder_ / "none").string());
  EXPECT_NE(fields.what.find("No such file"), std::string::npos);
  EXPECT_FALSE(fields.remedy.empty());
}

TEST_F(FileTest, ReadFolder) {
  const ErrorFields fields = error_of([&] { read_file(folder_); });
  EXPECT_EQ(fields.where, folder_.string());
  EXPECT_EQ(fields.remedy, "name a file, not a folder");
}

TEST_F(FileTest, ReadUnreadable) {
  write_file(folder_ / "a", "x");
  fs::permissions(folder_ / "a", fs::perms::none);
  fs::permissions(folder_, fs::perms::all);
  const pid_t child = fork();
  if (child == 0) {
    // Root reads everything: try it as nobody.
    if (geteuid() == 0 && (setgid(65534) != 0 || setuid(65534) != 0)) _exit(2);
    try {
      read_file(folder_ / "a");
    } catch (const Error& error) {
      const ErrorFields& fields = error.fields();
      _exit(fields.where == (folder_ / "a").string() &&
                    fields.remedy == "check the owner and the permissions"
                ? 0
                : 1);
    }
    _exit(3);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0) << "1: another Error, 2: still root, 3: it was read";
}

TEST_F(FileTest, ReadLimit) {
  write_file(folder_ / "a", "12345");
  EXPECT_EQ(read_file(folder_ / "a", 5), "12345");
  const ErrorFields fields = error_of([&] { read_file(folder_ / "a", 4); });
  EXPECT_EQ(fields.where, (folder_ / "a").string());
  EXPECT_NE(fields.expected.find("4 bytes"), std::string::npos);
}

// A pipe has no size: the reading loop must grow, and the limit must hold all the same.
TEST_F(FileTest, ReadPipe) {
  const fs::path path = folder_ / "pipe";
  ASSERT_EQ(mkfifo(path.c_str(), 0600), 0);
  const std::string bytes(200'000, 'p');
  auto feed = [&] {
    try {
      OutputFile(path, OutputFile::Mode::append).write(bytes);
    } catch (const Error&) {  // the reader left early: EPIPE
    }
  };
  std::thread writer(feed);
  EXPECT_EQ(read_file(path), bytes);
  writer.join();

  struct sigaction ignore = {}, before = {};
  ignore.sa_handler = SIG_IGN;
  sigaction(SIGPIPE, &ignore, &before);
  std::thread second(feed);
  EXPECT_NE(error_of([&] { read_file(path, 1000); }).expected.find("1000 bytes"),
            std::string::npos);
  second.join();
  sigaction(SIGPIPE, &before, nullptr);
}

TEST_F(FileTest, WriteIntoMissingFolder) {
  const ErrorFields fields = error_of([&] { write_file(folder_ / "no" / "a", "x"); });
  EXPECT_NE(fields.where.find("no/a"), std::string::npos);
}

TEST_F(FileTest, WriteOverFolderLeavesNothingBehind) {
  fs::create_directory(folder_ / "taken");
  EXPECT_EQ(error_of([&] { write_file(folder_ / "taken", "x"); }).where,
            (folder_ / "taken").string());
  EXPECT_EQ(files_in_folder(), 1u);
}

// A write that fails half-way must leave the old content and no temporary.
TEST_F(FileTest, FailedWriteKeepsTheOldFile) {
  const fs::path path = folder_ / "a";
  write_file(path, "old");
  rlimit before;
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  struct sigaction ignore = {}, old_action = {};
  ignore.sa_handler = SIG_IGN;
  sigaction(SIGXFSZ, &ignore, &old_action);
  const rlimit small = {4096, before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  const ErrorFields fields = error_of([&] { write_file(path, std::string(100'000, 'n')); });
  setrlimit(RLIMIT_FSIZE, &before);
  sigaction(SIGXFSZ, &old_action, nullptr);
  EXPECT_NE(fields.remedy.find("ulimit -f"), std::string::npos);
  EXPECT_EQ(read_file(path), "old");
  EXPECT_EQ(files_in_folder(), 1u);
}

TEST_F(FileTest, FullDisk) {
  ASSERT_TRUE(fs::exists("/dev/full")) << "every Linux has it";
  OutputFile file("/dev/full", OutputFile::Mode::append);
  const ErrorFields fields = error_of([&] { file.write("x"); });
  EXPECT_EQ(fields.where, "/dev/full");
  EXPECT_NE(fields.remedy.find("space"), std::string::npos);
}

TEST_F(FileTest, TwoWritersNeverMix) {
  const fs::path path = folder_ / "a";
  const std::string ones(50'000, '1'), twos(50'000, '2');
  auto write_many = [&](const std::string& bytes) {
    for (int i = 0; i < 20; ++i) write_file(path, bytes);
  };
  std::thread other([&] { write_many(ones); });
  write_many(twos);
  other.join();
  const std::string result = read_file(path);
  EXPECT_TRUE(result == ones || result == twos);
  EXPECT_EQ(files_in_folder(), 1u);
}

TEST_F(FileTest, CreateFolders) {
  create_folders(folder_ / "a" / "b" / "c");
  EXPECT_TRUE(fs::is_directory(folder_ / "a" / "b" / "c"));
  create_folders(folder_ / "a" / "b");  // again is fine
  write_file(folder_ / "file", "x");
  EXPECT_EQ(error_of([&] { create_folders(folder_ / "file" / "b"); }).where,
            (folder_ / "file" / "b").string());
  error_of([&] { create_folders(folder_ / "file"); });
}

TEST_F(FileTest, OutputFileModes) {
  const fs::path path = folder_ / "log";
  {
    OutputFile file(path, OutputFile::Mode::append);
    EXPECT_TRUE(file.is_open());
    file.write("one\n");
    file.sync();
    file.close();
    EXPECT_FALSE(file.is_open());
  }
  { OutputFile(path, OutputFile::Mode::append).write("two\n"); }  // the destructor closes
  EXPECT_EQ(read_file(path), "one\ntwo\n");
  { OutputFile(path, OutputFile::Mode::truncate).write("three"); }
  EXPECT_EQ(read_file(path), "three");
  EXPECT_EQ(error_of([&] { OutputFile(folder_ / "no" / "x", OutputFile::Mode::append); }).where,
            (folder_ / "no" / "x").string());
}

TEST_F(FileTest, OutputFileMoves) {
  OutputFile empty;
  EXPECT_FALSE(empty.is_open());
  OutputFile first(folder_ / "1", OutputFile::Mode::truncate);
  OutputFile second(std::move(first));
  EXPECT_FALSE(first.is_open());  // NOLINT: the moved-from state is what is tested
  second.write("a");
  empty = std::move(second);
  EXPECT_FALSE(second.is_open());  // NOLINT
  empty.write("b");
  empty = OutputFile(folder_ / "2", OutputFile::Mode::truncate);
  empty.write("c");
  empty.close();
  EXPECT_EQ(read_file(folder_ / "1"), "ab");
  EXPECT_EQ(read_file(folder_ / "2"), "c");
}

TEST_F(FileTest, Mapped) {
  write_file(folder_ / "a", "mapped bytes");
  const MappedFile map(folder_ / "a");
  EXPECT_EQ(map.text(), "mapped bytes");
  EXPECT_EQ(map.bytes().size(), 12u);
  EXPECT_EQ(map.bytes()[1], std::byte{'a'});
  write_file(folder_ / "a", "another");  // replaced, not overwritten: the map keeps the old file
  EXPECT_EQ(map.text(), "mapped bytes");
}

TEST_F(FileTest, MappedEmptyMissingFolderDevice) {
  write_file(folder_ / "empty", "");
  EXPECT_TRUE(MappedFile(folder_ / "empty").bytes().empty());
  EXPECT_EQ(MappedFile(folder_ / "empty").text(), "");
  EXPECT_EQ(error_of([&] { MappedFile(folder_ / "none"); }).where, (folder_ / "none").string());
  EXPECT_EQ(error_of([&] { MappedFile map(folder_); }).where, folder_.string());
  EXPECT_EQ(error_of([&] { MappedFile("/dev/null"); }).expected, "a regular file");
}

TEST_F(FileTest, SyncFolder) {
  sync_folder(folder_);
  sync_folder("");  // the current one
  EXPECT_EQ(error_of([&] { sync_folder(folder_ / "none"); }).where, (folder_ / "none").string());
}

TEST_F(FileTest, CacheFolder) {
  std::vector<std::pair<const char*, std::string>> saved;
  for (const char* name : {"MILLRACE_CACHE", "XDG_CACHE_HOME", "HOME"}) {
    const char* value = getenv(name);
    saved.emplace_back(name, value ? value : "");
    unsetenv(name);
  }
  setenv("HOME", "/home/user", 1);
  EXPECT_EQ(cache_folder(), "/home/user/.cache/millrace");
  setenv("XDG_CACHE_HOME", "relative", 1);
  EXPECT_EQ(cache_folder(), "/home/user/.cache/millrace");
  setenv("XDG_CACHE_HOME", "/xdg", 1);
  EXPECT_EQ(cache_folder(), "/xdg/millrace");
  setenv("MILLRACE_CACHE", "/own", 1);
  EXPECT_EQ(cache_folder(), "/own");
  // Where it cannot be written people are told how to move it, and nowhere else.
  setenv("MILLRACE_CACHE", "/proc/.cache/millrace", 1);
  const auto remedy_of = [this](const char* folder) {
    return error_of([&] { create_folders(folder); }).remedy;
  };
  for (const char* folder : {"/proc/.cache/millrace", "/proc/.cache/millrace/data/seen"})
    EXPECT_EQ(remedy_of(folder), "check the path, or set MILLRACE_CACHE to another folder");
  EXPECT_EQ(remedy_of("/proc/.cache/runs"), "check the path");
  for (const auto& [name, value] : saved) {
    value.empty() ? unsetenv(name) : setenv(name, value.c_str(), 1);
  }
}

TEST_F(FileTest, DigestsFollowTheBytes) {
  const FileDigest empty = digest_of(""), one = digest_of("a");
  EXPECT_EQ(empty.xxh3, "99aa06d3014798d86001c324468d497f");  // XXH3-128 of nothing, as published
  EXPECT_EQ(one.bytes, 1);
  EXPECT_NE(one, empty);
  const fs::path path = folder_ / "x";
  OutputFile file(path, OutputFile::Mode::truncate);
  std::string all;
  for (int i = 0; i < 1000; ++i) {
    const std::string part(static_cast<size_t>(i % 37), static_cast<char>(i));
    file.write(part);
    all += part;
  }
  file.close();
  EXPECT_EQ(file.digest(), digest_of(all));
  EXPECT_EQ(digest_of_file(path), digest_of(all));
  EXPECT_EQ(write_new_file(path, "other"), digest_of("other"));
  EXPECT_EQ(digest_of_file(path), digest_of("other"));
}

TEST_F(FileTest, FoldersAreRemovedWithoutFollowingLinks) {
  create_folders(folder_ / "a/b/c");
  write_file(folder_ / "a/b/x", "x");
  write_file(folder_ / "kept", "kept");
  fs::create_directory(folder_ / "other");
  write_file(folder_ / "other/y", "y");
  fs::create_symlink(folder_ / "kept", folder_ / "a/link");
  fs::create_directory_symlink(folder_ / "other", folder_ / "a/b/folder_link");
  remove_folder(folder_ / "a");
  EXPECT_FALSE(fs::exists(folder_ / "a"));
  EXPECT_EQ(read_file(folder_ / "kept"), "kept");
  EXPECT_EQ(read_file(folder_ / "other/y"), "y");
  EXPECT_EQ(error_of([&] { remove_folder(folder_ / "nothing"); }).where,
            (folder_ / "nothing").string());
}

TEST_F(FileTest, LinksAreReplaced) {
  replace_link(folder_ / "latest", "one");
  EXPECT_EQ(fs::read_symlink(folder_ / "latest"), "one");
  replace_link(folder_ / "latest", "two");
  EXPECT_EQ(fs::read_symlink(folder_ / "latest"), "two");
  EXPECT_EQ(std::distance(fs::directory_iterator(folder_), {}), 1);
}

TEST_F(FileTest, TruncateCutsAndNamesWhatItCannot) {
  write_file(folder_ / "x", "0123456789");
  truncate_file(folder_ / "x", 4);
  EXPECT_EQ(read_file(folder_ / "x"), "0123");
  EXPECT_EQ(error_of([&] { truncate_file(folder_ / "no", 1); }).where, (folder_ / "no").string());
}

TEST_F(FileTest, OneLockOneOwner) {
  const fs::path path = folder_ / "lock";
  std::string owner;
  EXPECT_FALSE(LockFile::is_taken(path));
  {
    LockFile first;
    ASSERT_TRUE(first.take(path, "first", &owner));
    EXPECT_EQ(owner, "");
    EXPECT_TRUE(LockFile::is_taken(path));
    LockFile second;
    EXPECT_FALSE(second.take(path, "second", &owner));
    EXPECT_EQ(owner, "first");
    first.give_back();
    EXPECT_FALSE(LockFile::is_taken(path));
    EXPECT_TRUE(second.take(path, "second", &owner));
    EXPECT_EQ(owner, "") << "given back, not left behind";
  }
  // A process that dies gives nothing back; its word stays for the next one to read.
  const pid_t child = fork();
  if (child == 0) {
    LockFile lock;
    std::string ignored;
    lock.take(path, "the dead one", &ignored);
    _exit(0);
  }
  waitpid(child, nullptr, 0);
  LockFile heir;
  ASSERT_TRUE(heir.take(path, "heir", &owner));
  EXPECT_EQ(owner, "the dead one");
}

// Nobody's change is lost, however many make one at the same time.
TEST_F(FileTest, SharedFilesKeepEveryChange) {
  constexpr int kThreads = 4, kChanges = 25;
  const fs::path path = folder_ / "new" / "shared.txt";
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t)
    threads.emplace_back([&] {
      for (int i = 0; i < kChanges; ++i)
        change_shared_file(path, 1 << 20, [](const std::string& text) { return text + "x"; });
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(read_file(path), std::string(kThreads * kChanges, 'x'));
  // What cannot be read, here because it is too long, is replaced.
  change_shared_file(path, 10, [](const std::string& text) { return text + "y"; });
  EXPECT_EQ(read_file(path), "y");
}

}  // namespace
}  // namespace millrace
