// Nodes on two lanes: those that a plan allows to run beside the others, and the others. Every node
// waits for those of the other lane that wrote what it touches or touched what it writes: memory
// that is used again is no different from a result.
#pragma once
#include <cstddef>
#include <optional>
#include <span>
#include <vector>

#include "exec/bound_node.h"

namespace millrace {

enum class NodePart : uint8_t { whole, begin, end };  // KernelChoice::end_from

struct MemoryRange {
  const std::byte *begin, *end;
};
struct LaneNode {
  bool beside = false;
  std::vector<MemoryRange> read, written;
};
LaneNode lane_node(const Plan& plan, const BoundNode& node, NodePart part);

class Lanes {
 public:
  struct Step {
    bool beside = false;
    std::optional<size_t> waits_for;  // the latest of the other lane that must be over
    bool is_waited_for = false;
  };
  explicit Lanes(std::span<const LaneNode> nodes);
  bool any_beside() const;
  const Step& operator[](size_t node) const { return steps_[node]; }

 private:
  std::vector<Step> steps_;
};

}  // namespace millrace
