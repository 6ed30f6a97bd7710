// What every model family promises, with its default settings: nothing here knows one by name.
#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "cpu/cpu_backend.h"
#include "cpu/gemm.h"
#include "cpu/machine.h"
#include "graph/passes.h"
#include "tests/graph/tiny_model.h"
#include "tests/model/small_family.h"
#include "train/generate.h"

namespace millrace {
namespace {

constexpr int64_t kLength = 9, kSource = 7;

class Family : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override { cpu::gemm_set_measuring(false); }
  void TearDown() override { cpu::gemm_set_measuring(true); }

  static BatchShape shape(int64_t batch) {
    const bool pairs = make_model(GetParam())->takes().pairs;
    return {batch, kLength, false, pairs ? kSource : 0};
  }
  TinyModel tiny{"type: " + GetParam(), shape(2), GetParam()};
  std::unique_ptr<Backend> backend = cpu::make_backend(cpu::best_isa());
};

INSTANTIATE_TEST_SUITE_P(Model, Family, testing::ValuesIn(model_families()),
                         [](const auto& tested) { return tested.param; });

TEST_P(Family, NamesAreUniqueInsideAndOutside) {
  std::set<std::string> names, outside;
  for (const Parameter& p : tiny.model->parameters()) {
    EXPECT_TRUE(names.insert(p.name).second) << p.name;
    for (size_t part = 0; part < p.parts(); ++part)
      EXPECT_TRUE(outside.insert(p.external_name(part)).second) << p.external_name(part);
  }
}

TEST_P(Family, WeightsComeBackFromTheirLayoutOutside) {
  size_t index = 0;
  for (const Parameter& p : tiny.model->parameters()) {
    std::vector<float> values(static_cast<size_t>(p.shape.numel()));
    initial_values(p, index++, 1, 0, values);
    const auto tensors = to_external(p, values);
    EXPECT_EQ(values, from_external(p, [&](const std::string& name) {
                for (const NamedTensor& t : tensors)
                  if (t.name == name) return t;
                return NamedTensor{};
              }));
  }
}

TEST_P(Family, ConfigComesBack) {
  const auto back = model_from_external_config(tiny.model->external_config(), "config.json");
  EXPECT_EQ(back->vocab_size(), tiny.model->vocab_size());
  EXPECT_EQ(back->max_lengths(), tiny.model->max_lengths());
  const auto ours = tiny.model->parameters(), theirs = back->parameters();
  ASSERT_EQ(ours.size(), theirs.size());
  for (size_t i = 0; i < ours.size(); ++i) {
    EXPECT_EQ(ours[i].name, theirs[i].name);
    EXPECT_EQ(ours[i].shape.str(), theirs[i].shape.str());
  }
}

TEST_P(Family, LearnsABatchByHeart) {
  const Plan plan = make_plan(tiny.step_graph(), {}, *backend);
  Session session(*backend, {&plan});
  const Trained done = train_steps(session, 0, tiny, 40, true);
  EXPECT_LT(done.losses.back(), 0.6f * done.losses.front());
}

// Those whose logits are what they predict. For the others a beam search is compared with their
// loss, word by word (tests/generate/beam_test.cc).
class DrawingFamily : public Family {};
INSTANTIATE_TEST_SUITE_P(Model, DrawingFamily, testing::ValuesIn(families_that([](const Model& m) {
                           return m.logits_are_all();
                         })),
                         [](const auto& tested) { return tested.param; });

// One token after the other, in chunks, and all at once.
TEST_P(DrawingFamily, TheCacheDoesNotChangeTheLogits) {
  std::vector<std::vector<float>> last;
  double largest = 0;
  for (const int64_t T : {kLength, int64_t{4}, int64_t{1}}) {
    BatchShape one = shape(1);
    one.length = T;
    const Plan plan = make_plan(build_decode_graph(*tiny.model, one, kLength), {}, *backend);
    Plan encode;
    std::vector<const Plan*> plans{&plan};
    if (one.source > 0) {
      encode = make_plan(build_encode_graph(*tiny.model, one, kLength), {}, *backend);
      plans.push_back(&encode);
    }
    Session session(*backend, plans);
    initialize(session, *tiny.model, 1);
    if (one.source > 0) {
      session.write<int32_t>("source", std::vector<int32_t>{3, 1, 4, 1, 5, 9, 2});
      session.write<int32_t>("source_lengths", std::vector<int32_t>{6});
      session.run(1);
    }
    for (int64_t from = 0; from < kLength; from += T) {
      std::vector<int32_t> tokens(static_cast<size_t>(T));
      for (int64_t t = 0; t < std::min(T, kLength - from); ++t)
        tokens[static_cast<size_t>(t)] =
            static_cast<int32_t>((from + t) * 7 % TinyModel::kVocabulary);
      const auto position = static_cast<int32_t>(from),
                 row = static_cast<int32_t>(std::min(T, kLength - from) - 1);
      session.write<int32_t>(prompt_leaf(T), tokens);
      session.write<int32_t>("position", std::span(&position, 1));
      session.write<int32_t>("prompt_row", std::span(&row, 1));
      session.run(0);
    }
    last.push_back(session.output(0, "logits"));
    for (const float x : last.back()) largest = std::max(largest, std::fabs(double{x}));
  }
  for (size_t way = 1; way < last.size(); ++way)
    for (size_t v = 0; v < last[0].size(); ++v)
      ASSERT_NEAR(last[way][v], last[0][v], 1e-4 * largest) << "way " << way << ", logit " << v;
}

}  // namespace
}  // namespace millrace
