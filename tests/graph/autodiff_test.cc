// Differentiation as a whole, beyond the single ops (tests/op): sums over shared subexpressions,
// what is not reached, and how a fault of the model is kept and reported.
#include "graph/autodiff.h"

#include <gtest/gtest.h>

#include "core/rng.h"
#include "exec/reference.h"
#include "tests/graph/random_graph.h"

namespace millrace {
namespace {

Value seed_one(Builder& b) { return b.constant(1); }

std::vector<Value> gradients_of(Builder& b, Value loss, const std::vector<Value>& wanted) {
  const Seed seed{loss, seed_one(b)};
  return gradients(b, std::span(&seed, 1), wanted);
}

TEST(Autodiff, SharedSubexpressionsAddUp) {
  Builder b;
  const Value x = b.parameter("x", {3});
  const Value t = b.apply(Function::tanh, x);           // used three times
  const Value y = b.add(b.mul(t, t), b.scale(t, 0.5));  // t^2 + t/2
  const auto d = gradients_of(b, b.reduce_to(y, {}), {x});
  ASSERT_TRUE(d[0].valid());
  Reference<double> r(b.finish());
  r.values("x") = {-0.7, 0.1, 1.2};
  r.run();
  for (size_t i = 0; i < 3; ++i) {
    const double v = std::tanh(r.values("x")[i]);
    EXPECT_NEAR(r.value(d[0])[i], (2 * v + 0.5) * (1 - v * v), 1e-14);
  }
}

TEST(Autodiff, TheSameValueTwiceInOneNode) {
  Builder b;
  const Value w = b.parameter("w", {2, 2});
  const auto d = gradients_of(b, b.reduce_to(b.matmul(w, w), {}), {w});
  Reference<double> r(b.finish());
  r.values("w") = {1, 2, 3, 4};
  r.run();
  // d sum(W W) / dW[i,j]: the sum of row j and the sum of column i.
  EXPECT_EQ(r.value(d[0]), (std::vector<double>{4 + 3, 4 + 7, 6 + 3, 6 + 7}));
}

TEST(Autodiff, SeveralSeedsAddUp) {
  Builder b;
  const Value x = b.parameter("x", {2}), y = b.scale(x, 3), z = b.mul(x, x);
  const Seed seeds[] = {{y, b.constant(1, {2})}, {z, b.constant(2, {2})}, {y, b.constant(10, {2})}};
  const Value wanted[] = {x};
  const auto d = gradients(b, seeds, wanted);
  Reference<double> r(b.finish());
  r.values("x") = {5, -1};
  r.run();
  EXPECT_EQ(r.value(d[0]), (std::vector<double>{33 + 20, 33 - 4}));
}

TEST(Autodiff, UnreachedParametersHaveNoGradient) {
  Builder b;
  const Value x = b.parameter("x", {2}), unused = b.parameter("unused", {2}),
              downstream = b.parameter("side", {2});
  const Value loss = b.reduce_to(b.apply(Function::tanh, x), {});
  b.output("side", b.mul(downstream, x));  // not on the way to the loss
  const NodeId before = b.graph().size();
  const auto d = gradients_of(b, loss, {unused, x, downstream});
  EXPECT_FALSE(d[0].valid());
  EXPECT_TRUE(d[1].valid());
  EXPECT_FALSE(d[2].valid());
  // Nothing was built for them: no backward node reads the other branch.
  const Graph g = b.finish();
  for (NodeId id = before; id < g.size(); ++id)
    for (Value v : g[id].in) EXPECT_TRUE(v != downstream && v != unused);
}

TEST(Autodiff, WantsNothingThatNobodyAskedFor) {
  Builder b;
  const Value x = b.input("x", {{4, 3}, DType::f32}), w = b.parameter("w", {3, 5});
  const Value loss = b.reduce_to(b.matmul(b.apply(Function::exp, x), w), {});
  gradients_of(b, loss, {w});
  // The gradient of x would be a second product.
  int backward_products = 0;
  for (const Node& n : b.finish().nodes)
    backward_products += n.phase == Phase::backward && n.op->name == "matmul";
  EXPECT_EQ(backward_products, 1);
}

TEST(Autodiff, BackwardNodesStandUnderTheirForwardScope) {
  Builder b;
  Value x = b.parameter("x", {4});
  {
    const auto layer = b.layer("layers.0");
    const auto inner = b.scope("mlp");
    x = b.apply(Function::gelu, x);
  }
  const Value loss = b.reduce_to(x, {});
  const NodeId before = b.graph().size();
  gradients_of(b, loss, {{0, 0}});
  EXPECT_EQ(b.phase, Phase::forward) << "the phase was not given back";
  EXPECT_EQ(b.current_scope(), 0) << "the scope was not given back";
  const Graph g = b.finish();
  bool seen = false;
  for (NodeId id = before + 1; id < g.size(); ++id) {  // the first is the seed
    EXPECT_EQ(g[id].phase, Phase::backward);
    seen = seen || g.scopes[static_cast<size_t>(g[id].scope)].path == "layers.0.mlp";
  }
  EXPECT_TRUE(seen);
  EXPECT_EQ(recompute_units(g).size(), 1u);
}

// The gradients of whole random graphs against a stencil along one random direction: 4 points, h^4.
TEST(Autodiff, RandomGraphsAlongARandomDirection) {
  int compared = 0;
  for (uint64_t seed = 0; seed < 300; ++seed) {
    const RandomGraph made = make_random_graph(seed);
    const Graph& g = made.graph;
    std::map<std::string, Value> grads;  // parameter -> gradient
    int64_t index = 0;
    for (const Node& n : g.nodes) {
      if (n.leaf != Leaf::parameter) continue;
      const auto found = g.outputs.find(fmt::format("gradient{}", index++));
      if (found != g.outputs.end()) grads[n.name] = found->second;
    }
    if (grads.empty()) continue;
    auto run = [&](Reference<double>& r, double step,
                   const std::map<std::string, std::vector<double>>& direction) {
      for (const auto& [name, values] : made.floats) r.values(name) = values;
      for (const auto& [name, values] : made.ids) r.ids(name) = values;
      for (const auto& [name, d] : direction)
        for (size_t i = 0; i < d.size(); ++i) r.values(name)[i] += step * d[i];
      r.run();
      return r.output("loss")[0];
    };
    RandomStream random(seed, RandomUse::test, 9);
    std::map<std::string, std::vector<double>> direction;
    for (const auto& [name, v] : grads)
      for (size_t i = 0; i < made.floats.at(name).size(); ++i)
        direction[name].push_back(random.normal());
    Reference<double> r(g);
    run(r, 0, direction);
    double analytic = 0, size = 0;
    for (const auto& [name, v] : grads)
      for (size_t i = 0; i < direction[name].size(); ++i) {
        analytic += direction[name][i] * r.value(v)[i];
        size += std::fabs(direction[name][i] * r.value(v)[i]);
      }
    const double h = 1e-4;
    const double numeric = (run(r, -2 * h, direction) - 8 * run(r, -h, direction) +
                            8 * run(r, h, direction) - run(r, 2 * h, direction)) /
                           (12 * h);
    // h^4 times a fifth derivative that grows with the depth, and eps / h from rounding.
    EXPECT_TRUE(std::fabs(analytic - numeric) <= 1e-6 * std::max(1.0, size))
        << "seed " << seed << ": " << analytic << " against " << numeric;
    ++compared;
  }
  EXPECT_GT(compared, 200);
}

ErrorFields fault_of(Builder& b) {
  try {
    b.finish();
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::config);
    return e.fields();
  }
  ADD_FAILURE() << "no fault was kept";
  return {};
}

TEST(BuilderFault, TheFirstIsKeptWithItsScope) {
  Builder b;
  const Value x = b.input("x", {{4, 64}, DType::f32});
  {
    const auto layer = b.layer("layers.3");
    const auto attention = b.scope("attention");
    const Value y = b.matmul(x, b.parameter("w", {128, 32}));  // 64 and 128
    EXPECT_TRUE(b.failed());
    // Model code goes on without looking; later faults do not replace the first.
    const auto inner = b.scope("later");
    b.matmul(b.add(y, y), b.reshape(y, {7}));
    b.op("layer_norm", {y, y}, {{"eps", 1e-5}});
    EXPECT_EQ(b.shape(y).rank(), 0);
  }
  const ErrorFields fault = fault_of(b);
  EXPECT_NE(fault.what.find("matmul"), std::string::npos) << fault.what;
  EXPECT_NE(fault.what.find("inner sizes 64 and 128"), std::string::npos) << fault.what;
  EXPECT_NE(fault.where.find("layers.3.attention"), std::string::npos) << fault.where;
  EXPECT_EQ(fault.where.find("later"), std::string::npos) << fault.where;
  EXPECT_FALSE(fault.remedy.empty());
}

TEST(BuilderFault, GradientsOfAFailedGraphAreNothing) {
  Builder b;
  const Value x = b.parameter("x", {4});
  const Value loss = b.reduce_to(b.add(x, b.parameter("y", {3})), {});
  const auto d = gradients_of(b, loss, {x});
  ASSERT_EQ(d.size(), 1u);
  EXPECT_FALSE(d[0].valid());
  EXPECT_NE(fault_of(b).what.find("does not broadcast"), std::string::npos);
}

TEST(BuilderFault, AnOpWithoutGradientSaysSo) {
  Builder b;
  const Value x = b.parameter("x", {4});
  const Value norm = b.op("grad_norm", {x});
  const auto d = gradients_of(b, norm, {x});
  EXPECT_FALSE(d[0].valid());
  EXPECT_NE(fault_of(b).what.find("grad_norm: no gradient"), std::string::npos);
}

TEST(BuilderFault, EveryOpSaysWhatItWants) {
  const std::pair<std::string, std::function<void(Builder&, Value)>> cases[] = {
      {"broadcast", [](Builder& b, Value x) { b.add(x, b.parameter("y", {5})); }},
      {"has not the size",
       [](Builder& b, Value x) {
         b.reshape(x, {5, 5});
       }},
      {"wants matrices", [](Builder& b, Value x) { b.matmul(x, b.parameter("y", {6})); }},
      {"weight",
       [](Builder& b, Value x) {
         b.op("rms_norm", {x, b.parameter("y", {5})}, {{"eps", 1e-5}});
       }},
      {"order",
       [](Builder& b, Value x) {
         b.op("permute", {x}, {{"order", "0x0"}});
       }},
      {"ids",
       [](Builder& b, Value x) {
         b.op("embedding", {x, x});
       }},
      {"broadcast", [](Builder& b, Value x) { b.reduce_to(x, {7}); }},
  };
  for (const auto& [words, make] : cases) {
    Builder b;
    make(b, b.parameter("x", {4, 6}));
    const ErrorFields fault = fault_of(b);
    EXPECT_NE(fault.what.find(words), std::string::npos) << fault.what;
  }
}

}  // namespace
}  // namespace millrace
