// The program as it is killed, stopped and started again: no step beyond the last acknowledged
// checkpoint is lost, and what comes out in the end is bit for bit what an uninterrupted run gives.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>
#include <sstream>
#include <thread>

#include "core/clock.h"
#include "core/file.h"
#include "io/safetensors.h"
#include "tests/crash/record.h"
#include "tests/model/small_family.h"
#include "tests/parity/cuda_device.h"
#include "tests/program.h"
#include "train/checkpoint.h"
#include "train/run_folder.h"

namespace millrace {
namespace {

using Json = nlohmann::json;

constexpr int kSteps = 36;
const char* const kConfig = R"(run_name: r
device: cpu
model: {d_model: 16, num_layers: 2, num_heads: 2, dropout: 0.1}
data: {train: builtin:grammar, grammar_chars: 6000, sampling: sequential}
training: {batch_size: 4, max_length: 24, max_steps: 36, log_interval: 2, eval_every: 5,
  max_eval_batches: 3, warmup: 4, grad_accum: 2, ema_decay: 0.9}
checkpoint: {every: 2}
sample: {length: 0}
)";

class Process {
 public:
  Process(const fs::path& folder, const std::vector<std::string>& arguments) {
    std::vector<std::string> words{program_under_test()};
    words.insert(words.end(), arguments.begin(), arguments.end());
    std::vector<char*> argv;
    for (std::string& w : words) argv.push_back(w.data());
    argv.push_back(nullptr);
    const std::string out = (folder / "out").string(), err = (folder / "err").string();
    pid_ = fork();
    if (pid_ < 0) std::abort();
    if (pid_ == 0) {
      if (chdir(folder.c_str()) != 0) _exit(99);
      const int o = open(out.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0666),
                e = open(err.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0666);
      dup2(o, 1);
      dup2(e, 2);
      execv(argv[0], argv.data());
      _exit(98);
    }
  }
  ~Process() {
    if (pid_ > 0) {
      kill(pid_, SIGKILL);
      wait();
    }
  }
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  // Never to -1, which would be every process there is.
  void signal(int number) const {
    if (pid_ > 0) kill(pid_, number);
  }
  bool running() {
    if (pid_ > 0 && waitpid(pid_, &status_, WNOHANG) == pid_) pid_ = -1;
    return pid_ > 0;
  }
  // Exit code, or minus the signal.
  int wait() {
    if (pid_ > 0) waitpid(pid_, &status_, 0);
    pid_ = -1;
    return WIFEXITED(status_) ? WEXITSTATUS(status_) : -WTERMSIG(status_);
  }
  // Has it come so far that it answers SIGTERM itself, by a thread that waits for what all block?
  // Before that the loader is at work.
  bool answers_sigterm() const {
    std::ifstream status("/proc/" + std::to_string(pid_) + "/status");
    for (std::string line; std::getline(status, line);)
      if (line.starts_with("SigBlk:"))
        return (std::stoull(line.substr(7), nullptr, 16) >> (SIGTERM - 1) & 1) != 0;
    return false;
  }

 private:
  pid_t pid_;
  int status_ = 0;
};

struct Outcome {
  std::map<std::string, std::vector<float>> tensors;
  std::vector<Json> metrics;
  friend bool operator==(const Outcome&, const Outcome&) = default;
};

// What must not depend on interruptions: weights, moments, and every metric that is not a time
// or what the system says.
Outcome outcome_of(const fs::path& run, int steps = kSteps) {
  Outcome o;
  const fs::path last = run / "checkpoints" / fmt::format("checkpoint-{}", steps);
  verify_folder(last);
  for (const char* name : {"model.safetensors", "optimizer.safetensors"}) {
    const SafetensorsFile file(last / name);
    for (const auto& entry : file.entries())
      o.tensors[std::string(name) + ":" + entry.name] = file.to_f32(entry);
  }
  std::istringstream lines(read_file(run / "metrics.jsonl"));
  for (std::string line; std::getline(lines, line);) {
    Json row = Json::parse(line), kept;
    for (const auto& [key, value] : row.items())
      if (key != "time" && key != "elapsed_s" && !key.starts_with("time/") &&
          !key.starts_with("throughput/") && key != "eval/runtime_s" &&
          !key.starts_with("device/") && key != "memory/host_rss_bytes")
        kept[key] = value;
    o.metrics.push_back(kept);
  }
  return o;
}

class CrashTest : public testing::Test {
 protected:
  virtual void write_config() { std::ofstream(folder_ / "c.yaml") << kConfig; }
  void SetUp() override {
    std::string name = testing::TempDir() + "millrace-crash-XXXXXX";
    ASSERT_NE(mkdtemp(name.data()), nullptr);
    folder_ = name;
    write_config();
    const int64_t start = now_ns();
    Process whole(folder_, {"train", "c.yaml", "runs_folder=whole"});
    ASSERT_EQ(whole.wait(), 0) << read_file(folder_ / "err");
    seconds_ = seconds_since(start);
    reference_ = outcome_of(fs::canonical(folder_ / "whole" / "latest"));
    // A second, quick run: the first measured products that are remembered now.
    const int64_t again = now_ns();
    Process twice(folder_, {"train", "c.yaml", "runs_folder=whole"});
    ASSERT_EQ(twice.wait(), 0);
    seconds_ = std::min(seconds_, seconds_since(again));
    ASSERT_TRUE(reference_ == outcome_of(fs::canonical(folder_ / "whole" / "latest")))
        << "two uninterrupted runs differ: nothing can be shown";
  }
  void TearDown() override {
    if (!HasFailure()) fs::remove_all(folder_);
  }

