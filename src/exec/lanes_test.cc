#include "exec/lanes.h"

#include <gtest/gtest.h>

#include "graph/autodiff.h"
#include "graph/builder.h"

namespace millrace {
namespace {

class Chooser : public KernelChooser {
 public:
  explicit Chooser(bool beside) : beside_(beside) {}
  KernelChoice choose(const OpCard&, const OpSite&) override {
    return {.name = "one", .workspace_bytes = 512, .declined = {}};
  }
  bool runs_beside() const override { return beside_; }

 private:
  bool beside_;
};

// The sum of x, its gradients, and an update that takes them from the parameters.
Graph train(Builder& b, Value x, const std::vector<Value>& weights) {
  const Value loss = b.reduce_to(x, {});
  b.phase = Phase::backward;
  const Seed seed{loss, b.constant(1)};
  const auto gradient = gradients(b, std::span(&seed, 1), weights);
  b.phase = Phase::optimizer;
  for (size_t i = 0; i < weights.size(); ++i) b.update(weights[i], b.sub(weights[i], gradient[i]));
  b.output("loss", loss);
  return b.finish();
}

// A stack of y = tanh(x w).
Graph stack(int layers, int64_t width) {
  Builder b;
  Value x = b.input("x", {{width, width}, DType::f32});
  std::vector<Value> weights;
  for (int i = 0; i < layers; ++i) {
    weights.push_back(b.parameter("w" + std::to_string(i), {width, width}));
    x = b.apply(Function::tanh, b.matmul(x, weights.back()));
  }
  return train(b, x, weights);
}

struct Bound {
  explicit Bound(const Plan& plan)
      : memory(static_cast<size_t>(plan.state_bytes + plan.scratch_bytes)) {
    std::vector<std::byte*> place;
    for (const Buffer& b : plan.buffers)
      place.push_back(memory.data() + (b.in_state ? b.offset : plan.state_bytes + b.offset));
    nodes = bind_nodes(plan, place);
    for (const BoundNode& n : nodes) lane_nodes.push_back(lane_node(plan, n, NodePart::whole));
  }
  std::vector<std::byte> memory;
  std::vector<BoundNode> nodes;
  std::vector<LaneNode> lane_nodes;
};

TEST(Lanes, GradientsOfParametersRunBesideTheChain) {
  Chooser chooser(true);
  const Plan plan = make_plan(stack(6, 8), {}, chooser);
  const Bound bound(plan);
  const Lanes lanes(bound.lane_nodes);
  int beside = 0;
  for (size_t i = 0; i < bound.nodes.size(); ++i) {
    const Node& n = plan.graph[bound.nodes[i].id];
    if (!lanes[i].beside) continue;
    ++beside;
    EXPECT_EQ(n.phase, Phase::backward);
    EXPECT_EQ(n.op->name, "matmul");
    EXPECT_EQ(n.out[0].shape, (Shape{8, 8}));
  }
  EXPECT_EQ(beside, 6);
  EXPECT_TRUE(lanes.any_beside());
  // The chain itself does not wait for them before the update.
  for (size_t i = 0; i < bound.nodes.size(); ++i)
    if (plan.graph[bound.nodes[i].id].phase == Phase::backward && !lanes[i].beside) {
      EXPECT_FALSE(lanes[i].waits_for) << plan.text();
    }
}

TEST(Lanes, NobodyRunsBesideWhereThatIsOffOrFillsTheDevice) {
  Chooser one(false), two(true);
  PassOptions off;
  off.off.insert("beside");
  for (const Plan& plan : {make_plan(stack(3, 8), {}, one), make_plan(stack(3, 8), off, two),
                           make_plan(stack(3, 2600), {}, two)}) {
    EXPECT_EQ(std::count(plan.beside.begin(), plan.beside.end(), true), 0);
    EXPECT_EQ(plan.text().find(" beside"), std::string::npos);
  }
  EXPECT_NE(make_plan(stack(3, 8), {}, two).text().find(" beside"), std::string::npos);
}

// Whatever order two lanes run in, as far as waiting allows it, every node finds what the plan's
// own order would have given it. Lanes are run one ahead of the other as far as possible; a byte of
// each buffer says which node wrote it last.
TEST(Lanes, AnyOrderThatWaitsGivesEveryNodeWhatItWants) {
  Chooser chooser(true);
  for (const bool chain_first : {false, true})
    for (const int layers : {1, 2, 5, 12}) {
      const Plan plan = make_plan(stack(layers, 8), {}, chooser);
      const Bound bound(plan);
      const Lanes lanes(bound.lane_nodes);
      const size_t count = bound.nodes.size();
      auto written_by = [&](std::map<const void*, size_t>& last, size_t i) {
        std::vector<size_t> found;
        for (const void* in : bound.nodes[i].in)
          found.push_back(last.contains(in) ? last[in] : count);
        for (void* out : bound.nodes[i].out) last[out] = i;
        if (bound.nodes[i].workspace) last[bound.nodes[i].workspace] = i;
        return found;
      };
      std::map<const void*, size_t> in_order, in_lanes;
      std::vector<std::vector<size_t>> wanted(count);
      for (size_t i = 0; i < count; ++i) wanted[i] = written_by(in_order, i);
      std::vector<bool> done(count, false);
      size_t next[2] = {0, 0};
      for (size_t steps = 0; steps < count; ++steps) {
        bool ran = false;
        for (int turn = 0; turn < 2 && !ran; ++turn) {
          const bool beside = (turn == 0) != chain_first;
          size_t& i = next[beside ? 1 : 0];
          while (i < count && lanes[i].beside != beside) ++i;
          if (i == count || (lanes[i].waits_for && !done[*lanes[i].waits_for])) continue;
          EXPECT_EQ(written_by(in_lanes, i), wanted[i])
              << "node " << i << (chain_first ? ", chain first" : ", side first") << "\n"
              << plan.text();
          done[i] = ran = true;
          ++i;
        }
        ASSERT_TRUE(ran) << "the lanes wait for each other";
      }
    }
}

// Layer norms whose gradients of parameters are made at the end, of a kernel that has such an end.
class WithEnds : public KernelChooser {
 public:
  KernelChoice choose(const OpCard& op, const OpSite&) override {
    KernelChoice choice{.name = "one", .workspace_bytes = 512, .declined = {}};
    if (op.name == "layer_norm_grad") choice.end_from = 1;
    return choice;
  }
  bool runs_beside() const override { return true; }
};

Graph norms(int layers) {
  Builder b;
  Value x = b.input("x", {{16, 8}, DType::f32});
  std::vector<Value> weights;
  for (int i = 0; i < layers; ++i) {
    weights.push_back(b.parameter("w" + std::to_string(i), {8}));
    const auto y = b.op_all("layer_norm", {x, weights.back()}, {{"eps", 1e-5}, {"bias", 0}});
    x = b.add(x, b.apply(Function::tanh, y[0]));
  }
  return train(b, x, weights);
}

TEST(Lanes, EndsOfKernelsRunBesideWhatFollows) {
  WithEnds chooser;
  const Plan plan = make_plan(norms(5), {}, chooser);
  EXPECT_NE(plan.text().find(" end beside"), std::string::npos);
  const Bound bound(plan);
  std::vector<LaneNode> parts;
  int ends = 0;
  for (const BoundNode& n : bound.nodes) {
    const bool apart = plan.kernels[static_cast<size_t>(n.id)].end_from >= 0;
    parts.push_back(lane_node(plan, n, apart ? NodePart::begin : NodePart::whole));
    if (!apart) continue;
    parts.push_back(lane_node(plan, n, NodePart::end));
    EXPECT_TRUE(parts.back().beside);
    // Nobody wants the gradient of x: the first layer's norm is beside as a whole.
    EXPECT_EQ(parts[parts.size() - 2].beside, ends == 4);
    EXPECT_TRUE(parts.back().read.empty());
    EXPECT_EQ(parts.back().written.size(), 2u);  // the gradient of the weight and the workspace
    ++ends;
  }
  EXPECT_EQ(ends, 5);
  const Lanes lanes(parts);
  size_t part = 0;
  for (const BoundNode& n : bound.nodes) {
    const bool apart = plan.kernels[static_cast<size_t>(n.id)].end_from >= 0;
    if (plan.graph[n.id].phase != Phase::optimizer && !lanes[part].beside) {
      EXPECT_FALSE(lanes[part].waits_for) << plan.text();
    }
    if (apart && !lanes[part].beside) {  // the end waits for the beginning
      EXPECT_EQ(lanes[part + 1].waits_for, part);
      EXPECT_TRUE(lanes[part].is_waited_for);
    }
    part += apart ? 2 : 1;
  }
}

}  // namespace
}  // namespace millrace
