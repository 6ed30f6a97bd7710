#include "graph/graph.h"

#include <algorithm>
#include <charconv>

namespace millrace {

std::string_view phase_name(Phase phase) {
  switch (phase) {
    case Phase::forward:
      return "forward";
    case Phase::backward:
      return "backward";
    case Phase::optimizer:
      return "optimizer";
  }
  return "";
}

bool Node::is(std::string_view op_name) const { return op->name == op_name; }

double traffic(const OpSite& site) {
  double bytes = 0;
  for (const TensorType& t : site.in) bytes += static_cast<double>(t.bytes());
  for (const TensorType& t : site.out) bytes += static_cast<double>(t.bytes());
  return bytes;
}

void set_store(Attrs& attrs, std::span<const DType> types) {
  attrs.erase("store");
  if (std::none_of(types.begin(), types.end(), is_half)) return;
  std::string text;
  for (size_t begin = 0, end = 0; begin < types.size(); begin = end) {
    while (end < types.size() && types[end] == types[begin]) ++end;
    if (begin == 0 && end == types.size())
      text = dtype_name(types[0]);
    else
      text += fmt::format("{}{}*{}", begin ? "," : "", dtype_name(types[begin]), end - begin);
  }
  attrs.set({"store", text});
}

namespace {

DType dtype_from_name(std::string_view name) {
  for (const DType t : {DType::f32, DType::i32, DType::bf16, DType::f16})
    if (dtype_name(t) == name) return t;
  MR_CHECK(false, "no type named {}", name);
  return DType::f32;
}

void apply_store(std::string_view text, std::vector<TensorType>& out) {
  if (text.find('*') == text.npos) {
    for (TensorType& t : out) t.dtype = dtype_from_name(text);
    return;
  }
  size_t next = 0;
  while (!text.empty()) {
    const std::string_view run = text.substr(0, text.find(','));
    text.remove_prefix(std::min(text.size(), run.size() + 1));
    const size_t star = run.find('*');
    int64_t count = 0;
    std::from_chars(run.data() + star + 1, run.data() + run.size(), count);
    for (; count > 0 && next < out.size(); --count)
      out[next++].dtype = dtype_from_name(run.substr(0, star));
    MR_CHECK(count == 0, "store names more than {} outputs", out.size());
  }
  MR_CHECK(next == out.size(), "store names {} of {} outputs", next, out.size());
}

}  // namespace

std::string infer_types(const OpCard& card, const Attrs& attrs, std::span<const TensorType> in,
                        std::vector<TensorType>& out) {
  std::vector<TensorType> full(in.begin(), in.end());
  for (TensorType& t : full)
    if (is_half(t.dtype)) t.dtype = DType::f32;
  if (std::string fault = card.infer(attrs, full, out); !fault.empty()) return fault;
  if (card.is_view) out[0].dtype = in[0].dtype;
  if (const std::string store = attrs.text("store"); !store.empty()) apply_store(store, out);
  return "";
}

std::vector<TensorType> Graph::in_types(const Node& node) const {
  std::vector<TensorType> types;
  types.reserve(node.in.size());
  for (Value v : node.in) types.push_back(type(v));
  return types;
}

NodeId Graph::find_leaf(std::string_view name) const {
  for (NodeId id = 0; id < size(); ++id)
    if ((*this)[id].leaf != Leaf::none && (*this)[id].name == name) return id;
  return -1;
}

std::vector<std::vector<NodeId>> Graph::users() const {
  std::vector<std::vector<NodeId>> users(nodes.size());
  for (NodeId id = 0; id < size(); ++id)
    for (Value v : (*this)[id].in) {
      auto& list = users[static_cast<size_t>(v.node)];
      if (list.empty() || list.back() != id) list.push_back(id);
    }
  return users;
}

Cost Graph::cost(const Node& node) const {
  const auto in = in_types(node);
  const OpSite site{node.attrs, in, node.out};
  if (node.leaf != Leaf::none || node.op->is_view) return {};
  return node.op->cost ? node.op->cost(site) : Cost{0, traffic(site)};
}

std::string Graph::str() const {
  std::string s;
  for (NodeId id = 0; id < size(); ++id) {
    const Node& n = (*this)[id];
    s += fmt::format("%{} = {}", id, n.op->name);
    if (!n.name.empty()) s += fmt::format(" {}", n.name);
    s += '(';
    for (size_t i = 0; i < n.in.size(); ++i)
      s += fmt::format("{}%{}{}", i ? ", " : "", n.in[i].node,
                       n.in[i].out ? fmt::format(".{}", n.in[i].out) : "");
    s += ')';
    if (const std::string a = n.attrs.str(); !a.empty()) s += " {" + a + "}";
    s += " ->";
    for (const TensorType& t : n.out) s += ' ' + t.str();
    s += fmt::format("  # {} {}{}\n", phase_name(n.phase),
                     scopes[static_cast<size_t>(n.scope)].path, n.recomputed ? " (again)" : "");
  }
  for (const auto& [name, v] : outputs)
    s += fmt::format("output {} = %{}.{}\n", name, v.node, v.out);
  for (const Update& u : updates)
    s += fmt::format("update {} = %{}.{}\n", (*this)[u.leaf].name, u.value.node, u.value.out);
  return s;
}

void verify(const Graph& g, std::string_view after) {
  auto valid = [&](Value v, NodeId before) {
    return v.node >= 0 && v.node < before && v.out >= 0 &&
           static_cast<size_t>(v.out) < g[v.node].out.size();
  };
  for (NodeId id = 0; id < g.size(); ++id) {
    const Node& n = g[id];
    MR_CHECK(n.op, "after {}: node {} has no op", after, id);
    MR_CHECK(n.scope >= 0 && static_cast<size_t>(n.scope) < g.scopes.size(),
             "after {}: node {} scope", after, id);
    for (Value v : n.in)
      MR_CHECK(valid(v, id), "after {}: node {} ({}) reads {}.{}", after, id, n.op->name, v.node,
               v.out);
    if (n.leaf != Leaf::none) continue;
    std::vector<TensorType> out;
    const std::string fault = infer_types(*n.op, n.attrs, g.in_types(n), out);
    MR_CHECK(fault.empty() && out == n.out, "after {}: node {} ({}) {}: {}", after, id, n.op->name,
             g.scopes[static_cast<size_t>(n.scope)].path, fault.empty() ? "types changed" : fault);
  }
  for (const auto& [name, v] : g.outputs)
    MR_CHECK(valid(v, g.size()), "after {}: output {}", after, name);
  for (const Update& u : g.updates) {
    MR_CHECK(u.leaf >= 0 && u.leaf < g.size() && g[u.leaf].leaf != Leaf::none, "after {}: update",
             after);
    MR_CHECK(valid(u.value, g.size()) && g.type(u.value) == g[u.leaf].out[0],
             "after {}: update of {}", after, g[u.leaf].name);
  }
}

Rewriter::Rewriter(const Graph& from) : from_(from) {
  to.scopes = from.scopes;
  map_.resize(from.nodes.size());
  for (NodeId id = 0; id < from.size(); ++id)
    map_[static_cast<size_t>(id)].resize(from[id].out.size());
}

Value Rewriter::mapped(Value old) const {
  const Value v = map_[static_cast<size_t>(old.node)][static_cast<size_t>(old.out)];
  MR_CHECK(v.valid(), "value {}.{} used before it is rewritten", old.node, old.out);
  return v;
}

std::vector<Value> Rewriter::mapped(const std::vector<Value>& old) const {
  std::vector<Value> values;
  values.reserve(old.size());
  for (Value v : old) values.push_back(mapped(v));
  return values;
}

NodeId Rewriter::copy(NodeId old) {
  Node node = from_[old];
  node.in = mapped(node.in);
  const NodeId id = append(std::move(node));
  for (size_t i = 0; i < to[id].out.size(); ++i)
    map({old, static_cast<int32_t>(i)}, {id, static_cast<int32_t>(i)});
  return id;
}

void Rewriter::map(Value old, Value replacement) {
  map_[static_cast<size_t>(old.node)][static_cast<size_t>(old.out)] = replacement;
}

Graph Rewriter::finish(std::string_view pass, const std::vector<Update>& added) {
  for (const auto& [name, v] : from_.outputs) to.outputs[name] = mapped(v);
  for (const Update& u : from_.updates)
    to.updates.push_back({mapped({u.leaf, 0}).node, mapped(u.value)});
  to.updates.insert(to.updates.end(), added.begin(), added.end());
  Graph graph = without_dead_nodes(to);
  verify(graph, pass);
  return graph;
}

Graph without_dead_nodes(const Graph& g) {
  std::vector<bool> needed(g.nodes.size(), false);
  for (const auto& [name, v] : g.outputs) needed[static_cast<size_t>(v.node)] = true;
  for (const Update& u : g.updates) needed[static_cast<size_t>(u.value.node)] = true;
  for (NodeId id = g.size() - 1; id >= 0; --id) {
    if (g[id].leaf != Leaf::none) needed[static_cast<size_t>(id)] = true;
    if (needed[static_cast<size_t>(id)])
      for (Value v : g[id].in) needed[static_cast<size_t>(v.node)] = true;
  }
  Graph out;
  out.scopes = g.scopes;
  std::vector<NodeId> to(g.nodes.size(), -1);
  for (NodeId id = 0; id < g.size(); ++id) {
    if (!needed[static_cast<size_t>(id)]) continue;
    Node node = g[id];
    for (Value& v : node.in) v.node = to[static_cast<size_t>(v.node)];
    to[static_cast<size_t>(id)] = out.size();
    out.nodes.push_back(std::move(node));
  }
  for (const auto& [name, v] : g.outputs)
    out.outputs[name] = {to[static_cast<size_t>(v.node)], v.out};
  for (const Update& u : g.updates)
    out.updates.push_back(
        {to[static_cast<size_t>(u.leaf)], {to[static_cast<size_t>(u.value.node)], u.value.out}});
  return out;
}

}  // namespace millrace
