// A node of a Plan with the memory it reads and writes: what every backend makes its steps of.
#pragma once
#include <span>
#include <vector>

#include "graph/plan.h"

namespace millrace {

struct BoundNode {
  NodeId id = -1;
  std::vector<TensorType> in_types;
  std::vector<const void*> in;
  std::vector<void*> out;
  void* workspace = nullptr;
  int64_t workspace_bytes = 0;

  OpSite site(const Plan& plan) const {
    const Node& n = plan.graph[id];
    return {n.attrs, in_types, n.out};
  }
};

// The nodes that a kernel runs, in order; `place[b]` is where buffer b of the plan lives.
std::vector<BoundNode> bind_nodes(const Plan& plan, std::span<std::byte* const> place);
// The first one of the optimizer, or how many there are.
size_t first_of_update(const Plan& plan, std::span<const BoundNode> nodes);

}  // namespace millrace
