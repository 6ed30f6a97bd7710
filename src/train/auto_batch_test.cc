#include "train/auto_batch.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "cpu/cpu_backend.h"
#include "cpu/gemm.h"
#include "cpu/machine.h"

namespace millrace {
namespace {

class AutoBatchTest : public testing::Test {
 protected:
  static constexpr int64_t kLength = 16, kPlenty = int64_t{1} << 40;

  AutoBatchTest() {
    cpu::gemm_set_measuring(false);
    model_->declare(schema_);
    schema_.load_text("model: {d_model: 16, num_layers: 2, num_heads: 2}", "test.yaml");
    settings_.batch_size = 32;
    settings_.max_length = kLength;
    settings_.max_steps = 10;
  }
  ~AutoBatchTest() override { cpu::gemm_set_measuring(true); }

  AutoBatch choose(int64_t limit) {
    const std::string letters = "abcdefgh";
    std::vector<int32_t> train(static_cast<size_t>(windows_ * kLength + 1)), validation(100);
    model_->resolve(schema_, static_cast<int64_t>(letters.size()), {kLength, kLength});
    DataObserver silent;
    const TrainingData data = make_training_data(
        dataset_in_memory(make_char_tokenizer(letters, {"letters"}), train, validation), settings_,
        model_->takes(), silent);
    return choose_batch(*model_, settings_, data, limit, *backend_);
  }
  // As a run with this batch is planned.
  int64_t need(int64_t batch, int64_t parts = 1) {
    Settings with = settings_;
    with.batch_size = batch;
    with.grad_accum = parts;
    return make_programs(*model_, with, BatchShape{batch, kLength}, *backend_).needed_bytes();
  }

  std::unique_ptr<Model> model_ = make_model("gpt");
  std::unique_ptr<Backend> backend_ = cpu::make_backend(cpu::best_isa());
  Schema schema_;
  Settings settings_;
  int64_t windows_ = 100'000;
};

TEST_F(AutoBatchTest, RoundNumbersOrDivisors) {
  const auto list = auto_batches(0);
  const std::vector<int64_t> first{1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256};
  EXPECT_TRUE(std::equal(first.begin(), first.end(), list.begin()));
  EXPECT_EQ(list.back(), 1 << 20);
  EXPECT_TRUE(std::is_sorted(list.begin(), list.end()));
  EXPECT_EQ(auto_batches(12), (std::vector<int64_t>{1, 2, 3, 4, 6, 12}));
  EXPECT_EQ(auto_batches(1), (std::vector<int64_t>{1}));
}

TEST_F(AutoBatchTest, TheLargestThatFits) {
  choose(kPlenty);  // resolves the model
  for (const int64_t batch : {1, 8, 24, 96}) {
    const auto list = auto_batches(0);
    const int64_t next = *std::upper_bound(list.begin(), list.end(), batch);
    SCOPED_TRACE(batch);
    EXPECT_EQ(choose(need(batch)).batch, batch) << "with exactly what it needs";
    const AutoBatch just_not = choose(need(next) - 1);
    EXPECT_EQ(just_not.batch, batch) << "with a byte too little for the next";
    EXPECT_NE(just_not.reason.find(std::to_string(next) + " would need"), std::string::npos)
        << just_not.reason;
    EXPECT_NE(just_not.reason.find("compute parts twice"), std::string::npos);
    EXPECT_EQ(choose(need(next)).batch, next);
  }
}

TEST_F(AutoBatchTest, RecomputationIsForWhereNothingElseFits) {
  choose(kPlenty);
  const int64_t limit = need(1) - 1;
  EXPECT_EQ(choose(limit).batch, 1) << "with recomputation";
  EXPECT_EQ(choose(limit).reason.find("compute parts twice"), std::string::npos);
  const AutoBatch none = choose(1000);
  EXPECT_EQ(none.batch, 1);
  EXPECT_NE(none.reason.find("not even it fits"), std::string::npos) << none.reason;
}

TEST_F(AutoBatchTest, AnEpochKeepsItsUpdates) {
  windows_ = 50 * 64;
  EXPECT_EQ(choose(kPlenty).batch, 64);
  EXPECT_EQ(choose(kPlenty).reason,
            "with 96 sequences an update an epoch would be 33 updates, fewer than 50");
  windows_ = 50 * 64 - 1;
  EXPECT_EQ(choose(kPlenty).batch, 48);
  settings_.grad_accum = 4;  // an update is so many batches
  EXPECT_EQ(choose(kPlenty).batch, 8);
  windows_ = 3;
  EXPECT_EQ(choose(kPlenty).batch, 1) << "there is nothing smaller";
}

TEST_F(AutoBatchTest, ARunKeepsItsUpdates) {
  settings_.max_steps = 0;
  settings_.num_epochs = 3;
  windows_ = 32'000;
  EXPECT_EQ(choose(kPlenty).batch, 96);
  EXPECT_EQ(choose(kPlenty).reason,
            "with 128 sequences an update the run would be 750 updates, fewer than 1,000");
  settings_.max_tokens = 1000 * kLength * 24;
  EXPECT_EQ(choose(kPlenty).batch, 24);
  settings_.max_steps = 20;  // asked for
  EXPECT_EQ(choose(kPlenty).batch, 512) << "an epoch of 62";
}

TEST_F(AutoBatchTest, AnEffectiveBatchIsMet) {
  settings_.effective_batch = 60;
  windows_ = 100;  // too few for 50 updates, but it was asked for
  EXPECT_EQ(choose(kPlenty).batch, 60);
  EXPECT_EQ(choose(kPlenty).reason, "training.effective_batch is 60");
  EXPECT_EQ(choose(need(15, 4)).batch, 15);
  EXPECT_EQ(choose(need(15, 4) - 1).batch, 12);
}

}  // namespace
}  // namespace millrace
