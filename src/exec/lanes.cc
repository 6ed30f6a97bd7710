#include "exec/lanes.h"

#include <algorithm>

namespace millrace {
namespace {

bool meet(const std::vector<MemoryRange>& a, const std::vector<MemoryRange>& b) {
  for (const MemoryRange& x : a)
    for (const MemoryRange& y : b)
      if (x.begin < y.end && y.begin < x.end) return true;
  return false;
}

bool hinders(const LaneNode& earlier, const LaneNode& later) {
  return meet(earlier.written, later.read) || meet(earlier.written, later.written) ||
         meet(earlier.read, later.written);
}

}  // namespace

LaneNode lane_node(const Plan& plan, const BoundNode& node, NodePart part) {
  const auto id = static_cast<size_t>(node.id);
  const KernelChoice& kernel = plan.kernels[id];
  const bool end = part == NodePart::end;
  LaneNode lane{.beside = end ? plan.end_beside[id] : plan.beside[id], .read = {}, .written = {}};
  const auto range = [](const void* data, int64_t bytes) {
    const auto* const at = static_cast<const std::byte*>(data);
    return MemoryRange{at, at + bytes};
  };
  for (size_t i = 0; i < node.in.size() && !end; ++i)
    lane.read.push_back(range(node.in[i], node.in_types[i].bytes()));
  const std::vector<TensorType>& out = plan.graph[node.id].out;
  for (size_t o = 0; o < node.out.size(); ++o)
    if (part == NodePart::whole || end == (static_cast<int32_t>(o) >= kernel.end_from))
      lane.written.push_back(range(node.out[o], out[o].bytes()));
  if (node.workspace) lane.written.push_back(range(node.workspace, node.workspace_bytes));
  return lane;
}

Lanes::Lanes(std::span<const LaneNode> nodes) : steps_(nodes.size()) {
  // Per lane, the node of the other that it has waited for: those before that one are over too.
  std::optional<size_t> waited[2];
  for (size_t i = 0; i < nodes.size(); ++i) {
    steps_[i].beside = nodes[i].beside;
    std::optional<size_t>& over = waited[steps_[i].beside ? 1 : 0];
    for (size_t k = i; k-- > 0 && (!over || k > *over);) {
      if (nodes[k].beside == nodes[i].beside || !hinders(nodes[k], nodes[i])) continue;
      steps_[i].waits_for = over = k;
      steps_[k].is_waited_for = true;
      break;
    }
  }
}

bool Lanes::any_beside() const {
  return std::any_of(steps_.begin(), steps_.end(), [](const Step& s) { return s.beside; });
}

}  // namespace millrace