  std::vector<std::string> resume_words() {
    const int threads[] = {1, 2, 4}, workers[] = {0, 1, 2, 7};
    return {"train",
            "c.yaml",
            "--resume",
            "runs_folder=cut",
            fmt::format("runtime.threads={}", threads[random_() % 3]),
            fmt::format("data.num_workers={}", workers[random_() % 4])};
  }
  // The highest step the run's log has acknowledged.
  int64_t acknowledged() const {
    const auto run = RunFolder::newest(folder_ / "cut", "r");
    if (!run || !fs::exists(*run / "train.log")) return -1;
    std::istringstream lines(read_file(*run / "train.log"));
    int64_t step = -1;
    for (std::string line; std::getline(lines, line);)
      if (const size_t at = line.find("checkpoint-");
          at != line.npos && line.find("is on disk") != line.npos)
        step = std::max<int64_t>(step, std::atoll(line.c_str() + at + 11));
    return step;
  }
  void expect_acknowledged_is_there() const {
    const int64_t step = acknowledged();
    if (step < 0) return;
    const CheckpointStore store(*RunFolder::newest(folder_ / "cut", "r") / "checkpoints");
    std::string damaged;
    const auto newest = store.newest([&](const std::string& text) { damaged += text; });
    ASSERT_TRUE(newest) << "nothing can be recovered; acknowledged " << step;
    EXPECT_GE(newest->manifest.step, step) << "an acknowledged checkpoint is gone";
    EXPECT_EQ(damaged, "");
  }
  void expect_same_as_uninterrupted() {
    const Outcome cut = outcome_of(*RunFolder::newest(folder_ / "cut", "r"));
    EXPECT_TRUE(reference_.tensors == cut.tensors) << "weights or moments differ";
    EXPECT_EQ(Json(reference_.metrics), Json(cut.metrics));
    if (!HasFailure()) fs::remove_all(folder_ / "cut");
  }
  bool saving_now() const {
    std::error_code error;
    const auto run = RunFolder::newest(folder_ / "cut", "r");
    if (!run) return false;
    for (fs::directory_iterator e(*run / "checkpoints", error), end; !error && e != end;
         e.increment(error))
      if (e->path().filename().string().starts_with(".")) return true;
    return false;
  }
  struct Kills {
    int kills = 0, in_save = 0, completed = 0;
  };
  // Kills the run at random moments, `goal` times, resumes it each time, and at last lets it end.
  // With `aim` every second kill waits for a save.
  Kills kill_and_resume(int goal, bool aim) {
    Kills done;
    auto completed = [&](Process& p) {
      EXPECT_EQ(p.wait(), 0) << read_file(folder_ / "err");
      ++done.completed;
      if (!HasFailure()) expect_same_as_uninterrupted();
    };
    while (done.kills < goal && !HasFailure()) {
      Process p(folder_, resume_words());
      const double delay = uniform() * seconds_;
      const bool aimed = aim && random_() % 2 == 0;
      const int64_t start = now_ns();
      while (seconds_since(start) < delay && p.running()) sleep_seconds(0.0005);
      if (aimed)  // wait for the next save, then a moment more
        while (p.running() && !saving_now()) std::this_thread::yield();
      if (aimed && p.running()) sleep_seconds(uniform() * 0.004);
      if (!p.running()) {
        completed(p);
        continue;
      }
      p.signal(SIGKILL);
      p.wait();
      ++done.kills;
      done.in_save += saving_now();
      expect_acknowledged_is_there();
    }
    Process last(folder_, resume_words());
    completed(last);
    return done;
  }
  static void sleep_seconds(double seconds) {
    std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
  }
  double uniform() { return std::uniform_real_distribution<double>(0, 1)(random_); }

