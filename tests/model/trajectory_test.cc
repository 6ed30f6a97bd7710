// What is predicted of a path follows from what was seen of it alone.
#include <gtest/gtest.h>

#include "cpu/cpu_backend.h"
#include "cpu/gemm.h"
#include "cpu/machine.h"
#include "tests/graph/tiny_model.h"
#include "train/evaluation.h"
#include "train/trajectory_evaluation.h"

namespace millrace {
namespace {

TEST(Trajectory, PredictionsDoNotSeeWhatTheyAreComparedWith) {
  constexpr int64_t kSeen = 9, kStates = 14, kChannels = TinyModel::kVocabulary;
  cpu::gemm_set_measuring(false);
  const TinyModel tiny(
      "d_model: 24, num_layers: 2, num_heads: 2, init_std: 0.3, previous: 4, "
      "current: 5",
      {2, kStates - 2}, "trajectory");
  const StateParts parts = tiny.model->takes().parts;
  const auto backend = cpu::make_backend(cpu::best_isa());
  const Plan plan = make_plan(build_eval_graph(*tiny.model, tiny.shape), {}, *backend);
  Session session(*backend, {&plan});
  initialize(session, *tiny.model, 1);
  const Normalisation plain{std::vector<double>(kChannels, 0), std::vector<double>(kChannels, 1)};
  std::vector<std::vector<float>> taught, rolled;
  std::vector<std::vector<float>> weights;
  for (const uint64_t future : {uint64_t{1}, uint64_t{2}}) {
    Batch batch;
    clear_states(batch, tiny.shape, kChannels);
    for (int64_t row = 0; row < 2; ++row) {
      RandomStream seen(7, RandomUse::test, static_cast<uint64_t>(row)),
          unseen(future, RandomUse::test, static_cast<uint64_t>(row));
      std::vector<float> states;
      for (int64_t i = 0; i < kStates * kChannels; ++i)
        states.push_back(
            static_cast<float>(i < kSeen * kChannels ? seen.normal() : unseen.normal()));
      put_states(states, parts, plain, row * tiny.shape.length, batch);
    }
    const float scale = 1;
    session.write<float>("loss_scale", std::span(&scale, 1));
    write_batch(session, 0, batch);
    session.run(0);
    taught.push_back(session.output(0, "predicted"));
    rolled.push_back(roll_out(session, 0, parts, batch));
    weights.push_back(batch.weights);
  }
  cpu::gemm_set_measuring(true);
  int64_t compared = 0, differ = 0;
  for (size_t i = 0; i < rolled[0].size(); ++i) {
    if (weights[0][i / kChannels] == 0) continue;
    ++compared;
    EXPECT_EQ(rolled[0][i], rolled[1][i]) << "number " << i;
    differ += taught[0][i] != taught[1][i] ? 1 : 0;
  }
  EXPECT_EQ(compared, 2 * parts.current * kChannels);
  EXPECT_GT(differ, compared / 2) << "the futures do not matter to anything";
}

}  // namespace
}  // namespace millrace
