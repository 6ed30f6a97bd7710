// Whole trainings of every family that reads pairs: what it writes in the end is right, and what
// validation writes on the way changes nothing.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <cstdlib>

#include "core/rng.h"
#include "cpu/cpu_backend.h"
#include "cpu/gemm.h"
#include "cpu/machine.h"
#include "cpu/parallel.h"
#include "tests/model/small_family.h"
#include "train/program.h"
#include "train/text_evaluation.h"
#include "train/trainer.h"

namespace millrace {
namespace {

// Every evaluation, as it is told.
class Listener : public TrainObserver {
 public:
  void evaluated(int64_t step, const Metrics& metrics, bool best) override {
    told.push_back(metrics);
    if (best) best_step = step;
  }
  std::vector<Metrics> told;
  int64_t best_step = 0;
};

class ConvergeOnPairs : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    cpu::gemm_set_measuring(false);  // the same tiles on every machine
    cpu::set_threads(1);
    folder_ = fs::path(testing::TempDir()) / fmt::format("millrace-pairs-{}", getpid());
    create_folders(folder_);
    setenv("MILLRACE_CACHE", (folder_ / "cache").c_str(), 1);
  }
  void TearDown() override {
    unsetenv("MILLRACE_CACHE");
    fs::remove_all(folder_);
    cpu::gemm_set_measuring(true);
    cpu::set_threads(0);
  }

  // `make` gives source and target of a pair; a tenth of them is for validation.
  Settings run_on(int64_t pairs, const std::function<void(std::string&, std::string&)>& make,
                  int64_t steps) const {
    std::string sources, targets;
    for (int64_t i = 0; i < pairs; ++i) {
      std::string source, target;
      make(source, target);
      sources += source + "\n";
      targets += target + "\n";
    }
    write_file(folder_ / "source.txt", sources);
    write_file(folder_ / "target.txt", targets);
    Settings s;
    s.data.train = {(folder_ / "source.txt").string()};
    s.data.train_target = {(folder_ / "target.txt").string()};
    s.data.format = "lines";
    s.data.tokenizer = "word";
    s.data.vocab_size = 1000;
    s.batch_size = 32;
    s.max_length = s.max_source_length = 12;
    s.max_steps = steps;
    s.eval_every = {{static_cast<double>(steps)}};
    s.eval_texts = 100;
    s.optimizer.learning_rate = 1e-2;
    s.optimizer.weight_decay = 0;
    s.schedule.warmup = {20};
    return s;
  }
  // Words of the alphabet, of which sources are made.
  static std::string letters(RandomStream& random, uint64_t least, uint64_t most) {
    std::string text;
    for (uint64_t n = least + random.below(most - least + 1); n > 0; --n)
      text +=
          fmt::format("{}{}", text.empty() ? "" : " ", static_cast<char>('a' + random.below(12)));
    return text;
  }
  Settings reversing(int64_t steps) const {
    RandomStream random(7, RandomUse::test);
    return run_on(
        2000,
        [&](std::string& source, std::string& target) {
          source = letters(random, 2, 5);
          target = {source.rbegin(), source.rend()};
        },
        steps);
  }

  TrainResult train_model(const Settings& s, RunFolder* run = nullptr) {
    DataObserver silent;
    Dataset set = open_dataset(data_options(s), silent);
    model_ = make_model(GetParam());
    Schema schema;
    model_->declare(schema);
    schema.load_text("model: {" + small_keys(GetParam(), 32) + "}", "model keys");
    schema.finish();
    model_->resolve(schema, set.vocab_size, {s.max_length, s.max_source_length});
    data_ = make_training_data(std::move(set), s, model_->takes(), silent);
    const Programs programs = make_programs(*model_, s, data_.shapes(), *backend_);
    listener_ = {};
    return train(*model_, s, data_, *backend_, programs, run, listener_);
  }

  fs::path folder_;
  std::unique_ptr<Backend> backend_ = cpu::make_backend(cpu::best_isa());
  std::unique_ptr<Model> model_;
  TrainingData data_;
  Listener listener_;
};

INSTANTIATE_TEST_SUITE_P(Model, ConvergeOnPairs,
                         testing::ValuesIn(families_that([](const Model& m) {
                           return m.takes().pairs;
                         })),
                         [](const auto& tested) { return tested.param; });

