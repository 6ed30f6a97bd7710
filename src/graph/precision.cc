// Precision: the types of a graph that was built in f32. A value of forward and backward is stored
// in 16 bits unless something says otherwise: its op (statistics, losses: OpCard::full_out), its
// rank (numbers), or what becomes of it (gradients on their way to the optimizer). Sums are formed
// in f32 inside every kernel, so only what is stored is rounded. Where nothing is stored in 16
// bits, operands of products are rounded and nothing else.
#include <map>
#include <set>

#include "graph/passes.h"

namespace millrace {

std::string_view precision_name(Precision precision) {
  switch (precision) {
    case Precision::fp32:
      return "fp32";
    case Precision::tf32:
      return "tf32";
    case Precision::bf16:
      return "bf16";
    case Precision::fp16:
      return "fp16";
  }
  return "";
}

std::string shadow_name(std::string_view parameter) { return fmt::format("half.{}", parameter); }

namespace {

// Values that the optimizer or somebody outside reads, and what is added up into them.
std::set<Value> exact_values(const Graph& g) {
  std::set<Value> exact;
  for (const auto& [name, v] : g.outputs) exact.insert(v);
  for (NodeId id = g.size() - 1; id >= 0; --id) {
    const Node& n = g[id];
    if (n.phase == Phase::optimizer && n.leaf == Leaf::none) exact.insert(n.in.begin(), n.in.end());
    if (!n.is("elementwise") && !n.is("embedding_grad") && !n.is("softmax") && !n.op->is_view)
      continue;
    for (size_t o = 0; o < n.out.size(); ++o) {
      if (!exact.contains({id, static_cast<int32_t>(o)})) continue;
      for (Value v : n.in)
        if (g.type(v).numel() == n.out[o].numel()) exact.insert(v);
    }
  }
  return exact;
}

class ToHalf {
 public:
  ToHalf(const Graph& graph, DType half) : g_(graph), half_(half), r_(graph) {}

  Graph run() {
    const std::set<Value> exact = exact_values(g_);
    for (NodeId id = 0; id < g_.size(); ++id) {
      const Node& n = g_[id];
      if (n.leaf == Leaf::cache) {
        Node leaf = n;
        leaf.out[0].dtype = half_;
        r_.map({id, 0}, {r_.append(std::move(leaf)), 0});
      } else if (n.leaf != Leaf::none || n.op->is_view) {
        NodeId copy = r_.copy(id);
        if (n.op->is_view) r_.to[copy].out[0].dtype = r_.to.type(r_.to[copy].in[0]).dtype;
      } else if (n.phase == Phase::optimizer) {
        copy_optimizer_node(id);
      } else {
        copy_node(id, exact);
      }
    }
    // A cache keeps 16 bits of what an op gives in full.
    for (const Update& u : g_.updates) {
      const Value v = r_.mapped(u.value);
      const DType kept = r_.to.type(r_.mapped({u.leaf, 0})).dtype;
      if (r_.to.type(v).dtype != kept) r_.map(u.value, cast(v, kept, g_[u.value.node]));
    }
    // A shadow that no optimizer keeps (validation, generation) is only read.
    return r_.finish("precision", updates_);
  }

 private:
  // The parameter behind a value, through views; -1 when it is none.
  NodeId parameter_of(Value v) const {
    while (g_[v.node].op->is_view) v = g_[v.node].in[0];
    return g_[v.node].leaf == Leaf::parameter ? v.node : -1;
  }

  Value shadow_of(NodeId parameter) {
    const auto found = shadows_.find(parameter);
    if (found != shadows_.end()) return {found->second, 0};
    Node leaf = g_[parameter];
    leaf.leaf = Leaf::shadow;
    leaf.name = shadow_name(leaf.name);
    leaf.out[0].dtype = half_;
    const NodeId id = r_.append(std::move(leaf));
    shadows_[parameter] = id;
    return {id, 0};
  }

  // A parameter as 16 bits, in the shape in which it is read.
  Value half_parameter(Value v) {
    const Node& n = g_[v.node];
    if (!n.op->is_view) return shadow_of(v.node);
    const auto found = views_.find(v.node);
    if (found != views_.end()) return {found->second, 0};
    Node view = n;
    view.in = {half_parameter(n.in[0])};
    view.out[0].dtype = half_;
    const NodeId id = r_.append(std::move(view));
    views_[v.node] = id;
    return {id, 0};
  }

