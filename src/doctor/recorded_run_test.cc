#include "doctor/recorded_run.h"

#include <gtest/gtest.h>

#include <cmath>
#include <fstream>

namespace millrace {
namespace {

class RecordedRunTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string name = testing::TempDir() + "millrace-recorded-XXXXXX";
    ASSERT_NE(mkdtemp(name.data()), nullptr);
    folder_ = name;
    put("run.json", R"({"id":"i","name":"n","status":"done","step":4,"total":8,"parameters":12})");
    put("config.resolved.yaml",
        "model:\n  type: gpt  # default\n  sizes: [[1, 2], [3]]\nseed: 1\n");
    put("metrics.jsonl", "{\"type\":\"meta\",\"schema\":1}\n" + train(2, 3.5) + train(4, 3.0) +
                             R"({"type":"eval","step":4,"eval/loss":3.25})"
                             "\n");
    put("train.log", "one\ntwo\n");
  }
  void TearDown() override { fs::remove_all(folder_); }
  void put(const char* file, const std::string& text, std::ios::openmode mode = std::ios::trunc) {
    std::ofstream(folder_ / file, std::ios::binary | mode) << text;
  }
  static std::string train(int step, double loss) {
    return fmt::format(
        R"({{"type":"train","step":{},"time":1000.0,"elapsed_s":{},"train/loss":{},"time/step":0.5,"time/forward":0.25}})"
        "\n",
        step, step, loss);
  }
  fs::path folder_;
};

TEST_F(RecordedRunTest, AFinishedRun) {
  RunReader reader(folder_);
  const RecordedRun& run = reader.read();
  EXPECT_EQ(run.state, "finished");
  EXPECT_EQ(run.updates(), 4);
  EXPECT_EQ(run.parameters, 12);
  EXPECT_EQ(run.config.at("model.type"), "gpt");
  EXPECT_EQ(run.config.at("model.sizes"), "[[1, 2], [3]]");
  ASSERT_EQ(run.train.size(), 2u);
  EXPECT_EQ(run.train[1].loss, 3.0);
  EXPECT_EQ(run.train[1].shares[static_cast<size_t>(Owner::forward)], 0.25);
  ASSERT_EQ(run.evals.size(), 1u);
  EXPECT_EQ(run.evals[0].loss, 3.25);
  EXPECT_EQ(run.log, (std::vector<std::string>{"one", "two"}));
  EXPECT_TRUE(run.notes.empty()) << run.notes[0];
}

TEST_F(RecordedRunTest, ReadsOnWhereItStood) {
  RunReader reader(folder_);
  reader.read();
  const std::string line = train(6, 2.5);
  put("metrics.jsonl", line.substr(0, 20), std::ios::app);
  EXPECT_EQ(reader.read().train.size(), 2u);
  put("metrics.jsonl", line.substr(20), std::ios::app);
  EXPECT_EQ(reader.read().train.size(), 3u);
  EXPECT_EQ(reader.read().train[2].loss, 2.5);
}

TEST_F(RecordedRunTest, AResumedRunCutsItsMetrics) {
  RunReader reader(folder_);
  reader.read();
  put("metrics.jsonl", train(2, 7));
  const RecordedRun& run = reader.read();
  ASSERT_EQ(run.train.size(), 1u);
  EXPECT_EQ(run.train[0].loss, 7);
  EXPECT_TRUE(run.evals.empty());
}

TEST_F(RecordedRunTest, NobodyTrainsThere) {
  put("run.json", R"({"status":"running","step":0,"total":8})");
  put("lock", "process 1");
  RunReader reader(folder_);
  EXPECT_EQ(reader.read().state, "crashed");
  EXPECT_EQ(reader.read().updates(), 4);  // from the metrics
  LockFile lock;
  std::string owner;
  ASSERT_TRUE(lock.take(folder_ / "lock", "me", &owner));
  EXPECT_EQ(reader.read().state, "running");
  ASSERT_TRUE(reader.read().seconds_left());
  EXPECT_DOUBLE_EQ(*reader.read().seconds_left(), 4);  // a second an update
}

TEST_F(RecordedRunTest, DamageIsLeftOut) {
  put("metrics.jsonl",
      "{\"type\":\"meta\",\"schema\":7}\n\xff\xfe\n[1]\n{\"type\":\"train\",\"step\":1e300,\"train/"
      "loss\":null,\"time/step\":1e999}\n" +
          train(6, 2.5) + "{\"type\":\"tr",
      std::ios::trunc);
  put("run.json", "{\"status\": ");
  put("config.resolved.yaml", "a: [\n");
  fs::remove(folder_ / "train.log");
  fs::create_directory(folder_ / "train.log");
  RunReader reader(folder_);
  const RecordedRun& run = reader.read();
  EXPECT_EQ(run.state, "unknown");
  ASSERT_EQ(run.train.size(), 1u);
  EXPECT_EQ(run.train[0].step, 6);
  std::string notes;
  for (const std::string& note : run.notes) notes += note + "\n";
  for (const char* word : {"run.json: not a JSON object", "config.resolved.yaml", "no train.log",
                           "newer version (schema 7", "3 damaged lines", "cut off"})
    EXPECT_NE(notes.find(word), std::string::npos) << word << "\nin\n" << notes;
}

TEST_F(RecordedRunTest, NumbersThatAreNone) {
  const MetricLine line = parse_metric_line(
      R"({"type":5,"step":-3,"time":"x","train/loss":null,"a/b":[1],"train/c":2})", "m");
  EXPECT_EQ(line.type, "");
  EXPECT_EQ(line.step, 0);
  EXPECT_TRUE(std::isnan(line.time));
  EXPECT_EQ(line.values.size(), 1u);
  EXPECT_TRUE(std::isnan(line.value("train/loss")));
  EXPECT_EQ(line.value("train/c"), 2);
}

TEST(LastLinesTest, FitForATerminal) {
  EXPECT_EQ(last_lines("a\n\033[31mb\nc", 2), (std::vector<std::string>{"?[31mb", "c"}));
  EXPECT_TRUE(last_lines("", 3).empty());
}

}  // namespace
}  // namespace millrace
