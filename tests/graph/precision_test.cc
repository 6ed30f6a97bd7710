// The precision of a step, without a device that has it: the reference executor ignores types, so a
// graph in 16 bits must give what it gives in f32, to the last bit; and the types must be where
// they belong.
#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "exec/reference.h"
#include "graph/passes.h"
#include "tests/graph/tiny_model.h"

namespace millrace {
namespace {

struct PrecisionCase {
  const char* name;
  std::string keys;
  BatchShape shape = {2, 12};
  const char* family = "gpt";
};
const PrecisionCase kPrecisionCases[] = {
    {"gpt2", kGpt2Keys},
    {"gpt2_dropout", std::string(kGpt2Keys) + ", dropout: 0.1"},
    {"llama", kLlamaKeys},
    {"packed_states_with_classes",
     "d_model: 24, num_layers: 2, num_heads: 2, likelihood: gaussian, classes: 5",
     {2, 12, true},
     "trajectory"}};

class PrecisionPass : public testing::TestWithParam<PrecisionCase> {
 protected:
  Graph in(Precision precision) const {
    PassOptions options;
    options.precision = precision;
    return optimize(graph_, options);
  }
  // Losses and parameters after a step from fixed random values.
  static std::vector<double> step(const Graph& g) {
    Reference<double> r(g);
    std::map<std::string, std::vector<double>> parameters;
    for (const Node& n : g.nodes) {
      if (n.leaf == Leaf::none || n.leaf == Leaf::shadow) continue;
      RandomStream random(1, RandomUse::test, std::hash<std::string>()(n.name));
      if (n.out[0].dtype == DType::i32)
        for (int32_t& id : r.ids(n.name))
          id = static_cast<int32_t>(random.below(n.name == "parts"           ? 3
                                                 : n.name == "class_targets" ? 5
                                                 : n.name == "positions"     ? 12
                                                 : n.name == "segments"      ? 2
                                                                             : 29));
      else if (n.leaf == Leaf::input)
        for (double& x : r.values(n.name)) x = n.name == "step" ? 1 : 0.05;
      else
        for (double& x : r.values(n.name))
          x = n.leaf == Leaf::optimizer_state ? std::fabs(random.normal()) : random.normal();
      if (n.leaf == Leaf::parameter) parameters[shadow_name(n.name)] = r.values(n.name);
    }
    for (const Node& n : g.nodes)
      if (n.leaf == Leaf::shadow) r.values(n.name) = parameters.at(n.name);
    r.run();
    std::vector<double> all{r.output("loss")[0], r.output("grad_norm")[0]};
    for (const Node& n : g.nodes) {
      if (n.leaf == Leaf::parameter)
        all.insert(all.end(), r.values(n.name).begin(), r.values(n.name).end());
      if (n.leaf == Leaf::shadow) {
        EXPECT_EQ(r.values(n.name), r.values(n.name.substr(shadow_name("").size()))) << n.name;
      }
    }
    return all;
  }

