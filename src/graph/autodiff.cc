#include "graph/autodiff.h"

namespace millrace {

std::vector<Value> gradients(Builder& b, std::span<const Seed> seeds,
                             std::span<const Value> wanted) {
  if (b.failed()) return std::vector<Value>(wanted.size());
  const NodeId end = b.graph().size();
  // A node is active when a wanted value flows into it.
  std::vector<bool> active(static_cast<size_t>(end), false);
  for (Value v : wanted) active[static_cast<size_t>(v.node)] = true;
  for (NodeId id = 0; id < end; ++id)
    for (Value v : b.graph()[id].in)
      if (active[static_cast<size_t>(v.node)]) active[static_cast<size_t>(id)] = true;

  std::vector<std::vector<Value>> grad(static_cast<size_t>(end));
  for (NodeId id = 0; id < end; ++id)
    grad[static_cast<size_t>(id)].resize(b.graph()[id].out.size());
  auto accumulate = [&](Value v, Value g) {
    Value& slot = grad[static_cast<size_t>(v.node)][static_cast<size_t>(v.out)];
    slot = slot.valid() ? b.add(slot, g) : g;
  };

  const Phase phase = b.phase;
  const int32_t scope = b.current_scope();
  b.phase = Phase::backward;
  for (const Seed& seed : seeds) accumulate(seed.target, seed.cotangent);
  for (NodeId id = end - 1; id >= 0; --id) {
    const auto& out_grads = grad[static_cast<size_t>(id)];
    bool reached = false;
    for (Value g : out_grads) reached = reached || g.valid();
    const Node& node = b.graph()[id];
    if (!reached || !active[static_cast<size_t>(id)] || node.leaf != Leaf::none) continue;
    b.set_scope(node.scope);
    if (!node.op->vjp) {
      b.fail(fmt::format("{}: no gradient: {}", node.op->name, node.op->no_gradient));
      break;
    }
    std::vector<bool> wants;
    for (Value v : node.in)
      wants.push_back(active[static_cast<size_t>(v.node)] && b.type(v).dtype == DType::f32);
    GradContext context(b, node, id, out_grads, std::move(wants));
    node.op->vjp(context);
    if (b.failed()) break;
    for (size_t i = 0; i < context.in_grads.size(); ++i) {
      const Value g = context.in_grads[i];
      if (!g.valid()) continue;
      MR_CHECK(b.shape(g) == b.shape(context.in(i)), "{}: gradient {} has shape {}, input {}",
               context.node.op->name, i, b.shape(g).str(), b.shape(context.in(i)).str());
      accumulate(context.in(i), g);
    }
  }
  b.set_scope(scope);
  b.phase = phase;
  std::vector<Value> result;
  for (Value v : wanted)
    result.push_back(b.failed() ? Value{}
                                : grad[static_cast<size_t>(v.node)][static_cast<size_t>(v.out)]);
  return result;
}

}  // namespace millrace
