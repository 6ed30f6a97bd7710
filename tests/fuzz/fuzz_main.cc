// The fuzzer: gives a reader damaged inputs and watches it. Built with ASan and UBSan only.
//   millrace_fuzz TARGET [--count N] [--from N] [--seed S] [--minimise] [--out FOLDER]
//   millrace_fuzz TARGET FILE...     what the reader says about these files
//   millrace_fuzz --list | --self-test
// The readers run in a child process, so that a crash costs one input: the parent notes the input,
// saves it, and goes on behind it. A failure is a crash, a sanitizer's report, an exception that is
// not an Error, a broken promise (targets.cc), a leak, or going over a limit: 2 s of processor time
// (a timer; elapsed time would blame readers for a busy machine) or 1 GiB of live memory (counted
// in the allocator, since ASan's own address space rules out a system limit).
#include <fmt/format.h>
#include <sanitizer/lsan_interface.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <charconv>
#include <csignal>
#include <cstring>
#include <limits>
#include <map>
#include <optional>
#include <typeinfo>

#include "core/clock.h"
#include "core/error.h"
#include "core/file.h"
#include "tests/fuzz/fuzz.h"

// Of the sanitizers' allocator; GCC ships no header for these.
extern "C" int __sanitizer_install_malloc_and_free_hooks(
    void (*on_malloc)(const volatile void* pointer, size_t size),
    void (*on_free)(const volatile void* pointer));
extern "C" size_t __sanitizer_get_allocated_size(const volatile void* pointer);

extern "C" const char* __asan_default_options() {
  return "handle_abort=1:max_allocation_size_mb=1024:quarantine_size_mb=32";
}

