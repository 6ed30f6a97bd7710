// The loss of a pointer-generator out of copy_mass and linear_cross_entropy: against the
// distribution over the extended vocabulary written down in full, and through the graph passes.
#include <gtest/gtest.h>

#include <cmath>

#include "core/rng.h"
#include "exec/reference.h"
#include "graph/autodiff.h"
#include "graph/passes.h"

namespace millrace {
namespace {

constexpr int64_t kSteps = 4, kBatch = 3, kPlaces = 6, kWidth = 5, kVocabulary = 7, kExtended = 10;

struct PointerLoss {
  PointerLoss() {
    const TensorType words{{kSteps, kBatch}, DType::i32};
    const Value x = b.parameter("x", {kSteps, kBatch, kWidth}),
                w = b.parameter("w", {kVocabulary, kWidth}),
                gate = b.parameter("gate", {kSteps, kBatch}),
                scores = b.parameter("scores", {kSteps, kBatch, kPlaces}),
                source = b.input("source", {{kBatch, kPlaces}, DType::i32}),
                targets = b.input("targets", words);
    const Value attention = b.op("softmax", {scores});
    mass = b.op("copy_mass", {attention, source, targets});
    loss = b.op("linear_cross_entropy", {x, w, targets, b.constant(0.5), b.scale(gate, 2), mass},
                {{"gradients", 1}, {"chunk_rows", 0}, {"copy", 1}});
    b.output("loss", loss);
    const Seed seed{loss, b.constant(1)};
    const std::vector<Value> wanted{x, w, gate, scores};
    const auto grads = gradients(b, std::span(&seed, 1), wanted);
    for (size_t i = 0; i < grads.size(); ++i) b.output(fmt::format("gradient{}", i), grads[i]);
  }
  Builder b;
  Value mass, loss;
};

TEST(PointerLoss, IsTheWordsProbabilityInTheExtendedVocabulary) {
  PointerLoss model;
  Reference<double> reference(model.b.finish());
  RandomStream random(5, RandomUse::test, 0);
  for (const char* name : {"x", "w", "gate", "scores"})
    for (double& v : reference.values(name)) v = random.normal();
  auto &source = reference.ids("source"), &targets = reference.ids("targets");
  for (int32_t& id : source) id = static_cast<int32_t>(random.below(kExtended));
  for (size_t row = 0; row < targets.size(); ++row)  // a word that can be produced
    targets[row] = row % 2 ? static_cast<int32_t>(random.below(kVocabulary))
                           : source[row % kBatch * kPlaces + random.below(kPlaces)];
  targets[4] = -1;
  reference.run();

  double expected = 0;
  for (size_t row = 0; row < targets.size(); ++row) {
    if (targets[row] < 0) continue;
    std::vector<double> p(kExtended, 0.0), generated(kVocabulary), copied(kPlaces);
    double generated_sum = 0, copied_sum = 0;
    for (size_t v = 0; v < kVocabulary; ++v) {
      double logit = 0;
      for (size_t d = 0; d < kWidth; ++d)
        logit += reference.values("x")[row * kWidth + d] * reference.values("w")[v * kWidth + d];
      generated_sum += generated[v] = std::exp(logit);
    }
    for (size_t s = 0; s < kPlaces; ++s)
      copied_sum += copied[s] = std::exp(reference.values("scores")[row * kPlaces + s]);
    const double chosen = 1 / (1 + std::exp(-2 * reference.values("gate")[row]));
    for (size_t v = 0; v < kVocabulary; ++v) p[v] += chosen * generated[v] / generated_sum;
    for (size_t s = 0; s < kPlaces; ++s)
      p[static_cast<size_t>(source[row % kBatch * kPlaces + s])] +=
          (1 - chosen) * copied[s] / copied_sum;
    expected -= 0.5 * std::log(p[static_cast<size_t>(targets[row])]);
  }
  EXPECT_NEAR(reference.output("loss")[0], expected, 1e-12 * expected);
}

TEST(PointerLoss, KeepsItsGateAndMassInSinglePrecisionThroughThePasses) {
  PointerLoss model;
  const Graph graph = model.b.finish();
  PassOptions options;
  options.precision = Precision::bf16;
  options.head_chunk_rows = 2;
  const Graph g = optimize(graph, options);
  int heads = 0;
  for (const Node& n : g.nodes) {
    if (n.op->name != "linear_cross_entropy") continue;
    ++heads;
    EXPECT_EQ(n.attrs.integer("copy"), 1);
    EXPECT_EQ(n.attrs.integer("chunk_rows"), 2);
    ASSERT_EQ(n.in.size(), 6u);
    ASSERT_EQ(n.out.size(), 5u);
    EXPECT_EQ(g.type(n.in[0]).dtype, DType::bf16);
    for (size_t i : {4, 5}) EXPECT_EQ(g.type(n.in[i]).dtype, DType::f32) << "input " << i;
    for (size_t o : {3, 4}) EXPECT_EQ(n.out[o].dtype, DType::f32) << "output " << o;
  }
  EXPECT_EQ(heads, 1);
}

}  // namespace
}  // namespace millrace
