// What is predicted of a path follows from what was seen of it alone.
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <nlohmann/json.hpp>

#include "cpu/cpu_backend.h"
#include "cpu/gemm.h"
#include "cpu/machine.h"
#include "graph/autodiff.h"
#include "tests/graph/tiny_model.h"
#include "tests/parity/cuda_device.h"
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
    clear_states(batch, tiny.shape, {kChannels});
    for (int64_t row = 0; row < 2; ++row) {
      RandomStream seen(7, RandomUse::test, static_cast<uint64_t>(row)),
          unseen(future, RandomUse::test, static_cast<uint64_t>(row));
      std::vector<float> states;
      for (int64_t i = 0; i < kStates * kChannels; ++i)
        states.push_back(
            static_cast<float>(i < kSeen * kChannels ? seen.normal() : unseen.normal()));
      put_states(states, parts, plain, row * tiny.shape.length, batch);
    }
    write_batch(session, 0, batch, {});
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

// Sequences of different lengths, with classes where they have any, each in a row of its own or
// several to a row: on the CPU, and on a CUDA device where there is one, in what each computes in.
class PackedStates : public testing::Test {
 protected:
  static constexpr int64_t kChannels = TinyModel::kVocabulary, kClasses = 4;
  static constexpr int64_t kLengths[] = {14, 9, 8, 11, 9, 14};  // states; 8 are no context

  static Batch batch_of(const TinyModel& tiny) {
    const Normalisation plain{std::vector<double>(kChannels, 0), std::vector<double>(kChannels, 1)};
    const StateParts parts = tiny.model->takes().parts;
    Batch batch;
    clear_states(batch, tiny.shape, {kChannels, true});
    if (tiny.shape.packed) {
      batch.segments.assign(batch.weights.size(), 99);
      batch.positions.assign(batch.weights.size(), 0);
    }
    int64_t row = 0, at = 0;
    int32_t segment = 0;
    for (size_t s = 0; s < std::size(kLengths); ++s) {
      const int64_t length = kLengths[s], n = StateParts::places(length);
      RandomStream random(7, RandomUse::test, s);
      std::vector<float> states;
      std::vector<int32_t> classes;
      for (int64_t i = 0; i < length * kChannels; ++i)
        states.push_back(static_cast<float>(random.normal()));
      for (int64_t i = 0; i < length; ++i)
        classes.push_back(static_cast<int32_t>(random.below(kClasses + 1)) - 1);
      if (segment > 0 && (!tiny.shape.packed || at + n > tiny.shape.length)) {
        ++row;
        at = segment = 0;
      }
      const int64_t place = row * tiny.shape.length + at;
      put_states(states, parts, plain, place, batch);
      put_classes(classes, parts, place, batch);
      for (int64_t t = 0; tiny.shape.packed && t < n; ++t) {
        batch.segments[static_cast<size_t>(place + t)] = segment;
        batch.positions[static_cast<size_t>(place + t)] = static_cast<int32_t>(t);
      }
      at += n;
      ++segment;
      batch.scored += parts.current;
    }
    EXPECT_EQ(row + 1, tiny.shape.batch);
    return batch;
  }

