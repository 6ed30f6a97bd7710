// `millrace profile` as a user runs it: the budget of an update closes, what comes seldom is
// counted at its pace, and the trace holds what the table says.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "io/byte_stream.h"
#include "tests/program.h"

namespace millrace {
namespace {

class ProfileCommand : public testing::Test {
 protected:
  void SetUp() override {
    folder_ =
        std::filesystem::temp_directory_path() / ("millrace-profile-" + std::to_string(getpid()));
    std::filesystem::create_directories(folder_);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  nlohmann::json profile(const std::string& words) { return run("profile", "--steps 24 " + words); }
  nlohmann::json run(const std::string& name, const std::string& words) {
    const std::string command = fmt::format(
        "MILLRACE_CACHE={0}/cache {1} {3} --json run_name=p runs_folder={0}/runs "
        "device=cpu model.type=gpt "
        "model.d_model=64 model.num_layers=2 model.num_heads=2 training.batch_size=8 "
        "training.max_length=64 "
        "training.max_steps=1000 training.max_eval_batches=4 training.eval_context=16 {2} > "
        "{0}/out.json 2> {0}/err.txt",
        folder_.string(), program_under_test(), words, name);
    EXPECT_EQ(std::system(command.c_str()), 0) << text("err.txt");
    return nlohmann::json::parse(text("out.json"));
  }
  std::string text(const std::string& name) const {
    std::ifstream file(folder_ / name);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  std::filesystem::path folder_;
};

TEST_F(ProfileCommand, TheBudgetOfAnUpdateCloses) {
  const auto p = profile("training.eval_every=500");
  double all = 0, seldom = 0;
  for (const auto& [owner, seconds] : p.at("budget_seconds").items()) {
    EXPECT_GE(seconds.get<double>(), 0) << owner;
    all += seconds.get<double>();
    if (owner == "eval" || owner == "checkpoint") seldom += seconds.get<double>();
  }
  EXPECT_NEAR(all, p.at("seconds_with_occasions").get<double>(), 1e-9);
  const double update = p.at("update_seconds").at("mean");
  // The clock that times updates is not the ledger's.
  EXPECT_NEAR(all - seldom, update, 0.02 * update);
  EXPECT_LE(p.at("budget_seconds").at("residual").get<double>(), 0.02 * all);
  EXPECT_EQ(p.at("places_per_update"), 8 * 64);
  EXPECT_EQ(p.at("useful_share"), 1);
  const double undisturbed = all - update + p.at("update_seconds").at("undisturbed").get<double>();
  EXPECT_NEAR(p.at("useful_tokens_per_second").get<double>(), 8 * 64 / undisturbed,
              1e-6 * 8 * 64 / undisturbed);
  double components = 0, ops = 0;
  for (const auto& row : p.at("components")) components += row.at("seconds").get<double>();
  for (const auto& row : p.at("ops")) ops += row.at("seconds").get<double>();
  const auto& budget = p.at("budget_seconds");
  const double nodes = budget.at("forward").get<double>() + budget.at("backward").get<double>() +
                       budget.at("optimizer").get<double>();
  EXPECT_NEAR(components, nodes, 1e-3 * nodes);
  EXPECT_NEAR(ops, nodes, 1e-3 * nodes);
  double kernels = 0, times = 0;
  for (const auto& row : p.at("kernels")) {
    kernels += row.at("seconds").get<double>();
    times += row.at("times").get<double>();
  }
  EXPECT_NEAR(kernels, nodes, 1e-3 * nodes);
  EXPECT_GT(times, 40) << "two layers, there and back";
  for (const auto& row : p.at("ops"))
    EXPECT_LE(row.at("limit_seconds").get<double>(), 1.05 * row.at("seconds").get<double>())
        << row.at("name") << " is faster than the ceiling";
}

TEST_F(ProfileCommand, SeldomAndOftenAreCountedAtTheirPace) {
  for (const int every : {500, 2}) {
    const auto p = profile(fmt::format("training.eval_every={0} sample.every={0}", every));
    for (const auto& [occasion, owner] : {std::pair{"validation", "eval"}, {"sample", "sample"}}) {
      const double each = p.at(occasion).at("seconds");
      EXPECT_GT(each, 0);
      EXPECT_NEAR(p.at("budget_seconds").at(owner).get<double>(), each / every, 1e-9) << owner;
    }
  }
  EXPECT_EQ(profile("").at("budget_seconds").at("sample"), 0) << "at the end only";
}

// A large validation set is measured in part: what all of it takes follows.
TEST_F(ProfileCommand, AllOfValidationIsKnownByAPart) {
  auto seconds = [&](int batches) {
    return profile(fmt::format("training.max_eval_batches={} training.eval_context=0", batches))
        .at("validation")
        .at("seconds")
        .get<double>();
  };
  const double part = seconds(24), all = seconds(240);
  EXPECT_GT(all, 5 * part);
  EXPECT_LT(all, 20 * part);
}

TEST_F(ProfileCommand, TheTraceHoldsEveryNodeOfTheLastUpdates) {
  const auto p = profile("data.num_workers=1");
  const std::filesystem::path run = p.at("folder").get<std::string>();
  EXPECT_FALSE(std::filesystem::exists(run / "checkpoints"));
  std::ifstream file(run / "timeline.svg");
  const std::string picture{std::istreambuf_iterator<char>(file), {}};
  EXPECT_TRUE(picture.starts_with("<svg") && picture.ends_with("</svg>\n"));
  std::string unpacked;
  append_unpacked_file(run / "trace.json.gz", unpacked);
  const auto trace = nlohmann::json::parse(unpacked);
  std::map<int, std::string> lanes;
  std::map<std::string, int64_t> matmuls;
  std::map<int, double> end;
  for (const auto& e : trace.at("traceEvents")) {
    const int tid = e.at("tid");
    if (e.at("name") == "thread_name") lanes[tid] = e.at("args").at("name");
    if (e.at("ph") != "X") continue;
    // Perfetto drops spans of a thread that overlap.
    EXPECT_GE(e.at("ts").get<double>(), end[tid] - 1e-3) << lanes[tid];
    end[tid] = e.at("ts").get<double>() + e.at("dur").get<double>();
    if (e.at("name") == "matmul") ++matmuls[lanes[tid]];
  }
  int64_t nodes = 0;
  for (const auto& row : p.at("ops"))
    if (row.at("name") == "matmul") nodes = row.at("nodes");
  EXPECT_EQ(matmuls, (std::map<std::string, int64_t>{{"compute", 10 * nodes}}));
  std::vector<std::string> names;
  for (const auto& [tid, name] : lanes) names.push_back(name);
  std::sort(names.begin(), names.end());
  EXPECT_EQ(names, (std::vector<std::string>{"compute", "host", "loader 1"}));
}

// What a profile measures, the next one knows, and `plan` predicts with.
TEST_F(ProfileCommand, WhatWasMeasuredIsRemembered) {
  const auto cold = run("plan", "");
  EXPECT_GT(cold.at("time").at("least_seconds").get<double>(), 0);
  EXPECT_TRUE(cold.at("time").at("expected_seconds").is_null());
  const auto measured = profile("");
  const auto time = run("plan", "").at("time");
  EXPECT_EQ(time.at("ceiling").at("flops_per_second"),
            measured.at("ceiling").at("flops_per_second"));
  EXPECT_TRUE(time.at("watts").is_null() && time.at("run_joules").is_null());
  const double expected = time.at("expected_seconds"),
               seconds = measured.at("update_seconds").at("mean");
  EXPECT_EQ(time.at("unknown_seconds"), 0);
  EXPECT_NEAR(time.at("run_seconds").get<double>(), 1000 * expected, 1e-6 * expected);
  // The same config: its nodes' times, without what lies between them, which on a busy machine is
  // much.
  double nodes = 0;
  for (const auto& row : measured.at("ops")) nodes += row.at("seconds").get<double>();
  EXPECT_GT(expected, 0.9 * nodes);
  EXPECT_LT(expected, 1.1 * seconds);
  // Twice the batch, by another run of the same op cards.
  const double twice =
      run("plan", "training.batch_size=16").at("time").at("expected_seconds").get<double>();
  EXPECT_GT(twice, 1.3 * expected);
  EXPECT_LT(twice, 3 * expected);
  // A file that is damaged costs measuring again.
  for (const auto& file : std::filesystem::directory_iterator(folder_ / "cache" / "machines"))
    std::ofstream(file.path()) << "{";
  (void)profile("");
  EXPECT_NE(text("err.txt").find("is not taken"), std::string::npos) << text("err.txt");
}

}  // namespace
}  // namespace millrace
