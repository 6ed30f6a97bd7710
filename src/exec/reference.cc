#include "exec/reference.h"

namespace millrace {

template <typename T>
Reference<T>::Reference(const Graph& graph)
    : graph_(graph), floats_(graph.nodes.size()), ints_(graph.nodes.size()) {
  for (size_t id = 0; id < graph_.nodes.size(); ++id)
    for (const TensorType& t : graph_.nodes[id].out) {
      floats_[id].emplace_back(t.dtype != DType::i32 ? static_cast<size_t>(t.numel()) : 0);
      ints_[id].emplace_back(t.dtype == DType::i32 ? static_cast<size_t>(t.numel()) : 0);
    }
}

template <typename T>
std::vector<T>& Reference<T>::values(const std::string& leaf) {
  const NodeId id = graph_.find_leaf(leaf);
  MR_CHECK(id >= 0, "no leaf {}", leaf);
  return floats_[static_cast<size_t>(id)][0];
}

template <typename T>
std::vector<int32_t>& Reference<T>::ids(const std::string& leaf) {
  const NodeId id = graph_.find_leaf(leaf);
  MR_CHECK(id >= 0, "no leaf {}", leaf);
  return ints_[static_cast<size_t>(id)][0];
}

template <typename T>
void Reference<T>::run() {
  for (NodeId id = 0; id < graph_.size(); ++id) {
    const Node& n = graph_[id];
    if (n.leaf != Leaf::none) continue;
    std::vector<const void*> in;
    std::vector<void*> out;
    auto place = [&](Value v) -> void* {
      const auto node = static_cast<size_t>(v.node), o = static_cast<size_t>(v.out);
      if (graph_.type(v).dtype == DType::i32) return ints_[node][o].data();
      return floats_[node][o].data();
    };
    for (Value v : n.in) in.push_back(place(v));
    for (size_t o = 0; o < n.out.size(); ++o) out.push_back(place({id, static_cast<int32_t>(o)}));
    const auto in_types = graph_.in_types(n);
    const RefCall<T> call{{n.attrs, in_types, n.out}, in, out};
    if constexpr (sizeof(T) == 4)
      n.op->reference_f32(call);
    else
      n.op->reference_f64(call);
  }
  std::vector<std::vector<T>> fresh;
  for (const Update& u : graph_.updates) fresh.push_back(value(u.value));
  for (size_t i = 0; i < fresh.size(); ++i)
    floats_[static_cast<size_t>(graph_.updates[i].leaf)][0] = std::move(fresh[i]);
}

template class Reference<float>;
template class Reference<double>;

}  // namespace millrace