  fs::path folder_;
  Outcome reference_;
  double seconds_ = 0;  // of an uninterrupted run
  std::mt19937_64 random_{20261115};
};

// Records of many lengths; an epoch is about ten updates, so that a run goes through several and
// stops in the middle of most.
class RecordsCrashTest : public CrashTest, public testing::WithParamInterface<const char*> {
 protected:
  void write_config() override {
    std::ofstream lines(folder_ / "lines.txt");
    for (int i = 0; i < 90; ++i)
      lines << std::string(static_cast<size_t>(1 + i * 37 % 40), static_cast<char>('a' + i % 26))
            << i << "\n";
    std::string config = kConfig;
    const std::string grammar =
        "{train: builtin:grammar, grammar_chars: 6000, sampling: sequential}";
    config.replace(config.find(grammar), grammar.size(),
                   fmt::format("{{train: lines.txt, format: lines, batching: {}}}", GetParam()));
    std::ofstream(folder_ / "c.yaml") << config;
  }
};

TEST_P(RecordsCrashTest, KillMinusNineInMidEpoch) {
  const Kills done = kill_and_resume(full_counts() ? 500 : 50, /*aim=*/false);
  record(
      fmt::format("kill -9 in the middle of epochs of {}, 0, 1, 2 and 7 loader workers and threads "
                  "1, 2, 4 mixed: final weights, moments and metrics bit-equal",
                  GetParam()),
      done.kills,
      fmt::format("{} kills; {} runs completed, all bit-equal", done.kills, done.completed));
}
INSTANTIATE_TEST_SUITE_P(Batching, RecordsCrashTest, testing::Values("packing", "buckets"));

TEST_F(CrashTest, KillMinusNine) {
  const int goal = full_counts() ? 1000 : 100;
  const Kills done = kill_and_resume(goal, /*aim=*/true);
  EXPECT_GT(done.in_save, goal / 10) << "too few kills hit a save: nothing is shown about them";
  record(
      "kill -9 at random moments, half of them aimed into saving: nothing unrecoverable, nothing "
      "acknowledged lost, final weights, moments and metrics bit-equal, threads 1, 2, 4 mixed",
      done.kills,
      fmt::format("{} kills, {} with a save half done; {} runs completed in between, all bit-equal",
                  done.kills, done.in_save, done.completed));
}

struct FamilyCase {
  std::string family, precision;  // "": on the CPU
  std::string name() const { return precision.empty() ? family : family + "_cuda_" + precision; }
};
std::vector<FamilyCase> family_cases() {
  std::vector<FamilyCase> cases;
  for (const std::string& family : model_families()) {
    cases.push_back({family, ""});
    if (!test_device().backend) continue;
    for (const char* precision : {"bf16", "fp16"}) cases.push_back({family, precision});
  }
  return cases;
}

// Every family, and what validation writes where a model reads pairs.
class FamilyCrashTest : public CrashTest, public testing::WithParamInterface<FamilyCase> {
 protected:
  const std::string& family() const { return GetParam().family; }
  bool on_device() const { return !GetParam().precision.empty(); }
  std::string where() const { return on_device() ? " on CUDA in " + GetParam().precision : ""; }