  // By name: the loss, what is predicted in the order of the sequences, and all gradients.
  using Found = std::map<std::string, std::vector<float>>;
  static Found find(const std::string& keys, BatchShape shape, Backend& backend,
                    Precision precision) {
    const TinyModel tiny(keys, shape, "trajectory");
    const Batch batch = batch_of(tiny);
    const auto parameters = tiny.model->parameters();
    Builder b;
    const Value loss = tiny.model->build_loss(b, shape);
    std::vector<Value> leaves;
    for (const Parameter& p : parameters) leaves.push_back({b.graph().find_leaf(p.name), 0});
    const Seed seed{loss, b.constant(1)};
    const auto grads = gradients(b, std::span(&seed, 1), leaves);
    b.output("loss", loss);
    for (size_t i = 0; i < parameters.size(); ++i) b.output(parameters[i].name, grads[i]);
    PassOptions passes;
    passes.precision = precision;
    const Plan step = make_plan(b.finish(), passes, backend),
               evaluate = make_plan(build_eval_graph(*tiny.model, shape), passes, backend);
    const Plan* const both[] = {&step, &evaluate};
    const Plan refresh = make_refresh_plan(both, backend);
    Session session(backend, {&step, &evaluate, &refresh});
    initialize(session, *tiny.model, 1);
    session.run(2);
    write_batch(session, 0, batch, LossScales::means(batch.scored, batch.labelled));
    Found found;
    session.run(0);
    for (const auto& [name, value] : step.graph.outputs) found[name] = session.output(0, name);
    session.run(1);
    auto add = [&](const char* output, size_t place, size_t width) {
      const auto all = session.output(1, output);
      const auto from = all.begin() + static_cast<std::ptrdiff_t>(place * width);
      found[output].insert(found[output].end(), from, from + static_cast<std::ptrdiff_t>(width));
    };
    for (size_t i = 0; i < batch.weights.size(); ++i) {
      if (batch.weights[i] > 0) add("predicted", i, kChannels);
      if (batch.class_targets[i] >= 0) add("class_logits", i, kClasses);
    }
    return found;
  }

  // Of the largest of a tensor; the same sums in another order, with what a precision rounds away.
  static void compare(Backend& backend, Precision precision, double bound) {
    if (!backend.computes(precision)) return;
    for (const std::string likelihood : {"mse", "gaussian"}) {
      SCOPED_TRACE(fmt::format("{} {} {}", backend.name(), precision_name(precision), likelihood));
      const std::string keys =
          "d_model: 24, num_layers: 2, num_heads: 2, init_std: 0.1, previous: 4, current: 4, "
          "classes: 4, likelihood: " +
          likelihood;
      constexpr auto kSequences = static_cast<int64_t>(std::size(kLengths));
      const Found apart = find(keys, {kSequences, 12}, backend, precision),
                  packed = find(keys, {3, 24, true}, backend, precision);
      ASSERT_EQ(apart.size(), packed.size());
      for (const auto& [name, values] : apart) {
        // A row twice as long has more positions than sequences reach.
        const auto& other = packed.at(name);
        ASSERT_LE(values.size(), other.size()) << name;
        float largest = 0;
        for (const float v : values) largest = std::max(largest, std::fabs(v));
        EXPECT_GT(largest, 0) << name;
        for (size_t i = 0; i < other.size(); ++i)
          ASSERT_NEAR(other[i], i < values.size() ? values[i] : 0, bound * largest)
              << name << " " << i;
      }
    }
  }
};

TEST_F(PackedStates, AreTheSameSequences) {
  cpu::gemm_set_measuring(false);
  const auto cpu = cpu::make_backend(cpu::best_isa());
  std::vector<Backend*> backends{cpu.get()};
  if (test_device().backend) backends.push_back(test_device().backend.get());
  for (Backend* backend : backends) {
    compare(*backend, Precision::fp32, 1e-5);
    compare(*backend, Precision::bf16, 5e-2);
  }
  cpu::gemm_set_measuring(true);
}

TEST(Trajectory, ClassesComeBackFromTheConfig) {
  const TinyModel tiny("d_model: 24, num_heads: 2, classes: 3, class_weight: 0.5", {2, 22},
                       "trajectory");
  const auto back = model_from_external_config(tiny.model->external_config(), "config.json");
  EXPECT_EQ(back->takes().classes, 3);
  EXPECT_EQ(back->external_config(), tiny.model->external_config());
  EXPECT_EQ(back->parameters().back().shape, (Shape{3, 24}));
  // One written before there were any.
  auto old = nlohmann::json::parse(tiny.model->external_config());
  old["millrace"]["model"].erase("classes");
  old["millrace"]["model"].erase("class_weight");
  EXPECT_EQ(model_from_external_config(old.dump(), "config.json")->takes().classes, 0);
}

TEST(Trajectory, TheClassOfAPartOfOneStateHasNoPlace) {
  EXPECT_THROW(TinyModel("classes: 3, current: 1, previous: 4", {2, 22}, "trajectory"), Error);
  EXPECT_NO_THROW(TinyModel("current: 1, previous: 4", {2, 22}, "trajectory"));
}

}  // namespace
}  // namespace millrace
