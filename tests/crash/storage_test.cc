// Checkpoints on disks that fail, lose power, flip bits or cut files short.
#include <gtest/gtest.h>

#include <set>

#include "core/error.h"
#include "tests/crash/faulty_disk.h"
#include "tests/crash/record.h"
#include "tests/graph/tiny_model.h"
#include "train/checkpoint.h"

namespace millrace {
namespace {

class StorageTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string name = testing::TempDir() + "millrace-storage-XXXXXX";
    ASSERT_NE(mkdtemp(name.data()), nullptr);
    folder_ = name;
  }
  void TearDown() override { fs::remove_all(folder_); }

  // Every number of the state of step n is n.
  CheckpointContent content(int64_t step) const {
    CheckpointContent s;
    for (const Parameter& p : tiny_.model->parameters())
      for (const char* slot : {"", "m.", "v."})
        s.tensors[slot + p.name] = {p.shape, [step](int64_t, std::span<float> out) {
                                      std::fill(out.begin(), out.end(), static_cast<float>(step));
                                    }};
    s.texts["config.json"] = tiny_.model->external_config();
    s.texts["trainer_state.json"] = std::to_string(step);
    s.manifest.version = "test";
    s.manifest.step = step;
    s.manifest.plan = "plan";
    return s;
  }
  // The folder holds the state of `step` and nothing of another.
  static void expect_state(const FoundCheckpoint& found, int64_t step) {
    EXPECT_EQ(found.manifest.step, step);
    EXPECT_EQ(read_file(found.folder / "trainer_state.json"), std::to_string(step));
    for (const char* name : {"model.safetensors", "optimizer.safetensors"}) {
      const SafetensorsFile file(found.folder / name);
      for (const auto& entry : file.entries())
        for (const float v : file.to_f32(entry)) ASSERT_EQ(v, static_cast<float>(step));
    }
  }

  fs::path folder_;
  TinyModel tiny_{"d_model: 8, num_layers: 1, num_heads: 1", {1, 4}};
  std::mt19937_64 random_{7};
};

TEST_F(StorageTest, EveryCallOfACommitRefused) {
  int64_t refusals = 0, calls_of_a_commit = 0;
  for (const int error : {ENOSPC, EIO, EDQUOT, EROFS, 0}) {
    for (int64_t n = 0;; ++n) {
      const fs::path place = folder_ / fmt::format("{}-{}", error, n);
      const CheckpointStore store(place);
      store.commit(content(1), *tiny_.model);
      RefusingFiles files(n, error);
      bool failed = false;
      {
        const WithFileSystem faulty(files);
        try {
          store.commit(content(2), *tiny_.model);
        } catch (const Error& e) {
          failed = true;
          EXPECT_NE(std::string(e.what()).find("checkpoint-2 was not saved"), std::string::npos);
          EXPECT_NE(e.fields().expected.find("bytes"), std::string::npos);
          EXPECT_FALSE(e.fields().got.empty()) << "how much is free";
        }
      }
      if (!files.refused()) {
        calls_of_a_commit = n;
        fs::remove_all(place);
        break;
      }
      ++refusals;
      EXPECT_FALSE(error == 0 && failed) << "a short write is no failure, call " << n;
      std::string damaged;
      const auto newest = store.newest([&](const std::string& text) { damaged += text; });
      ASSERT_TRUE(newest) << "call " << n;
      // The last good one, or the new one when it was whole before the call that failed.
      expect_state(*newest, newest->manifest.step == 2 ? 2 : 1);
      if (!failed) {
        EXPECT_EQ(newest->manifest.step, 2) << "call " << n;
      }
      EXPECT_EQ(damaged, "");
      // The next interval tries again and succeeds; nothing half-made stays behind.
      store.commit(content(3), *tiny_.model);
      store.sweep();
      expect_state(*store.newest([](const std::string&) {}), 3);
      for (const auto& entry : fs::directory_iterator(place))
        EXPECT_TRUE(entry.path().filename().string().starts_with("checkpoint-")) << entry.path();
      fs::remove_all(place);
    }
  }
  EXPECT_GT(calls_of_a_commit, 20);
  record(
      "every write, fsync, rename and other call of a commit refused once (no space, I/O error, "
      "quota, read-only) or cut short: last good state intact, message with the bytes needed, the "
      "next save succeeds",
      refusals,
      fmt::format("{} refusals over {} calls, all survived", refusals, calls_of_a_commit));
}

TEST_F(StorageTest, PowerCuts) {
  const int goal = full_counts() ? 10'000 : 1'000;
  int cuts = 0, newer = 0;
  for (; cuts < goal && !HasFailure(); ++cuts) {
    const fs::path place = folder_ / "disk", after = folder_ / "after";
    fs::create_directories(place);
    PowerCutDisk disk(place, static_cast<int64_t>(random_() % 130), random_);
    int64_t acknowledged = 0;
    try {
      const WithFileSystem faulty(disk);
      const CheckpointStore store(place / "run" / "checkpoints");
      for (int64_t step = 1; step <= 4; ++step) {
        store.commit(content(step), *tiny_.model);
        acknowledged = step;
        store.retain(2, 0, "", false);
      }
    } catch (const PowerOff&) {
    }
    disk.survivors(after);
    const CheckpointStore store(after / "run" / "checkpoints");
    if (fs::exists(store.folder())) store.sweep();
    const auto newest = store.newest([](const std::string&) {});
    if (acknowledged > 0) {
      ASSERT_TRUE(newest) << "cut " << cuts << ": nothing left of checkpoint " << acknowledged;
      EXPECT_GE(newest->manifest.step, acknowledged) << "cut " << cuts;
    }
    if (newest) {
      EXPECT_LE(newest->manifest.step, acknowledged + 1);
      newer += newest->manifest.step > acknowledged;
      expect_state(*newest, newest->manifest.step);
    }
    fs::remove_all(place);
    fs::remove_all(after);
  }
  record(
      "simulated power cut (unflushed writes dropped, torn, reordered; unflushed renames undone): "
      "the last acknowledged state or the one being committed, never a mixture",
      cuts, fmt::format("{} cuts, {} of them kept the checkpoint in the making", cuts, newer));
}