// Every word of the target stands in the source, at a place that only its own place tells.
TEST_P(ConvergeOnPairs, ReversingIsLearnt) {
  const TrainResult result = train_model(reversing(1000));
  ASSERT_EQ(listener_.told.size(), 1u);
  EXPECT_LT(result.validation_loss, 0.1);
  EXPECT_GT(listener_.told[0].at("eval/bleu"), 95);
  EXPECT_GT(listener_.told[0].at("eval/rougeL"), 97);
  EXPECT_EQ(result.skipped_updates, 0);
}

// Also of models for which source and target are one text.
class WritesTexts : public ConvergeOnPairs {};
INSTANTIATE_TEST_SUITE_P(Model, WritesTexts, testing::ValuesIn(families_that([](const Model& m) {
                           return !m.takes().states;
                         })),
                         [](const auto& tested) { return tested.param; });

// Losses, weights' average and best step with and without texts, and the texts' metrics are those
// that `millrace eval` finds in the checkpoint.
TEST_P(WritesTexts, TextsOfValidationChangeNoBit) {
  Settings with = reversing(60);
  with.max_length = with.max_source_length = 16;
  with.eval_every = {{15}};
  with.eval_beam = 3;
  with.eval_min_tokens = 4;
  with.eval_no_repeat_ngram = 1;
  with.eval_length_penalty = 0.5;
  with.eval_texts = 20;  // more than are written at once
  with.ema_decay = 0.9;
  with.tensorboard = false;
  with.checkpoint.metric = "eval/chrf";
  Settings without = with;
  without.eval_texts = 0;
  without.checkpoint.metric = "eval/loss";
  const TrainResult silent = train_model(without);
  const std::vector<Metrics> losses = listener_.told;
  const auto run = RunFolder::create(folder_ / "runs", "r");
  const TrainResult writing = train_model(with, run.get());
  EXPECT_EQ(silent.losses, writing.losses);
  ASSERT_EQ(listener_.told.size(), 4u);
  double best = -1;
  for (size_t i = 0; i < losses.size(); ++i) {
    const Metrics& told = listener_.told[i];
    EXPECT_EQ(losses[i].at("eval/loss"), told.at("eval/loss"));
    EXPECT_FALSE(losses[i].contains("eval/bleu"));
    for (const std::string& name : text_metric_names()) EXPECT_TRUE(std::isfinite(told.at(name)));
    best = std::max(best, told.at("eval/chrf"));
  }
  EXPECT_GT(best, listener_.told[0].at("eval/chrf")) << "nothing was learnt: nothing to choose by";
  EXPECT_EQ(writing.best_metric, best);
  EXPECT_EQ(silent.ledger.ns(Owner::eval_texts), 0);
  EXPECT_GT(writing.ledger.ns(Owner::eval_texts), 0);

  const auto newest = run->checkpoints().newest([](const std::string&) {});
  ASSERT_TRUE(newest);
  ASSERT_EQ(newest->manifest.step, with.max_steps);
  const Metrics again =
      evaluate_texts(*model_, with, data_, *backend_, newest->folder,
                     {.beam = {3, 0.5, 1, 4}, .at_once = 7, .most = with.eval_texts});
  for (const auto& [name, value] : again) EXPECT_EQ(value, listener_.told.back().at(name)) << name;
  const Metrics bare = evaluate_texts(*model_, with, data_, *backend_, newest->folder,
                                      {.beam = {.beam = 3}, .at_once = 7, .most = with.eval_texts});
  EXPECT_NE(bare, again) << "a test in which the search makes no difference";
}

// Names that no training pair has: only who copies can write them.
class CopyingConverges : public ConvergeOnPairs {};
INSTANTIATE_TEST_SUITE_P(Model, CopyingConverges,
                         testing::ValuesIn(families_that([](const Model& m) {
                           return m.takes().open_words;
                         })),
                         [](const auto& tested) { return tested.param; });

TEST_P(CopyingConverges, UnseenWordsAreCopied) {
  RandomStream random(8, RandomUse::test);
  int64_t number = 0;
  Settings s = run_on(
      2000,
      [&](std::string& source, std::string& target) {
        const std::string name = fmt::format("n{}x", number++);  // in no other pair
        source = letters(random, 1, 3) + " is " + name + " " + letters(random, 1, 3);
        target = "the name is " + name + " .";
      },
      300);
  s.data.min_frequency = 3;
  const TrainResult result = train_model(s);
  EXPECT_EQ(data_.set.tokenizer().vocab_size(), 19) << "names in the vocabulary";
  EXPECT_LT(result.validation_loss, 0.1);
  EXPECT_GT(listener_.told[0].at("eval/bleu"), 95);
  EXPECT_GT(listener_.told[0].at("eval/rouge1"), 97);
}

}  // namespace
}  // namespace millrace
