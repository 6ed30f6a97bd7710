// The passes on whole training steps: each one on and off gives the same losses, and does what it
// is for.
//
// Bit for bit the same, because the pass only moves work:
//   recompute          the same node runs a second time on the same values
//   schedule           the same nodes in another order
//   fuse_elementwise   the same instructions one after the other, on values that are floats either
//   way fuse_epilogue      the product is a float before the epilogue reads it, fused or not
// The same up to rounding, because sums are taken in another order:
//   simplify           the embedding's gradient is scattered into the head's instead of added to it
//   chunk_head         the head's weight gradient is summed chunk by chunk
#include "graph/passes.h"

#include <gtest/gtest.h>

#include <cmath>

#include "cpu/gemm.h"
#include "cpu/machine.h"
#include "tests/graph/poisoned_backend.h"
#include "tests/graph/tiny_model.h"

namespace millrace {
namespace {

constexpr int kSteps = 5;

PassOptions without(std::vector<std::string> names) {
  PassOptions options;
  options.off.insert(names.begin(), names.end());
  return options;
}
PassOptions all_off() {
  PassOptions options;
  for (std::string_view name : pass_names()) options.off.insert(std::string(name));
  return options;
}

struct Case {
  const char* name;
  std::string keys;
};
const Case kCases[] = {{"gpt2", kGpt2Keys},
                       {"gpt2_dropout", std::string(kGpt2Keys) + ", dropout: 0.1"},
                       {"llama", kLlamaKeys},
                       {"llama_dropout", std::string(kLlamaKeys) + ", dropout: 0.1"}};

class Passes : public testing::TestWithParam<Case> {
 protected:
  void SetUp() override { cpu::gemm_set_measuring(false); }
  void TearDown() override { cpu::gemm_set_measuring(true); }

  // Plans with these options and trains from the same start.
  Trained train(const PassOptions& options) {
    PoisonedBackend backend(cpu::best_isa());
    const Plan plan = make_plan(graph_, options, backend);
    Session session(backend, {&plan});
    return train_steps(session, 0, tiny_, kSteps);
  }
  int64_t count_nodes(const PassOptions& options, std::string_view op = {},
                      bool with_epilogue = false) {
    const Graph g = optimize(graph_, options);
    return std::count_if(g.nodes.begin(), g.nodes.end(), [&](const Node& n) {
      return n.leaf == Leaf::none && (op.empty() || n.op->name == op) &&
             (!with_epilogue || n.attrs.find("expr"));
    });
  }