TEST_F(StorageTest, BitFlipsAndTruncationsAreNoticed) {
  const CheckpointStore store(folder_);
  store.commit(content(1), *tiny_.model);
  store.commit(content(2), *tiny_.model);
  const fs::path victim = folder_ / "checkpoint-2";
  std::vector<fs::path> files;
  for (const auto& entry : fs::directory_iterator(victim)) files.push_back(entry.path());
  std::sort(files.begin(), files.end());
  ASSERT_EQ(files.size(), 5u);
  auto previous_is_used = [&](const std::string& what) {
    std::string said;
    const auto newest = store.newest([&](const std::string& text) { said += text; });
    ASSERT_TRUE(newest) << what;
    ASSERT_EQ(newest->manifest.step, 1) << what << " was not noticed";
    EXPECT_NE(said.find("checkpoint-2 cannot be used"), std::string::npos) << what;
  };
  int64_t flips = 0, cuts = 0;
  for (; flips < 10'000 && !HasFailure(); ++flips) {
    const fs::path& file = files[static_cast<size_t>(flips) % files.size()];
    const std::string good = read_file(file);
    std::string bad = good;
    const size_t bit = random_() % (bad.size() * 8);
    bad[bit / 8] = static_cast<char>(bad[bit / 8] ^ (1 << bit % 8));
    std::ofstream(file, std::ios::binary) << bad;
    previous_is_used(fmt::format("bit {} of {}", bit, file.string()));
    std::ofstream(file, std::ios::binary) << good;
  }
  for (; cuts < 2'000 && !HasFailure(); ++cuts) {
    const fs::path& file = files[static_cast<size_t>(cuts) % files.size()];
    const std::string good = read_file(file);
    fs::resize_file(file, random_() % good.size());
    previous_is_used("a cut of " + file.string());
    std::ofstream(file, std::ios::binary) << good;
  }
  // Missing and swapped files, too.
  for (const fs::path& file : files) {
    const std::string good = read_file(file);
    fs::remove(file);
    previous_is_used("without " + file.string());
    std::ofstream(file, std::ios::binary) << read_file(folder_ / "checkpoint-1" / file.filename());
    if (file.filename() != "config.json")  // the same in both
      previous_is_used("another step's " + file.string());
    std::ofstream(file, std::ios::binary) << good;
  }
  EXPECT_EQ(store.newest([](const std::string&) {})->manifest.step, 2);
  record(
      "single-bit flips over all files of a checkpoint: noticed before the first step, the "
      "previous "
      "good checkpoint used and said so",
      flips, fmt::format("{} of {} noticed", flips, flips));
  record("truncations over all files of a checkpoint: the same", cuts,
         fmt::format("{} of {} noticed", cuts, cuts));
}

TEST_F(StorageTest, RetentionKeepsTheNewestAndTheBest) {
  const CheckpointStore store(folder_);
  const std::map<int64_t, double> loss = {{1, 3.0}, {2, 1.0}, {3, 2.0}, {4, 1.5}, {5, 2.5}};
  for (const auto& [step, value] : loss) {
    CheckpointContent s = content(step);
    s.manifest.metric_name = "eval/loss";
    s.manifest.metric = value;
    store.commit(s, *tiny_.model);
    store.retain(2, 1, "eval/loss", false);
  }
  std::set<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder_))
    names.insert(entry.path().filename().string());
  EXPECT_EQ(names, (std::set<std::string>{"checkpoint-2", "checkpoint-4", "checkpoint-5"}));
  EXPECT_EQ(store.best("eval/loss", false)->manifest.step, 2);
  EXPECT_EQ(store.best("eval/loss", true)->manifest.step, 5);
  EXPECT_FALSE(store.best("eval/bleu", true));
}

TEST_F(StorageTest, SweepTidiesUpAfterADeadWriter) {
  const CheckpointStore store(folder_);
  store.commit(content(1), *tiny_.model);
  store.commit(content(2), *tiny_.model);
  // Died while staging 3, removing an old one, and replacing 2.
  fs::create_directories(folder_ / ".tmp-3");
  fs::create_directories(folder_ / ".del-checkpoint-0");
  fs::rename(folder_ / "checkpoint-2", folder_ / ".old-2");
  store.sweep();
  expect_state(*store.newest([](const std::string&) {}), 2);
  EXPECT_EQ(std::distance(fs::directory_iterator(folder_), {}), 2);
  // Replaced already, the old one not yet removed.
  fs::create_directories(folder_ / ".old-2");
  store.sweep();
  expect_state(*store.newest([](const std::string&) {}), 2);
  EXPECT_EQ(std::distance(fs::directory_iterator(folder_), {}), 2);
}

}  // namespace
}  // namespace millrace
