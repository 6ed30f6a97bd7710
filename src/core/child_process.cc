#include "core/child_process.h"

#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>

#include "core/clock.h"
#include "core/error.h"

namespace millrace {
namespace {

Error fault(const char* what, const std::string& program, int number) {
  return Error({.code = ErrorCode::failure,
                .what = what,
                .where = program,
                .got = std::strerror(number),
                .remedy = "free memory or processes, and try again"});
}

struct Pipe {
  std::array<int, 2> ends{-1, -1};
  ~Pipe() {
    for (const int end : ends)
      if (end >= 0) close(end);
  }
  void close_end(size_t i) {
    if (ends[i] >= 0) close(ends[i]);
    ends[i] = -1;
  }
};

// Appends what can be read; false at the end.
bool take(int end, std::string& text) {
  std::array<char, 65536> buffer;
  const ssize_t got = read(end, buffer.data(), buffer.size());
  if (got > 0) text.append(buffer.data(), static_cast<size_t>(got));
  return got > 0 || (got < 0 && (errno == EINTR || errno == EAGAIN));
}

}  // namespace

std::string own_program() { return "/proc/self/exe"; }

ChildResult run_child(const std::vector<std::string>& command, double limit_seconds) {
  MR_CHECK(!command.empty(), "no command");
  Pipe out, err;
  for (Pipe* p : {&out, &err})
    if (pipe2(p->ends.data(), O_CLOEXEC) != 0) throw fault("no pipe", command[0], errno);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_adddup2(&actions, out.ends[1], STDOUT_FILENO);
  posix_spawn_file_actions_adddup2(&actions, err.ends[1], STDERR_FILENO);
  // A handler here is no handler there; what is ignored, or left to one thread, would stay so.
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  sigset_t defaults;
  sigemptyset(&defaults);
  for (const int s : {SIGINT, SIGTERM, SIGPIPE, SIGHUP}) sigaddset(&defaults, s);
  posix_spawnattr_setsigdefault(&attributes, &defaults);
  sigset_t none;
  sigemptyset(&none);
  posix_spawnattr_setsigmask(&attributes, &none);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETSIGMASK);
  std::vector<char*> words;
  for (const std::string& word : command) words.push_back(const_cast<char*>(word.c_str()));
  words.push_back(nullptr);
  pid_t child = -1;
  const int64_t begin = now_ns();
  const int refused = posix_spawn(&child, words[0], &actions, &attributes, words.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  posix_spawnattr_destroy(&attributes);
  if (refused != 0) throw fault("cannot start a process", command[0], refused);
  out.close_end(1);
  err.close_end(1);

  ChildResult result;
  bool out_open = true, err_open = true;
  while (out_open || err_open) {
    std::array<pollfd, 2> waits{pollfd{out_open ? out.ends[0] : -1, POLLIN, 0},
                                pollfd{err_open ? err.ends[0] : -1, POLLIN, 0}};
    const double left = limit_seconds - seconds_since(begin);
    if (left <= 0 && !result.timed_out) {
      result.timed_out = true;
      kill(child, SIGKILL);
    }
    poll(waits.data(), waits.size(), result.timed_out ? -1 : static_cast<int>(left * 1e3) + 1);
    if (waits[0].revents != 0) out_open = take(out.ends[0], result.out);
    if (waits[1].revents != 0) err_open = take(err.ends[0], result.err);
  }
  int status = 0;
  rusage usage{};
  while (wait4(child, &status, 0, &usage) < 0 && errno == EINTR) {
  }
  result.seconds = seconds_since(begin);
  result.peak_bytes = int64_t{usage.ru_maxrss} * 1024;
  if (WIFEXITED(status)) result.exit_code = WEXITSTATUS(status);
  if (WIFSIGNALED(status)) result.signal = WTERMSIG(status);
  return result;
}

}  // namespace millrace
