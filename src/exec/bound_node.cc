#include "exec/bound_node.h"

namespace millrace {

std::vector<BoundNode> bind_nodes(const Plan& plan, std::span<std::byte* const> place) {
  std::vector<BoundNode> nodes;
  for (NodeId id = 0; id < plan.graph.size(); ++id) {
    const auto at = static_cast<size_t>(id);
    if (plan.kernels[at].name.empty()) continue;
    const Node& n = plan.graph[id];
    BoundNode& bound = nodes.emplace_back();
    bound.id = id;
    bound.in_types = plan.graph.in_types(n);
    for (Value v : n.in)
      bound.in.push_back(place[static_cast<size_t>(
          plan.buffer_of[static_cast<size_t>(v.node)][static_cast<size_t>(v.out)])]);
    for (int32_t b : plan.buffer_of[at]) bound.out.push_back(place[static_cast<size_t>(b)]);
    if (const int32_t w = plan.workspace_of[at]; w >= 0) {
      bound.workspace = place[static_cast<size_t>(w)];
      bound.workspace_bytes = plan.buffers[static_cast<size_t>(w)].bytes;
    }
  }
  return nodes;
}

size_t first_of_update(const Plan& plan, std::span<const BoundNode> nodes) {
  size_t first = 0;
  while (first < nodes.size() && plan.graph[nodes[first].id].phase != Phase::optimizer) ++first;
  return first;
}

}  // namespace millrace