  void write_config() override {
    std::string config = kConfig;
    auto replace = [&](const std::string& old, const std::string& by) {
      ASSERT_NE(config.find(old), config.npos) << old;
      config.replace(config.find(old), old.size(), by);
    };
    if (on_device()) {
      replace("device: cpu", "device: cuda");
      replace("{batch_size: 4",
              fmt::format("{{precision: {}, batch_size: 4", GetParam().precision));
    }
    replace("{d_model: 16, num_layers: 2, num_heads: 2, dropout: 0.1}",
            fmt::format("{{type: {}, {}}}", family(), small_keys(family(), 16, 0.1)));
    if (make_model(family())->takes().pairs) {
      std::ofstream sources(folder_ / "sources.txt"), targets(folder_ / "targets.txt");
      for (int i = 0; i < 120; ++i) {
        sources << "the" << (i % 3 == 0 ? " old" : "") << " number " << i << " is here\n";
        targets << "number " << i << (i % 5 == 0 ? " again" : "") << "\n";
      }
      replace("{train: builtin:grammar, grammar_chars: 6000, sampling: sequential}",
              "{train: sources.txt, train_target: targets.txt, format: lines, tokenizer: word}");
      replace("ema_decay: 0.9", "ema_decay: 0.9, eval_texts: 7, eval_beam: 2");
      replace("{every: 2}", "{every: 2, metric: eval/chrf}");
    }
    if (make_model(family())->takes().states) {
      std::ofstream paths(folder_ / "paths.txt");
      for (int frame = 0; frame < 30; ++frame)
        for (int agent = 0; agent < 40; ++agent)
          paths << 10 * frame << ' ' << agent << ' ' << 0.1 * frame * (agent % 7) << ' '
                << 0.01 * frame * frame + agent << ' ' << agent % 4 - 1 << '\n';
      replace("{train: builtin:grammar, grammar_chars: 6000, sampling: sequential}",
              "{train: paths.txt, format: trajectories, class_column: 5}");
      replace("{type: " + family(), "{classes: 3, type: " + family());
      replace("{every: 2}", "{every: 2, metric: eval/ade}");
    }
    std::ofstream(folder_ / "c.yaml") << config;
  }
};
INSTANTIATE_TEST_SUITE_P(Model, FamilyCrashTest, testing::ValuesIn(family_cases()),
                         [](const auto& tested) { return tested.param.name(); });

TEST_P(FamilyCrashTest, SaveAndReload) {
  const bool writes = std::any_of(reference_.metrics.begin(), reference_.metrics.end(),
                                  [](const Json& row) { return row.contains("eval/chrf"); });
  EXPECT_EQ(writes, make_model(family())->takes().pairs);
  const int steps = on_device() ? 6 : 1;  // a device takes long to open
  int sittings = 0, code = 0;
  do {
    std::vector<std::string> words = resume_words();
    words.push_back(fmt::format("runtime.stop_after={}", steps));
    Process p(folder_, words);
    code = p.wait();
    ++sittings;
  } while (code == 75 && sittings <= kSteps);
  ASSERT_EQ(code, 0) << read_file(folder_ / "err");
  EXPECT_EQ(sittings, kSteps / steps);
  expect_same_as_uninterrupted();
  record(fmt::format("{}{} saved and reloaded after every {}, threads 1, 2, 4 mixed: the same bits",
                     family(), where(), steps == 1 ? "step" : fmt::format("{} steps", steps)),
         sittings, fmt::format("{} sittings, bit-equal", sittings));
}

TEST_P(FamilyCrashTest, KillMinusNine) {
  const Kills done = kill_and_resume(on_device() ? 4 : full_counts() ? 200 : 20, /*aim=*/false);
  record(
      fmt::format("kill -9 of {}{} at random moments: final weights, moments and metrics bit-equal",
                  family(), where()),
      done.kills,
      fmt::format("{} kills; {} runs completed, all bit-equal", done.kills, done.completed));
}

TEST_F(CrashTest, Sigterm) {
  const int goal = full_counts() ? 500 : 50;
  int stops = 0, completed = 0;
  double slowest = 0;
  while (stops < goal && !HasFailure()) {
    Process p(folder_, resume_words());
    while (p.running() && !p.answers_sigterm()) std::this_thread::yield();
    const double delay = uniform() * seconds_;
    const int64_t start = now_ns();
    while (seconds_since(start) < delay && p.running()) sleep_seconds(0.0005);
    const int number = random_() % 2 ? SIGTERM : SIGINT;
    p.signal(number);
    const int64_t asked = now_ns();
    const int code = p.wait();
    if (code == 0) {  // it had just ended
      ++completed;
      expect_same_as_uninterrupted();
      continue;
    }
    ASSERT_EQ(code, 75) << read_file(folder_ / "err");
    ++stops;
    slowest = std::max(slowest, seconds_since(asked));
    const auto run = RunFolder::newest(folder_ / "cut", "r");
    ASSERT_TRUE(run);
    const Json json = Json::parse(read_file(*run / "run.json"));
    EXPECT_EQ(json["status"], "stopped");
    // Not one step is lost: what the run says it did is what is on disk.
    verify_folder(*run / "checkpoints" / fmt::format("checkpoint-{}", json["step"].get<int64_t>()));
  }
  Process last(folder_, resume_words());
  ASSERT_EQ(last.wait(), 0) << read_file(folder_ / "err");
  expect_same_as_uninterrupted();
  // Loading, planning, a step and a save of this model together; a busy machine gets some room.
  EXPECT_LT(slowest, 5 * seconds_ + 2);
  record(
      "SIGTERM or SIGINT at random moments, planning, validation and saving among them: saved, "
      "exit 75, no step lost, then bit-equal",
      stops,
      fmt::format("{} stops, slowest {:.2f} s after the signal; {} runs completed, bit-equal",
                  stops, slowest, completed + 1));
}

// All updates are done, the last validation is not: that is stopped, not finished.
TEST_F(CrashTest, StopInTheLastValidation) {
  auto words = [&](const char* folder) {
    return std::vector<std::string>{"train",
                                    "c.yaml",
                                    "--resume",
                                    "training.max_steps=4",
                                    "data.grammar_chars=400000",
                                    "training.max_eval_batches=0",
                                    std::string("runs_folder=") + folder};
  };
  Process whole(folder_, words("uncut"));
  ASSERT_EQ(whole.wait(), 0) << read_file(folder_ / "err");
  Process p(folder_, words("cut"));
  auto log = [&]() -> std::string {
    const auto run = RunFolder::newest(folder_ / "cut", "r");
    return run && fs::exists(*run / "train.log") ? read_file(*run / "train.log") : "";
  };
  while (p.running() && log().find("step=4/4") == std::string::npos) std::this_thread::yield();
  p.signal(SIGTERM);
  EXPECT_EQ(p.wait(), 75);
  const fs::path run = *RunFolder::newest(folder_ / "cut", "r");
  EXPECT_EQ(Json::parse(read_file(run / "run.json"))["status"], "stopped");
  EXPECT_EQ(read_file(run / "metrics.jsonl").find("eval/loss"), std::string::npos);
  Process again(folder_, words("cut"));
  ASSERT_EQ(again.wait(), 0) << read_file(folder_ / "err");
  EXPECT_TRUE(outcome_of(*RunFolder::newest(folder_ / "uncut", "r"), 4) == outcome_of(run, 4));
}

TEST_F(CrashTest, SecondSignalEndsAtOnceAndSigusr1Saves) {
  std::vector<std::string> words = resume_words();
  words.insert(words.end(), {"training.max_steps=1000000", "checkpoint.every=1000000",
                             "checkpoint.keep_best=0", "training.eval_every=1000000"});
  Process p(folder_, words);
  auto checkpoints = [&] {
    const auto run = RunFolder::newest(folder_ / "cut", "r");
    return run ? CheckpointStore(*run / "checkpoints").list().size() : 0;
  };
  while (p.running() && !RunFolder::newest(folder_ / "cut", "r")) sleep_seconds(0.01);
  sleep_seconds(0.2);
  EXPECT_EQ(checkpoints(), 0u);
  p.signal(SIGUSR1);
  for (int i = 0; i < 1000 && checkpoints() == 0; ++i) sleep_seconds(0.01);
  sleep_seconds(0.5);  // dozens of updates: one request is one checkpoint
  EXPECT_EQ(checkpoints(), 1u);
  EXPECT_TRUE(p.running());
  p.signal(SIGINT);
  p.signal(SIGINT);
  const int code = p.wait();
  EXPECT_TRUE(code == -SIGINT || code == 75) << code;  // 75: it was quicker than the second signal
  expect_acknowledged_is_there();
}

TEST_F(CrashTest, TwoProcessesOnOneRun) {
  std::vector<std::string> words = resume_words();
  words.push_back("training.max_steps=1000000");
  const int goal = full_counts() ? 50 : 5;
  double slowest = 0;
  Process first(folder_, words);
  while (first.running() && !RunFolder::newest(folder_ / "cut", "r")) sleep_seconds(0.01);
  for (int i = 0; i < goal; ++i) {
    const int64_t start = now_ns();
    Process second(folder_, words);
    EXPECT_EQ(second.wait(), 2);
    slowest = std::max(slowest, seconds_since(start));
    const std::string said = read_file(folder_ / "err");
    EXPECT_NE(said.find("another process trains in this run folder"), said.npos) << said;
    EXPECT_NE(said.find("process "), said.npos) << said;
  }
  EXPECT_TRUE(first.running());
  EXPECT_LT(slowest, 1.0);
  first.signal(SIGKILL);
  first.wait();
  // The dead owner is named and its place taken.
  std::vector<std::string> after = resume_words();
  after.push_back("training.max_steps=1000000");
  after.push_back("runtime.stop_after=1");
  Process third(folder_, after);
  EXPECT_EQ(third.wait(), 75);
  EXPECT_NE(read_file(folder_ / "err").find("taken over from process"), std::string::npos);
  record(
      "two processes on one run folder: the second is refused within a second, naming the first; "
      "a dead owner is taken over from",
      goal, fmt::format("{} refusals, slowest {:.2f} s", goal, slowest));
}

}  // namespace
}  // namespace millrace
