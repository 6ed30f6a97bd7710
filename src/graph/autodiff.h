// Reverse-mode differentiation: extends a graph with the nodes of its own backward pass.
#pragma once
#include <span>
#include <vector>

#include "graph/builder.h"

namespace millrace {

// What an op's `vjp` works with: its inputs, outputs and the cotangents of its outputs; it sets the
// cotangents of the inputs that want one, out of graph nodes.
class GradContext {
 public:
  GradContext(Builder& builder, const Node& forward, NodeId id, std::span<const Value> out_grads,
              std::vector<bool> wanted)
      : b(builder),
        node(forward),
        id_(id),
        out_grads_(out_grads),
        wanted_(std::move(wanted)),
        in_grads(forward.in.size()) {}

  Builder& b;
  const Node node;  // a copy: the builder's node list grows while we work
  Value in(size_t i) const { return node.in[i]; }
  Value out(size_t i) const { return {id_, static_cast<int32_t>(i)}; }
  Value grad(size_t i) const {
    return out_grads_[i];
  }  // invalid when nothing downstream uses output i
  bool wants(size_t i) const { return wanted_[i]; }
  void set(size_t i, Value v) { in_grads[i] = v; }

 private:
  NodeId id_;
  std::span<const Value> out_grads_;
  std::vector<bool> wanted_;

 public:
  std::vector<Value> in_grads;
};

// The gradients of `targets` (each with its cotangent) with respect to `wanted`; an unreached one
// is an invalid Value. Nodes are added in Phase::backward under the scope of the forward node.
struct Seed {
  Value target;
  Value cotangent;
};
std::vector<Value> gradients(Builder& b, std::span<const Seed> seeds,
                             std::span<const Value> wanted);

}  // namespace millrace
