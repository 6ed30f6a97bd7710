// The reference executor: every node by its card's plain loop, every value in storage of its own,
// in float or double. Slow and obvious; what everything else is tested against.
#pragma once
#include <map>
#include <string>
#include <vector>

#include "graph/graph.h"

namespace millrace {

template <typename T>
class Reference {
 public:
  explicit Reference(const Graph& graph);
  // Leaves are set by name; f32 leaves hold T.
  std::vector<T>& values(const std::string& leaf);
  std::vector<int32_t>& ids(const std::string& leaf);
  void run();  // also applies the updates
  const std::vector<T>& value(Value v) const {
    return floats_[static_cast<size_t>(v.node)][static_cast<size_t>(v.out)];
  }
  const std::vector<T>& output(const std::string& name) const {
    return value(graph_.outputs.at(name));
  }

 private:
  Graph graph_;
  std::vector<std::vector<std::vector<T>>> floats_;
  std::vector<std::vector<std::vector<int32_t>>> ints_;
};

extern template class Reference<float>;
extern template class Reference<double>;

}  // namespace millrace
