// The pointer-generator word by word: what build_decode gives is the prediction that build_loss
// scores, once it is mixed.
#include <gtest/gtest.h>

#include <cmath>

#include "cpu/cpu_backend.h"
#include "cpu/gemm.h"
#include "cpu/machine.h"
#include "graph/passes.h"
#include "tests/graph/tiny_model.h"

namespace millrace {
namespace {

constexpr int64_t kBatch = 2, kTarget = 6, kSourceLength = 5, kVocabulary = TinyModel::kVocabulary;

// -log of the probability of each row's target, out of the outputs of a decode plan.
double loss_of(const Session& session, size_t plan, const std::vector<int32_t>& source_open,
               const std::vector<int32_t>& targets) {
  const auto logits = session.output(plan, "logits"), gates = session.output(plan, "gate"),
             attention = session.output(plan, "attention");
  double loss = 0;
  for (size_t row = 0; row < kBatch; ++row) {
    double sum = 0, mass = 0;
    for (size_t v = 0; v < kVocabulary; ++v) sum += std::exp(double{logits[row * kVocabulary + v]});
    for (size_t s = 0; s < kSourceLength; ++s)
      if (source_open[row * kSourceLength + s] == targets[row])
        mass += attention[row * kSourceLength + s];
    const double gate = 1 / (1 + std::exp(-double{gates[row]}));
    const auto target = static_cast<size_t>(targets[row]);
    const double generated =
        target < kVocabulary ? std::exp(double{logits[row * kVocabulary + target]}) / sum : 0;
    loss -= std::log(gate * generated + (1 - gate) * mass);
  }
  return loss;
}

class PointerGeneratorSteps : public testing::TestWithParam<bool> {};
INSTANTIATE_TEST_SUITE_P(Coverage, PointerGeneratorSteps, testing::Bool());

TEST_P(PointerGeneratorSteps, WordByWordIsTheLoss) {
  cpu::gemm_set_measuring(false);
  const auto backend = cpu::make_backend(cpu::best_isa());
  const BatchShape shape{kBatch, kTarget, false, kSourceLength};
  const TinyModel tiny(
      fmt::format(
          "type: pointer_generator, emb_dim: 8, hidden_dim: 6, attention_dim: 7, coverage: {}",
          GetParam()),
      shape, "pointer_generator");
  BatchShape word = shape;
  word.length = 1;
  const Plan whole = make_plan(build_eval_graph(*tiny.model, shape), {}, *backend),
             encode = make_plan(build_encode_graph(*tiny.model, word, kTarget), {}, *backend),
             decode = make_plan(build_decode_graph(*tiny.model, word, kTarget), {}, *backend);
  Session session(*backend, {&whole, &encode, &decode});
  RandomStream random(3, RandomUse::test, 0);
  for (const Parameter& p : tiny.model->parameters()) {
    std::vector<float> values(static_cast<size_t>(p.shape.numel()));
    for (float& v : values) v = static_cast<float>(0.5 * random.normal());
    session.write<float>(p.name, values);
  }
  const std::vector<int32_t> source{3, 0, 4, 1, 0, 9, 2, 0, 0, 0},
      source_open{3, 30, 4, 1, 31, 9, 2, 33, -1, -1}, tokens{1, 3, 0, 5, 0, 7, 1, 9, 9, 0, 2, 8},
      targets{3, 30, 5, 31, 4, 2, 9, 9, 33, 2, 8, 0};
  const float scale = 1;
  session.write<int32_t>("source", source);
  session.write<int32_t>("source_lengths", std::vector<int32_t>{5, 3});
  session.write<int32_t>("source_open", source_open);
  session.write<int32_t>("tokens", tokens);
  session.write<int32_t>("targets", targets);
  session.write<float>("loss_scale", std::span(&scale, 1));
  session.run(0);
  const double wanted = session.scalar_output(0, "loss");
  for (int again = 0; again < 2; ++again) {  // the second time from a cache that was used
    session.run(1);
    double loss = 0;
    for (size_t t = 0; t < kTarget; ++t) {
      session.write<int32_t>(prompt_leaf(1), std::vector{tokens[t], tokens[kTarget + t]});
      session.run(2);
      loss += loss_of(session, 2, source_open, {targets[t], targets[kTarget + t]});
    }
    EXPECT_NEAR(loss, wanted, 1e-5 * wanted);
  }
  cpu::gemm_set_measuring(true);
}

// Losses, gradient norms and parameters of some updates; the n-th is update n.
Trained trained(const std::string& coverage, int updates) {
  const auto backend = cpu::make_backend(cpu::best_isa());
  const TinyModel tiny(
      "type: pointer_generator, emb_dim: 8, hidden_dim: 6, attention_dim: 7, " + coverage,
      {kBatch, kTarget, false, kSourceLength}, "pointer_generator");
  const Plan plan = make_plan(tiny.step_graph(), {}, *backend);
  Session session(*backend, {&plan});
  return train_steps(session, 0, tiny, updates);
}

TEST(PointerGenerator, CoverageCountsFromItsStartOn) {
  cpu::gemm_set_measuring(false);
  const Trained always = trained("coverage_weight: 2", 6), never = trained("coverage_weight: 0", 6),
                from_4 = trained("coverage_weight: 2, coverage_start: 4", 6);
  EXPECT_EQ(trained("coverage_weight: 2, coverage_start: 1", 6), always);
  EXPECT_EQ(trained("coverage_weight: 2, coverage_start: 7", 6), never);
  for (size_t i = 0; i < 6; ++i) {
    EXPECT_GT(always.losses[i], never.losses[i]);
    EXPECT_EQ(from_4.losses[i] == never.losses[i], i < 3) << i;
    EXPECT_EQ(from_4.norms[i] == never.norms[i], i < 3) << i;
  }
  // The parameters of updates 1 to 3 are those without: what the fourth has more is coverage alone.
  EXPECT_EQ(trained("coverage_weight: 2, coverage_start: 4", 3), trained("coverage_weight: 0", 3));
  const double one = trained("coverage_weight: 1, coverage_start: 4", 4).losses[3];
  EXPECT_NEAR(from_4.losses[3] - never.losses[3], 2 * (one - never.losses[3]),
              4 * 6e-8 * from_4.losses[3]);
  cpu::gemm_set_measuring(true);
}

// An update of several micro-batches has one number in all of them.
TEST(PointerGenerator, CoverageStartsInEveryMicroBatch) {
  TinyModel tiny("type: pointer_generator, coverage_start: 4",
                 {kBatch, kTarget, false, kSourceLength}, "pointer_generator");
  tiny.settings.grad_accum = 2;
  for (const Graph& graph : {build_step_graph(*tiny.model, tiny.settings, tiny.shape),
                             build_accumulate_graph(*tiny.model, tiny.settings, tiny.shape)})
    EXPECT_GE(graph.find_leaf("step"), 0);
  EXPECT_LT(build_eval_graph(*tiny.model, tiny.shape).find_leaf("step"), 0);
}

// Every pass checks the types: what is kept has those of the leaves that keep it.
TEST(PointerGenerator, CanBeIn16Bits) {
  const BatchShape word{kBatch, 1, false, kSourceLength};
  const TinyModel tiny("type: pointer_generator, coverage_start: 2", word, "pointer_generator");
  PassOptions options;
  options.precision = Precision::bf16;
  optimize(tiny.step_graph(), options);
  for (const Graph& graph : {optimize(build_encode_graph(*tiny.model, word, kTarget), options),
                             optimize(build_decode_graph(*tiny.model, word, kTarget), options)}) {
    EXPECT_EQ(graph.updates.size(), graph.outputs.empty() ? 6u : 4u);
  }
}

}  // namespace
}  // namespace millrace
