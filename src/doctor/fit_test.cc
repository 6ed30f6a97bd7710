#include "doctor/fit.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "core/text.h"
#include "doctor/absent_device.h"

namespace millrace {
namespace {

class FitTest : public testing::Test {
 protected:
  FitTest() {
    machine_.device = "d";
    machine_.memory_bytes = int64_t{1} << 30;
    machine_.precisions[Precision::fp32].ceiling = {1e12, 1e11};
    machine_.precisions[Precision::bf16].ceiling = {1e13, 1e11};
    backend_ = absent_device(machine_);
    model_->declare(schema_);
    schema_.load_text("model: {d_model: 32, num_layers: 4, num_heads: 2}", "test.yaml");
    model_->resolve(schema_, 100, {64, 64});
    settings_.max_length = 64;
    settings_.batch_size = 8;
    settings_.precision = "fp32";
  }
  int64_t need(int64_t batch, const Settings& settings) {
    return make_programs(*model_, settings, BatchShape{batch, 64}, *backend_).needed_bytes();
  }
  Grid grid(int64_t limit) {
    const GridColumn columns[] = {{32, model_.get(), settings_, {8, 32}},
                                  {64, model_.get(), settings_, {8, 64}}};
    const int64_t batches[] = {4, 8, 16, 32};
    Grid g = make_grid(columns, batches, limit, *backend_, machine_.find(Precision::fp32));
    g.batch = 8;
    g.length = 64;
    return g;
  }
  MachineProfile machine_;
  std::unique_ptr<Backend> backend_;
  std::unique_ptr<Model> model_ = make_model("gpt");
  Schema schema_;
  Settings settings_;
};

TEST_F(FitTest, BatchesOfTheGridSurroundTheConfigs) {
  EXPECT_EQ(grid_batches(1), (std::vector<int64_t>{1, 2, 4, 8}));
  EXPECT_EQ(grid_batches(12), (std::vector<int64_t>{1, 2, 4, 8, 12, 16, 32, 64}));
  EXPECT_EQ(grid_batches(256), (std::vector<int64_t>{16, 32, 64, 128, 256, 512, 1024, 2048}));
}

TEST_F(FitTest, CellsAreWhatARunWouldNeed) {
  const Grid g = grid(int64_t{1} << 30);
  ASSERT_EQ(g.cells.size(), 8u);
  EXPECT_EQ(g.at(1, 1).need, need(8, settings_));
  EXPECT_EQ(g.at(3, 1).need, need(32, settings_));
  for (const GridCell& c : g.cells) {
    EXPECT_TRUE(c.fits);
    EXPECT_EQ(c.saving, "");
    EXPECT_GT(c.time.least, 0);
    EXPECT_EQ(c.tokens, static_cast<double>(c.batch * c.length));
  }
  const std::string text = grid_text(g);
  for (const std::string& word :
       {std::string("tokens/s at most"), std::string("64 (now)"), std::string(">       8"),
        human_bytes(g.at(1, 1).need), std::string("99 %")})
    EXPECT_NE(text.find(word), text.npos) << word << "\nin\n" << text;
  EXPECT_EQ(grid_json(g).size(), 8u);
}

TEST_F(FitTest, WhatDoesNotFitSaysWhatTakesMost) {
  const int64_t limit = need(8, settings_);
  const Grid g = grid(limit);
  EXPECT_TRUE(g.at(1, 1).fits);
  EXPECT_FALSE(g.at(3, 1).fits);
  for (const GridCell& c : g.cells) {
    if (c.fits) {
      EXPECT_LE(c.need, limit);
    } else if (c.need > 0) {
      EXPECT_GT(c.need, limit);
      EXPECT_NE(c.limiting, "");
    }
  }
  const std::string text = grid_text(g);
  EXPECT_NE(text.find("needs "), text.npos) << text;
  EXPECT_NE(text.find("most is "), text.npos) << text;
}

TEST_F(FitTest, ChangesFitAndComeByTheirTime) {
  Settings plain = settings_;
  const int64_t as_is = need(8, plain), limit = as_is * 9 / 10;
  const BatchShape shape{8, 64};
  EXPECT_TRUE(find_changes(*model_, settings_, shape, as_is, *backend_, machine_).list.empty());
  const FitChanges changes = find_changes(*model_, settings_, shape, limit, *backend_, machine_);
  EXPECT_EQ(changes.need, as_is);
  ASSERT_GE(changes.list.size(), 3u);
  double before = 0;
  std::string all;
  for (const FitChange& c : changes.list) {
    EXPECT_LE(c.need, limit) << c.change;
    EXPECT_GE(c.time.best_known(), before) << c.change;
    before = c.time.best_known();
    all += c.change + "\n";
  }
  EXPECT_NE(all.find("training.precision=bf16"), all.npos) << all;
  EXPECT_NE(all.find("training.grad_accum=2"), all.npos) << all;
  EXPECT_NE(all.find("runtime.memory_limit="), all.npos) << all;
  const std::string text = changes_text(changes, limit);
  EXPECT_NE(text.find("the fastest first"), text.npos);
  EXPECT_EQ(changes_text(changes, as_is), "");
  // Nothing is enough.
  const FitChanges none = find_changes(*model_, settings_, shape, 1000, *backend_, machine_);
  EXPECT_TRUE(none.list.empty());
  EXPECT_NE(changes_text(none, 1000).find("neither"), std::string::npos);
}

}  // namespace
}  // namespace millrace
