#include "doctor/run_view.h"

#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "doctor/terminal_plot.h"

namespace millrace {
namespace {

RecordedRun sample_run() {
  RecordedRun run;
  run.folder = "runs/n/i";
  run.id = "i";
  run.name = "n";
  run.status = run.state = "running";
  run.machine = "a machine";
  run.total = 100;
  run.parameters = 1'200'000;
  run.config = {{"model.type", "gpt"}};
  for (int i = 1; i <= 20; ++i) {
    TrainPoint p{i * 2, 1000.0 + i, 1.0 * i, 4.0 / i, 1000, 0.5, {}};
    p.shares[static_cast<size_t>(Owner::forward)] = 0.75;
    p.shares[static_cast<size_t>(Owner::input_wait)] = 0.25;
    run.train.push_back(p);
  }
  run.evals = {{20, 1.5}, {40, 1.25}};
  run.latest = {{"device/power_w", 300.0}, {"device/clock_mhz", 1500.0}};
  for (int i = 0; i < 50; ++i)
    run.log.push_back(fmt::format("2026-11-16T21:37:21+0000  line {}", i));
  return run;
}

std::string joined(const std::vector<std::string>& lines) {
  std::string text;
  for (const std::string& line : lines) text += line + "\n";
  return text;
}

TEST(RunViewTest, SaysWhatThereIs) {
  const std::string text = joined(run_view(sample_run(), {110, 45, false, 1020}));
  for (const char* word :
       {"n/i", "● running", "gpt 1.2 M parameters", "a machine", "40 / 100 updates", "30.0 s left",
        "loss (log) 0.2000", "validation 1.2500", "throughput 1.0 k tok/s",
        "time of an update 500 ms", "forward      75.0 %", "input_wait   25.0 %", "300 W",
        "1500 MHz", "21:37:21  line 49"})
    EXPECT_NE(text.find(word), std::string::npos) << word << "\nin\n" << text;
  EXPECT_EQ(text.find('\033'), std::string::npos);
  EXPECT_EQ(text.find("silent"), std::string::npos);
}

TEST(RunViewTest, SilenceIsSaid) {
  EXPECT_NE(joined(run_view(sample_run(), {110, 45, false, 1100})).find("silent for"),
            std::string::npos);
}

TEST(RunViewTest, FitsAnyTerminal) {
  RecordedRun hostile = sample_run();
  hostile.name = std::string(500, 'x');
  hostile.train[3].loss = NAN;
  hostile.train[4].tokens_per_second = 1e300;
  hostile.train[5].step_seconds = 1e300;
  hostile.train[6].elapsed = INFINITY;
  hostile.latest["device/memory_bytes"] = -1e300;
  hostile.notes = {"no run.json", "damaged"};
  for (const RecordedRun& run : {sample_run(), hostile, RecordedRun()})
    for (const int columns : {20, 50, 80, 90, 110, 250})
      for (const int rows : {1, 5, 12, 24, 40, 100}) {
        const auto lines = run_view(run, {columns, rows, false, 1e300});
        EXPECT_LE(lines.size(), static_cast<size_t>(rows));
        for (const std::string& line : lines) EXPECT_LE(columns_of(line), columns) << line;
      }
}

TEST(RunViewTest, Json) {
  const auto json = run_json(sample_run());
  EXPECT_EQ(json["state"], "running");
  EXPECT_EQ(json["step"], 40);
  EXPECT_DOUBLE_EQ(json["time_ms"]["input_wait"], 125);
  EXPECT_EQ(json["train"].size(), 20u);
  EXPECT_TRUE(run_json(RecordedRun())["seconds_left"].is_null());
}

TEST(TimeBudgetTest, WindowsCountByTheirUpdates) {
  RecordedRun run;
  run.train = {{1, 0, 0, 0, 0, 1.0, {}}, {4, 0, 0, 0, 0, 3.0, {}}, {5, 0, 0, 0, 0, NAN, {}}};
  EXPECT_DOUBLE_EQ(time_budget(run, 0).total, (1 + 3 * 3.0) / 4);
  EXPECT_EQ(time_budget(run, 0).updates, 4);
  EXPECT_EQ(time_budget(run, 0).windows, 2);
  EXPECT_EQ(time_budget(run, 3).windows, 0);
}

}  // namespace
}  // namespace millrace