  TinyModel tiny_{GetParam().keys};
  const Graph graph_ = tiny_.step_graph();
};
INSTANTIATE_TEST_SUITE_P(Model, Passes, testing::ValuesIn(kCases),
                         [](const auto& test) { return std::string(test.param.name); });

void expect_same_bits(const Trained& a, const Trained& b) {
  EXPECT_EQ(a.losses, b.losses);
  EXPECT_EQ(a.norms, b.norms);
  EXPECT_TRUE(a.parameters == b.parameters) << "parameters differ";
}

// Sums in another order differ by a few eps each; five updates carry that on. Losses are near log
// 29 = 3.4.
void expect_close(const Trained& a, const Trained& b) {
  for (size_t i = 0; i < a.losses.size(); ++i) {
    EXPECT_TRUE(std::fabs(a.losses[i] - b.losses[i]) <=
                64 * std::numeric_limits<float>::epsilon() * a.losses[i])
        << "step " << i << ": " << a.losses[i] << " and " << b.losses[i];
    EXPECT_TRUE(std::fabs(a.norms[i] - b.norms[i]) <=
                1024 * std::numeric_limits<float>::epsilon() * a.norms[i])
        << "step " << i << ": " << a.norms[i] << " and " << b.norms[i];
  }
}

TEST_P(Passes, TheLossFallsAtAll) {
  const Trained done = train({});
  for (float loss : done.losses) EXPECT_TRUE(std::isfinite(loss));
  // Random targets can only be learned as frequencies; the start is near the uniform distribution's
  // loss over the 9 in 10 targets that count.
  EXPECT_NEAR(done.losses[0], 0.9 * std::log(29.0), 0.7);
  EXPECT_NE(done.losses[0], done.losses[4]);
}

TEST_P(Passes, TheSameStepTwiceGivesTheSameBits) { expect_same_bits(train({}), train({})); }

TEST_P(Passes, SwitchedOffOneByOneThePassesThatMoveWorkChangeNoBit) {
  const Trained all = train({});
  for (const char* name : {"recompute", "fuse_elementwise", "fuse_epilogue", "schedule"}) {
    SCOPED_TRACE(name);
    expect_same_bits(all, train(without({name})));
  }
  expect_same_bits(all,
                   train(without({"recompute", "fuse_elementwise", "fuse_epilogue", "schedule"})));
}

TEST_P(Passes, SwitchedOffOneByOneTheOthersChangeRoundingOnly) {
  const Trained all = train({});
  for (const char* name : {"simplify", "chunk_head"}) {
    SCOPED_TRACE(name);
    expect_close(all, train(without({name})));
  }
  expect_close(all, train(all_off()));
  PassOptions chunked;
  chunked.head_chunk_rows = 5;
  expect_close(all, train(chunked));
}

TEST_P(Passes, RecomputationChangesNoBit) {
  const Trained all = train({});
  for (const Recompute& how : {Recompute{true, 0}, Recompute{false, 1}, Recompute{true, 1},
                               Recompute{true, 2}, Recompute{false, 99}}) {
    SCOPED_TRACE(fmt::format("cheap {} layers {}", how.cheap, how.whole_layers));
    PassOptions options;
    options.recompute = how;
    expect_same_bits(all, train(options));
  }
}

TEST_P(Passes, FusionLeavesFewerNodes) {
  const int64_t fused = count_nodes({}), no_epilogue = count_nodes(without({"fuse_epilogue"})),
                no_elementwise = count_nodes(without({"fuse_elementwise"})),
                plain = count_nodes(without({"fuse_elementwise", "fuse_epilogue"}));
  EXPECT_LT(fused, no_epilogue);
  EXPECT_LT(fused, no_elementwise);
  EXPECT_LT(no_epilogue, plain);
  EXPECT_LT(no_elementwise, plain);
  EXPECT_LT(count_nodes({}, "elementwise"), count_nodes(all_off(), "elementwise"));
  EXPECT_LE(plain, count_nodes(all_off())) << "simplify added nodes";
}

TEST_P(Passes, ProductsCarryTheirEpilogues) {
  EXPECT_EQ(count_nodes(without({"fuse_epilogue"}), "matmul", true), 0);
  // In each layer at least the two products into the residual stream end with its addition.
  EXPECT_GE(count_nodes({}, "matmul", true), 2 * 2);
  EXPECT_EQ(count_nodes({}, "matmul"), count_nodes(all_off(), "matmul"))
      << "a product was lost or doubled";
}

TEST_P(Passes, RecomputingRunsForwardNodesAgain) {
  auto again = [&](Recompute how) {
    PassOptions options;
    options.recompute = how;
    const Graph g = optimize(graph_, options);
    int64_t nodes = 0, products = 0;
    for (const Node& n : g.nodes) {
      nodes += n.recomputed;
      products += n.recomputed && n.op->name == "matmul";
    }
    return std::pair(nodes, products);
  };
  EXPECT_EQ(again({}).first, 0);
  EXPECT_GT(again({true, 0}).first, 0);
  EXPECT_EQ(again({true, 0}).second, 0) << "cheap recomputation ran a product again";
  EXPECT_GT(again({false, 1}).second, 0);
  EXPECT_GT(again({false, 2}).second, again({false, 1}).second);
}

TEST(PassOptions, EveryPassHasANameThatSwitchesItOff) {
  TinyModel tiny(kGpt2Keys);
  const Graph g = tiny.step_graph();
  const Graph plain = optimize(g, all_off());
  EXPECT_EQ(plain.str(), g.str()) << "something ran with every pass off";
  for (const char* name :
       {"simplify", "chunk_head", "recompute", "fuse_elementwise", "fuse_epilogue", "schedule"}) {
    PassOptions only = all_off();
    only.off.erase(name);
    only.recompute = {true, 1};
    only.head_chunk_rows = 4;
    EXPECT_NE(optimize(g, only).str(), g.str()) << name << " alone does nothing";
  }
}

}  // namespace
}  // namespace millrace
