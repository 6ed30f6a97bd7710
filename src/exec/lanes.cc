#include "exec/lanes.h"

#include <algorithm>

namespace millrace {
namespace {

struct Range {
  const std::byte *begin, *end;
};
Range range(const void* data, int64_t bytes) {
  const auto* const at = static_cast<const std::byte*>(data);
  return {at, at + bytes};
}

bool meet(const std::vector<Range>& a, const std::vector<Range>& b) {
  for (const Range& x : a)
    for (const Range& y : b)
      if (x.begin < y.end && y.begin < x.end) return true;
  return false;
}

struct Touched {
  std::vector<Range> read, written;
  bool hinders(const Touched& later) const {
    return meet(written, later.read) || meet(written, later.written) || meet(read, later.written);
  }
};

Touched touched_by(const Plan& plan, const BoundNode& node) {
  Touched t;
  for (size_t i = 0; i < node.in.size(); ++i)
    t.read.push_back(range(node.in[i], node.in_types[i].bytes()));
  const Node& n = plan.graph[node.id];
  for (size_t o = 0; o < node.out.size(); ++o)
    t.written.push_back(range(node.out[o], n.out[o].bytes()));
  if (node.workspace) t.written.push_back(range(node.workspace, node.workspace_bytes));
  return t;
}

}  // namespace

Lanes::Lanes(const Plan& plan, std::span<const BoundNode* const> nodes) : steps_(nodes.size()) {
  std::vector<Touched> touched;
  // Per lane, the node of the other that it has waited for: those before that one are over too.
  std::optional<size_t> waited[2];
  for (size_t i = 0; i < nodes.size(); ++i) {
    touched.push_back(touched_by(plan, *nodes[i]));
    steps_[i].beside = plan.beside[static_cast<size_t>(nodes[i]->id)];
    std::optional<size_t>& over = waited[steps_[i].beside ? 1 : 0];
    for (size_t k = i; k-- > 0 && (!over || k > *over);) {
      if (steps_[k].beside == steps_[i].beside || !touched[k].hinders(touched[i])) continue;
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