namespace millrace::fuzz {
namespace {

constexpr int64_t kMaxLiveBytes = int64_t{1} << 30;
constexpr int kSeconds = 2;
constexpr uint64_t kLeakCheckEvery = 100'000;
constexpr size_t kMaxKinds = 20;  // of failures, then it is time to repair something
constexpr int kMaxTrials = 1000;  // of minimising one input

// What the child tells, in memory shared with the parent.
struct Progress {
  std::atomic<uint64_t> current{0};  // the input that is being read
  std::atomic<uint64_t> accepted{0}, refused{0};
  std::atomic<int64_t> slowest_ns{0};
  std::atomic<uint64_t> slowest_index{0};
};

std::atomic<int64_t> live_bytes{0};

void say(std::string_view text) { (void)!write(2, text.data(), text.size()); }

void on_malloc(const volatile void*, size_t size) {
  if (live_bytes.fetch_add(static_cast<int64_t>(size)) + static_cast<int64_t>(size) >
      kMaxLiveBytes) {
    say("fuzz: over 1 GiB of memory\n");
    abort();
  }
}
void on_free(const volatile void* pointer) {
  if (pointer == nullptr) return;
  live_bytes -= static_cast<int64_t>(__sanitizer_get_allocated_size(pointer));
}

void set_timer(int seconds) {
  const itimerval limit = {{0, 0}, {seconds, 0}};
  setitimer(ITIMER_PROF, &limit, nullptr);
}

// In the child: one input. Exits when the reader fails.
Verdict read_one(const Target& target, const std::string& bytes) {
  try {
    set_timer(kSeconds);
    Verdict verdict = target.run(bytes);
    set_timer(0);
    return verdict;
  } catch (const Broken& broken) {
    say(fmt::format("fuzz: broken promise: {}\n", broken.what()));
  } catch (const std::exception& error) {
    say(fmt::format("fuzz: foreign exception {}\n  {}\n", typeid(error).name(), error.what()));
  } catch (...) {
    say("fuzz: foreign exception of no known type\n");
  }
  _exit(70);
}

using Source = std::function<std::string(uint64_t)>;

bool leaks() { return __lsan_do_recoverable_leak_check() != 0; }

[[noreturn]] void child(const Target& target, const Source& source, uint64_t begin, uint64_t end,
                        Progress* progress, int errors) {
  dup2(errors, 2);
  __sanitizer_install_malloc_and_free_hooks(on_malloc, on_free);
  for (uint64_t i = begin; i < end; ++i) {
    progress->current = i;
    const std::string bytes = source(i);
    const int64_t start = now_ns();
    const Verdict verdict = read_one(target, bytes);
    const int64_t time = now_ns() - start;
    ++(verdict.accepted ? progress->accepted : progress->refused);
    if (time > progress->slowest_ns) {
      progress->slowest_ns = time;
      progress->slowest_index = i;
    }
    if ((i + 1 == end || (i + 1) % kLeakCheckEvery == 0) && leaks()) _exit(70);
  }
  _exit(0);
}

// The line of a dead child's words that names the fault.
std::string name_of_fault(const std::string& words, int status) {
  for (const char* mark : {"fuzz: ", "runtime error: ", "internal error", "SUMMARY: "}) {
    const size_t at = words.find(mark);
    if (at == words.npos) continue;
    const size_t begin = words.rfind('\n', at) + 1;
    return words.substr(begin, words.find('\n', at) - begin);
  }
  if (WIFSIGNALED(status) && WTERMSIG(status) == SIGPROF) {
    return fmt::format("over {} s of processor time", kSeconds);
  }
  return WIFSIGNALED(status) ? fmt::format("signal {}", WTERMSIG(status))
                             : fmt::format("exit code {}", WEXITSTATUS(status));
}

struct Death {
  uint64_t index;
  std::string fault, words;
};

class Runner {
 public:
  explicit Runner(const Target& target) : target_(target) {
    void* shared =
        mmap(nullptr, sizeof(Progress), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    MR_CHECK(shared != MAP_FAILED, "no shared memory");
    progress = new (shared) Progress;
  }

  // Reads inputs begin..end in a child; returns its death, or nothing when it came to the end.
  template <typename Tick>
  std::optional<Death> run(const Source& source, uint64_t begin, uint64_t end, Tick tick) {
    const int errors = memfd_create("errors", MFD_CLOEXEC);
    MR_CHECK(errors >= 0, "no place for the child's words");
    const pid_t pid = fork();
    MR_CHECK(pid >= 0, "no process");
    if (pid == 0) child(target_, source, begin, end, progress, errors);
    int status = 0;
    for (int wait = 1; waitpid(pid, &status, WNOHANG) == 0; wait = std::min(2 * wait, 100)) {
      usleep(static_cast<useconds_t>(wait) * 1000);
      tick();
    }
    std::string words(static_cast<size_t>(lseek(errors, 0, SEEK_END)), '\0');
    const ssize_t got = pread(errors, words.data(), words.size(), 0);
    MR_CHECK(got == static_cast<ssize_t>(words.size()), "the child's words are lost");
    close(errors);
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return std::nullopt;
    return Death{progress->current, name_of_fault(words, status), words};
  }

  std::optional<Death> try_one(const std::string& bytes) {
    return run([&](uint64_t) { return bytes; }, 0, 1, [] {});
  }

  // The smallest part of the input found that still fails in this way.
  std::string minimise(std::string bytes, const std::string& fault) {
    int trials = 0;
    auto still_fails = [&](const std::string& candidate) {
      if (++trials > kMaxTrials) return false;
      const auto death = try_one(candidate);
      return death && death->fault == fault;
    };
    for (size_t size = std::max<size_t>(bytes.size() / 2, 1); size > 0; size /= 2) {
      for (size_t at = 0; at < bytes.size() && trials <= kMaxTrials;) {
        std::string shorter = bytes;
        shorter.erase(at, size);
        if (target_.has_length && shorter.size() >= 8) {  // cut text and length together
          uint64_t length = 0;
          std::memcpy(&length, bytes.data(), 8);
          if (at >= 8 && at < 8 + length) {
            length -= std::min<uint64_t>(size, 8 + length - at);
            std::memcpy(shorter.data(), &length, 8);
          }
        }
        if (still_fails(shorter)) {
          bytes = std::move(shorter);
        } else {
          at += size;
        }
      }
    }
    return bytes;
  }

  ~Runner() { munmap(progress, sizeof(Progress)); }
  Runner(const Runner&) = delete;
  Runner& operator=(const Runner&) = delete;

  Progress* progress;

 private:
  const Target& target_;
};

struct Options {
  std::string target, out = "fuzz-found";
  uint64_t count = 1'000'000, from = 0, seed = 1;
  bool minimise = false, list = false, self_test = false;
  std::vector<std::string> files;
};

[[noreturn]] void usage() {
  fmt::print(
      stderr,
      "usage: millrace_fuzz TARGET [--count N] [--from N] [--seed S] [--minimise] [--out FOLDER]\n"
      "       millrace_fuzz TARGET FILE...\n"
      "       millrace_fuzz --list\n");
  exit(2);
}

Options read_options(const std::vector<std::string>& arguments) {
  Options options;
  auto number = [](const std::string& text) {
    uint64_t value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc() || end != text.data() + text.size()) usage();
    return value;
  };
  for (size_t i = 0; i < arguments.size(); ++i) {
    const std::string& a = arguments[i];
    auto value = [&]() -> const std::string& {
      if (i + 1 == arguments.size()) usage();
      return arguments[++i];
    };
    if (a == "--count") {
      options.count = number(value());
    } else if (a == "--from") {
      options.from = number(value());
    } else if (a == "--seed") {
      options.seed = number(value());
    } else if (a == "--out") {
      options.out = value();
    } else if (a == "--minimise") {
      options.minimise = true;
    } else if (a == "--list") {
      options.list = true;
    } else if (a == "--self-test") {
      options.self_test = true;
    } else if (a.starts_with("--")) {
      usage();
    } else if (options.target.empty()) {
      options.target = a;
    } else {
      options.files.push_back(a);
    }
  }
  if (options.target.empty() && !options.list && !options.self_test) usage();
  return options;
}

int replay(const Target& target, const Options& options) {
  int failures = 0;
  for (const std::string& file : options.files) {
    const std::string bytes = read_file(file);
    Runner runner(target);
    if (const auto death = runner.try_one(bytes)) {
      ++failures;
      fmt::print("{}: FAILED: {}\n{}\n", file, death->fault, death->words);
    } else {
      const Verdict verdict = target.run(bytes);
      fmt::print("{}: {}\n", file, verdict.accepted ? "accepted" : "refused: " + verdict.message);
    }
  }
  return failures == 0 ? 0 : 1;
}

int fuzz(const Target& target, const Options& options) {
  Runner runner(target);
  Progress& progress = *runner.progress;
  const Source source = [&](uint64_t i) { return make_input(target, options.seed, i); };
  const int64_t start = now_ns();
  int64_t told = start;
  auto tick = [&] {
    if (now_ns() - told < 10'000'000'000) return;
    told = now_ns();
    const uint64_t done = progress.accepted + progress.refused;
    fmt::print(
        stderr, "{}: {} of {} inputs, {:.1f} % accepted, {:.0f} per second\n", target.name, done,
        options.count,
        100.0 * static_cast<double>(progress.accepted) / std::max(1.0, static_cast<double>(done)),
        static_cast<double>(done) / seconds_since(start));
  };
  std::map<std::string, uint64_t> faults;
  const uint64_t end = options.from + options.count;
  uint64_t next = options.from, failures = 0;
  while (next < end && faults.size() < kMaxKinds) {
    const auto death = runner.run(source, next, end, tick);
    if (!death) break;
    next = death->index + 1;
    ++failures;
    if (++faults[death->fault] > 1) continue;
    std::string bytes = source(death->index);
    if (options.minimise) bytes = Runner(target).minimise(std::move(bytes), death->fault);
    create_folders(options.out);
    const fs::path path =
        fs::path(options.out) / fmt::format("{}-{}-{}", target.name, options.seed, death->index);
    write_file(path, bytes);
    fmt::print(stderr, "{}\nFAILED: {}\n  input {} of seed {}, saved as {} ({} bytes)\n",
               death->words, death->fault, death->index, options.seed, path.string(), bytes.size());
  }
  fmt::print(
      "{}: {} inputs from {} of seed {}, {} accepted, {} refused, {} failures of {} kinds, slowest "
      "{:.1f} "
      "ms (input {}), {:.0f} s\n",
      target.name, progress.accepted + progress.refused + failures, options.from, options.seed,
      progress.accepted.load(), progress.refused.load(), failures, faults.size(),
      static_cast<double>(progress.slowest_ns) * 1e-6, progress.slowest_index.load(),
      seconds_since(start));
  for (const auto& [fault, count] : faults) fmt::print("  {} x {}\n", count, fault);
  return failures == 0 ? 0 : 1;
}

// --- self-test: readers with one fault each, which must be seen and named

volatile int volatile_int = 0;
char* volatile lost = nullptr;

Verdict reads_too_far(std::string_view bytes) {
  const std::vector<char> copy(bytes.begin(), bytes.end());
  volatile_int = copy.data()[bytes.size()];
  return {};
}
Verdict overflows(std::string_view) {
  volatile_int = std::numeric_limits<int>::max();
  volatile_int = volatile_int + 1;
  return {};
}
Verdict hangs(std::string_view) {
  while (true) volatile_int = 1;
}
Verdict allocates_at_once(std::string_view) {
  lost = new char[size_t{2} << 30];
  delete[] lost;
  return {};
}
Verdict allocates_often(std::string_view) {
  std::vector<std::vector<char>> all;
  for (int i = 0; i < 200; ++i) all.emplace_back(10 << 20);
  return {};
}
Verdict leaks_memory(std::string_view) {
  lost = new char[100];
  lost = nullptr;
  return {};
}
Verdict throws_another(std::string_view) { return {std::vector<bool>().at(1), ""}; }
Verdict aborts(std::string_view) {
  MR_CHECK(volatile_int == 12345, "on purpose");
  return {};
}
Verdict breaks_a_promise(std::string_view) { throw Broken("on purpose"); }
Verdict is_sound(std::string_view) {
  const std::vector<std::vector<char>> fits(40, std::vector<char>(10 << 20));
  return {!fits.empty(), ""};
}

int self_test() {
  struct Case {
    Verdict (*run)(std::string_view bytes);
    const char* fault;  // empty: none
  };
  int wrong = 0;
  for (const Case& c : std::vector<Case>{{reads_too_far, "heap-buffer-overflow"},
                                         {overflows, "signed integer overflow"},
                                         {hangs, "over 2 s of processor time"},
                                         {allocates_at_once, "allocation-size-too-big"},
                                         {allocates_often, "over 1 GiB of memory"},
                                         {leaks_memory, "100 byte(s) leaked"},
                                         {throws_another, "foreign exception"},
                                         {aborts, "internal error"},
                                         {breaks_a_promise, "broken promise: on purpose"},
                                         {is_sound, ""}}) {
    const Target target{"self-test", c.run, nullptr, {}};
    const auto death = Runner(target).try_one("some bytes");
    const std::string fault = death ? death->fault : "";
    const bool right = *c.fault ? fault.find(c.fault) != fault.npos : !death;
    fmt::print("{}  {}\n", right ? "seen  " : "MISSED",
               *c.fault ? c.fault : "nothing where nothing is");
    if (!right) fmt::print("  got: {}\n", fault);
    wrong += right ? 0 : 1;
  }
  return wrong == 0 ? 0 : 1;
}

}  // namespace
}  // namespace millrace::fuzz

int main(int argc, char** argv) {
  using namespace millrace::fuzz;
  try {
    const Options options = read_options({argv + 1, argv + argc});
    if (options.list) {
      for (const Target& target : targets()) fmt::print("{}\n", target.name);
      return 0;
    }
    if (options.self_test) return self_test();
    const Target* target = find_target(options.target);
    if (target == nullptr) {
      fmt::print(stderr, "millrace_fuzz: no target `{}`; --list names them\n", options.target);
      return 2;
    }
    return options.files.empty() ? fuzz(*target, options) : replay(*target, options);
  } catch (const millrace::Error& error) {
    fmt::print(stderr, "{}\n", error.what());
    return 1;
  }
}