  Value cast(Value v, DType to, const Node& reader) {
    const auto found = casts_.find({v, to});
    if (found != casts_.end()) return found->second;
    Node n{.op = find_op_card("elementwise"),
           .in = {v},
           .attrs = {{"expr", "->a0"}},
           .out = {{r_.to.type(v).shape, to}},
           .scope = reader.scope,
           .phase = reader.phase,
           .leaf = Leaf::none,
           .name = {}};
    set_store(n.attrs, std::span(&to, 1));
    return casts_[{v, to}] = Value{r_.append(std::move(n)), 0};
  }

  void copy_node(NodeId id, const std::set<Value>& exact) {
    const Node& n = g_[id];
    Node node = n;
    // Probabilities that are read outside are of full logits: rounded, large ones are percents off.
    const bool element_by_element = n.is("elementwise"),
               exact_softmax = n.is("softmax") && exact.contains({id, 0});
    for (size_t i = 0; i < n.in.size(); ++i) {
      const bool full = exact_softmax || (i < 32 && (n.op->full_in >> i & 1) != 0);
      const TensorType& type = g_.type(n.in[i]);
      if (type.dtype != DType::f32) {
        node.in[i] = r_.mapped(n.in[i]);
        continue;
      }
      const bool parameter = parameter_of(n.in[i]) >= 0;
      if (parameter && !full && type.shape.rank() > 0) {
        node.in[i] = half_parameter(n.in[i]);
        continue;
      }
      const Value v = r_.mapped(n.in[i]);
      const DType is = r_.to.type(v).dtype;
      node.in[i] = v;
      if (element_by_element || type.shape.rank() == 0) continue;  // reads any type
      if (full && is_half(is)) node.in[i] = cast(v, DType::f32, n);
      if (!full && !is_half(is)) node.in[i] = cast(v, half_, n);
    }
    std::vector<DType> store;
    for (size_t o = 0; o < n.out.size(); ++o) {
      const bool full = (o < 32 && (n.op->full_out >> o & 1) != 0) || n.out[o].shape.rank() == 0 ||
                        exact.contains({id, static_cast<int32_t>(o)});
      store.push_back(n.out[o].dtype == DType::f32 && !full ? half_ : n.out[o].dtype);
      node.out[o].dtype = store.back();
    }
    set_store(node.attrs, store);
    const NodeId to = r_.append(std::move(node));
    for (size_t o = 0; o < n.out.size(); ++o)
      r_.map({id, static_cast<int32_t>(o)}, {to, static_cast<int32_t>(o)});
  }

  void copy_optimizer_node(NodeId id) {
    const NodeId copy = r_.copy(id);
    Node& n = r_.to[copy];
    for (Value& v : n.in)
      MR_CHECK(!is_half(r_.to.type(v).dtype), "{} reads a 16-bit value", n.op->name);
    if (!n.op->keeps_shadows) return;
    std::string list;
    std::vector<DType> store;
    for (const TensorType& t : n.out) store.push_back(t.dtype);
    const int64_t count = n.attrs.integer("n");
    for (int64_t i = 0; i < count; ++i) {
      const auto shadow = shadows_.find(g_[id].in[static_cast<size_t>(i)].node);
      if (shadow == shadows_.end()) continue;
      list += fmt::format("{}{}", list.empty() ? "" : ";", i);
      n.in.push_back({shadow->second, 0});
      updates_.push_back({shadow->second, {copy, static_cast<int32_t>(n.out.size())}});
      n.out.push_back(r_.to[shadow->second].out[0]);
      store.push_back(half_);
    }
    if (list.empty()) return;
    n.attrs.set({"shadows", list});
    set_store(n.attrs, store);
  }

  const Graph& g_;
  DType half_;
  Rewriter r_;
  std::map<NodeId, NodeId> shadows_, views_;  // parameter, view of one -> its 16-bit twin
  std::map<std::pair<Value, DType>, Value> casts_;
  std::vector<Update> updates_;  // of shadows, in the new graph
};

}  // namespace

Graph apply_precision(const Graph& graph, Precision precision, bool stores_halves) {
  if (precision == Precision::fp32) return graph;
  if (precision == Precision::tf32 || !stores_halves) {
    Graph g = graph;
    for (Node& n : g.nodes)
      if (n.op->multiplies) n.attrs.set({"math", std::string(precision_name(precision))});
    verify(g, "precision");
    return g;
  }
  return ToHalf(graph, precision == Precision::bf16 ? DType::bf16 : DType::f16).run();
}

}  // namespace millrace