  TinyModel tiny_{GetParam().keys, GetParam().shape, GetParam().family};
  const Graph graph_ = tiny_.step_graph();
};
INSTANTIATE_TEST_SUITE_P(Model, PrecisionPass, testing::ValuesIn(kPrecisionCases),
                         [](const auto& test) { return std::string(test.param.name); });

TEST_P(PrecisionPass, ComputesTheSame) {
  const std::vector<double> plain = step(in(Precision::fp32));
  for (const Precision p : {Precision::tf32, Precision::bf16, Precision::fp16}) {
    const std::vector<double> other = step(in(p));
    ASSERT_EQ(other.size(), plain.size());
    for (size_t i = 0; i < plain.size(); ++i)
      ASSERT_NEAR(other[i], plain[i], 1e-9 * std::max(1.0, std::fabs(plain[i])))
          << precision_name(p) << " " << i;
  }
}

TEST_P(PrecisionPass, PutsSixteenBitsWhereTheyBelong) {
  const Graph g = in(Precision::bf16);
  std::set<std::string> shadows, updated;
  for (const Update& u : g.updates) updated.insert(g[u.leaf].name);
  for (const Node& n : g.nodes) {
    SCOPED_TRACE(fmt::format("{} {}", n.op->name, n.name));
    if (n.leaf == Leaf::shadow) {
      shadows.insert(n.name);
      EXPECT_EQ(n.out[0].dtype, DType::bf16);
      EXPECT_TRUE(updated.contains(n.name)) << "the optimizer does not keep it";
      EXPECT_FALSE(n.name.find("norm") != n.name.npos) << "norms read the f32 parameter";
    } else if (n.leaf != Leaf::none) {
      EXPECT_FALSE(is_half(n.out[0].dtype));
    } else if (n.op->name == "matmul") {
      EXPECT_EQ(g.type(n.in[0]).dtype, DType::bf16);
      EXPECT_EQ(g.type(n.in[1]).dtype, DType::bf16);
      // The gradient of a weight is f32; everything else that is multiplied is read again in 16
      // bits.
      const bool weight_gradient = n.phase == Phase::backward && n.attrs.integer("ta", 0) != 0;
      EXPECT_EQ(n.out[0].dtype, weight_gradient ? DType::f32 : DType::bf16);
    } else if (n.phase == Phase::optimizer && !n.op->keeps_shadows) {
      for (const TensorType& t : n.out) EXPECT_FALSE(is_half(t.dtype));
    }
  }
  EXPECT_FALSE(shadows.empty());
  EXPECT_EQ(g.type(g.outputs.at("loss")).dtype, DType::f32);
  // No cast in the step: what is multiplied is 16 bits where it is made. States come in f32.
  if (tiny_.model->takes().states) return;
  for (const Node& n : g.nodes)
    if (n.op->name == "elementwise") {
      EXPECT_NE(n.attrs.text("expr"), "->a0");
    }
}

// A device that stores nothing in 16 bits rounds operands of products, and changes nothing else.
TEST_P(PrecisionPass, WithoutStorageOnlyProductsRound) {
  PassOptions options;
  options.precision = Precision::bf16;
  Graph g = optimize(graph_, options, false);
  for (Node& n : g.nodes) {
    for (const TensorType& t : n.out) EXPECT_FALSE(is_half(t.dtype)) << n.op->name;
    EXPECT_EQ(n.attrs.text("math"), n.op->multiplies ? "bf16" : "") << n.op->name;
    n.attrs.erase("math");
  }
  EXPECT_EQ(g.str(), in(Precision::fp32).str());
}

// Logits of 10 in bf16 are 3 % off as probabilities.
TEST(PrecisionOfSoftmax, ProbabilitiesThatAreReadOutsideAreOfFullLogits) {
  Builder b;
  const Value weight = b.parameter("weight", {4, 8});
  const Value x = b.input("x", {{3, 4}, DType::f32});
  const Value inside = b.op("softmax", {b.matmul(x, weight)});
  b.output("probabilities", b.op("softmax", {b.matmul(inside, weight, false, true)}));
  const Graph g = apply_precision(b.finish(), Precision::bf16);
  std::vector<std::pair<std::string, DType>> stored;
  for (const Node& n : g.nodes)
    if (n.leaf == Leaf::none && n.op->name != "elementwise")
      stored.emplace_back(n.op->name, n.out[0].dtype);
  EXPECT_EQ(stored, (std::vector<std::pair<std::string, DType>>{{"matmul", DType::bf16},
                                                                {"softmax", DType::bf16},
                                                                {"matmul", DType::f32},
                                                                {"softmax", DType::f32}}));
}

TEST_P(PrecisionPass, TheStepIsSmaller) {
  int64_t bytes[2] = {};
  for (const bool half : {false, true})
    for (const Node& n : in(half ? Precision::bf16 : Precision::fp32).nodes)
      if (n.leaf == Leaf::none && n.phase == Phase::forward)
        for (const TensorType& t : n.out) bytes[half] += t.bytes();
  EXPECT_LT(bytes[1], 0.7 * static_cast<double>(bytes[0]));
}

}  // namespace
}  // namespace millrace
