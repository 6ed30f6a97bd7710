#include "graph/passes.h"

#include <algorithm>
#include <map>
#include <numeric>

#include "graph/expression.h"

namespace millrace {

std::vector<std::string_view> pass_names() {
  return {"simplify",      "chunk_head", "recompute", "fuse_elementwise",
          "fuse_epilogue", "schedule",   "beside"};
}

Graph optimize(const Graph& graph, const PassOptions& options, bool stores_halves) {
  auto on = [&](const char* name) { return !options.off.contains(name); };
  Graph g = graph;
  if (on("simplify")) g = simplify(g);
  g = apply_precision(g, options.precision, stores_halves);
  if (on("chunk_head") && options.head_chunk_rows > 0) g = chunk_head(g, options.head_chunk_rows);
  // Before fusion: a cheap result can be recomputed alone only while it is a node of its own.
  if (on("recompute") && !(options.recompute == Recompute{})) g = recompute(g, options.recompute);
  if (on("fuse_elementwise")) g = fuse_elementwise(g);
  if (on("fuse_epilogue")) g = fuse_epilogue(g);
  if (on("schedule")) g = schedule(g);
  return g;
}

std::vector<int32_t> recompute_units(const Graph& graph) {
  std::vector<int32_t> units;
  for (size_t i = 0; i < graph.scopes.size(); ++i)
    if (graph.scopes[i].recompute_unit == static_cast<int32_t>(i))
      units.push_back(static_cast<int32_t>(i));
  return units;
}

namespace {

Expression expression_of(const Node& n) {
  return Expression::parse(n.attrs.text("expr"), static_cast<int>(n.in.size()));
}

// Whether `e` still reads an input that has the result's shape; without one the shape could not be
// inferred.
bool reads_shape(const Graph& g, const Expression& e, const std::vector<Value>& in,
                 const Shape& shape) {
  bool found = false;
  auto look = [&](Term t) {
    found = found || (t.is_operand() && g.type(in[static_cast<size_t>(t.index())]).shape == shape);
  };
  for (const Instruction& c : e.code) {
    if (function_arity(c.function) >= 1) look(c.a);
    if (function_arity(c.function) >= 2) look(c.b);
  }
  for (Term t : e.results) look(t);
  return found;
}

std::vector<DType> dtypes(const std::vector<TensorType>& types) {
  std::vector<DType> list;
  for (const TensorType& t : types) list.push_back(t.dtype);
  return list;
}

// An element-wise node from an expression and inputs, equal and unused inputs removed; `store` are
// the types of its results.
Node elementwise_node(const Graph& g, const Expression& expression, const std::vector<Value>& in,
                      const std::vector<DType>& store, const Node& like) {
  std::vector<int> same_as(in.size()), operand_of;
  for (size_t i = 0; i < in.size(); ++i)
    same_as[i] = static_cast<int>(std::find(in.begin(), in.end(), in[i]) - in.begin());
  const Expression e = compact_operands(expression, same_as, operand_of);
  Node n{.op = find_op_card("elementwise"),
         .in = {},
         .attrs = {{"expr", e.str()}},
         .out = {},
         .scope = like.scope,
         .phase = like.phase,
         .leaf = Leaf::none,
         .name = {},
         .recomputed = like.recomputed};
  n.in.resize(static_cast<size_t>(e.operands));
  for (size_t i = 0; i < in.size(); ++i)
    if (operand_of[i] >= 0) n.in[static_cast<size_t>(operand_of[i])] = in[i];
  set_store(n.attrs, store);
  const std::string fault = infer_types(*n.op, n.attrs, g.in_types(n), n.out);
  MR_CHECK(fault.empty(), "fused element-wise node: {}", fault);
  return n;
}

// add(x, y) -> an op that adds y to its result by itself, where x is made by one: embedding_grad
// scatters into y instead of into zeros, the gradient of a norm adds that of the residual
// connection around it. `node` is the sum, operand `side` of it x.
bool take_addend(const Graph& from, NodeId id, size_t side,
                 const std::vector<std::vector<NodeId>>& users, const Rewriter& r, Node& node) {
  const Value x = node.in[side], y = node.in[1 - side], old_x = from[id].in[side];
  const Node& source = r.to[x.node];
  const bool norm = source.is("layer_norm_grad") || source.is("rms_norm_grad");
  if (norm ? source.attrs.integer("residual", 0) != 0 || source.attrs.integer("sums", 0) != 0
           : !source.is("embedding_grad") || source.in.size() != 2)
    return false;
  if (x.out != 0 || r.to.type(x) != node.out[0] || r.to.type(y) != node.out[0] ||
      from[old_x.node].op != source.op)
    return false;
  // Nobody else reads x; what the op makes besides is read later.
  for (const NodeId reader : users[static_cast<size_t>(old_x.node)]) {
    if (reader < id) return false;
    for (const Value v : from[reader].in)
      if (v == old_x && reader != id) return false;
  }
  for (const auto& [name, v] : from.outputs)
    if (v == old_x) return false;
  Node merged = source;
  merged.in.push_back(y);
  if (norm) merged.attrs.set({"residual", 1});
  node = std::move(merged);
  return true;
}

}  // namespace

Graph simplify(const Graph& graph) {
  Rewriter r(graph);
  const auto users = graph.users();
  std::map<std::string, NodeId> seen;  // text of (op, inputs, attrs) -> node in the new graph
  for (NodeId id = 0; id < graph.size(); ++id) {
    const Node& n = graph[id];
    if (n.leaf != Leaf::none) {
      r.copy(id);
      continue;
    }
    if (n.op->is_view && graph.type(n.in[0]) == n.out[0]) {
      r.map({id, 0}, r.mapped(n.in[0]));
      continue;
    }
    Node node = n;
    node.in = r.mapped(n.in);
    NodeId replaced = -1;  // a node whose place this one takes, with all its results
    if (n.is("elementwise")) {
      // Scalar constants move into the expression.
      const Expression e = expression_of(n);
      ExpressionBuilder b(e.operands);
      std::vector<Term> terms;
      for (int i = 0; i < e.operands; ++i) {
        const Node& source = r.to[node.in[static_cast<size_t>(i)].node];
        const bool foldable = source.is("constant") &&
                              (source.out[0].numel() == 1 || e.operands > 1) &&
                              !(source.out[0] == n.out[0] && e.operands == 1);
        bool shape_kept = false;  // another operand must still carry the output's shape
        for (int k = 0; k < e.operands; ++k)
          shape_kept = shape_kept || (k != i && r.to.type(node.in[static_cast<size_t>(k)]).shape ==
                                                    n.out[0].shape);
        terms.push_back(foldable && shape_kept ? b.constant(source.attrs.number("value"))
                                               : Term::operand(i));
      }
      const Expression folded = b.finish(b.inline_expression(e, terms));
      if (folded.results.size() == 1 && folded.passthrough(0) >= 0) {
        const Value v = node.in[static_cast<size_t>(folded.passthrough(0))];
        // Not onto a leaf: its storage may take a new value while this one is still wanted.
        Value root = v;
        while (r.to[root.node].op->is_view) root = r.to[root.node].in[0];
        if (r.to.type(v) == n.out[0] && r.to[root.node].leaf == Leaf::none) {
          r.map({id, 0}, v);
          continue;
        }
      }
      if (reads_shape(r.to, folded, node.in, n.out[0].shape))
        node = elementwise_node(r.to, folded, node.in, dtypes(n.out), n);
      if (node.attrs.text("expr") == "t0=add(a0,a1)->t0")
        for (const size_t side : {size_t{0}, size_t{1}})
          if (take_addend(graph, id, side, users, r, node)) {
            replaced = n.in[side].node;
            break;
          }
    }
    // The sums of the columns of a norm's gradient are made where it is made.
    if (node.is("reduce_sum")) {
      Node& source = r.to[node.in[0].node];
      if (source.is("layer_norm_grad") && node.in[0].out == 0 &&
          source.attrs.integer("sums", 0) == 0 && node.out[0] == source.out[1]) {
        source.attrs.set({"sums", 1});
        source.out.push_back(node.out[0]);
        r.map({id, 0}, {node.in[0].node, static_cast<int32_t>(source.out.size()) - 1});
        continue;
      }
    }
    std::string key(node.op->name);
    for (Value v : node.in) key += fmt::format(" {}.{}", v.node, v.out);
    key += " " + node.attrs.str();
    auto [at, fresh] = seen.try_emplace(key, r.to.size());
    if (fresh) r.append(std::move(node));
    for (size_t i = 0; i < n.out.size(); ++i)
      r.map({id, static_cast<int32_t>(i)}, {at->second, static_cast<int32_t>(i)});
    if (replaced >= 0)
      for (size_t i = 1; i < graph[replaced].out.size(); ++i)
        r.map({replaced, static_cast<int32_t>(i)}, {at->second, static_cast<int32_t>(i)});
  }
  return r.finish("simplify");
}

Graph chunk_head(const Graph& graph, int64_t rows) {
  Graph g = graph;
  for (Node& n : g.nodes)
    if (n.is("linear_cross_entropy")) n.attrs.set({"chunk_rows", rows});
  verify(g, "chunk_head");
  return g;
}

Graph recompute(const Graph& graph, const Recompute& how) {
  const auto units = recompute_units(graph);
  auto unit_of = [&](const Node& n) {
    return graph.scopes[static_cast<size_t>(n.scope)].recompute_unit;
  };
  auto dropped = [&](NodeId id) {
    const Node& n = graph[id];
    if (n.leaf != Leaf::none || n.phase != Phase::forward || unit_of(n) < 0) return false;
    const auto order = std::find(units.begin(), units.end(), unit_of(n)) - units.begin();
    if (order < how.whole_layers) return true;
    return how.cheap && (n.op->cheap || n.op->is_view);
  };
  Rewriter r(graph);
  std::map<NodeId, NodeId> again;  // forward node -> its second run
  // The value a backward node should read: recomputed if dropped. Inside a whole layer everything
  // is made again from the layer's input; the value that leaves a layer stays stored (the next
  // layer's input), unless only this layer's own backward reads it.
  auto fetch = [&](auto&& self, Value v, int32_t reader_unit) -> Value {
    const Node& n = graph[v.node];
    if (!dropped(v.node) || unit_of(n) != reader_unit) return r.mapped(v);
    auto found = again.find(v.node);
    if (found == again.end()) {
      Node clone = n;
      for (Value& in : clone.in) in = self(self, in, reader_unit);
      clone.recomputed = true;
      clone.phase = Phase::backward;
      found = again.emplace(v.node, r.append(std::move(clone))).first;
    }
    return {found->second, v.out};
  };
  for (NodeId id = 0; id < graph.size(); ++id) {
    const Node& n = graph[id];
    if (n.phase != Phase::backward || n.leaf != Leaf::none) {
      r.copy(id);
      continue;
    }
    Node node = n;
    for (Value& v : node.in) v = fetch(fetch, v, unit_of(n));
    const NodeId to = r.append(std::move(node));
    for (size_t i = 0; i < n.out.size(); ++i)
      r.map({id, static_cast<int32_t>(i)}, {to, static_cast<int32_t>(i)});
  }
  return r.finish("recompute");
}

Graph fuse_elementwise(const Graph& graph) {
  constexpr size_t kMaxInstructions = 48, kMaxOperands = 14;
  Graph g = graph;
  // One merge at a time, consumer by consumer; a merge gives the consumer the producer's work.
  for (NodeId id = 0; id < g.size(); ++id) {
    if (!g[id].is("elementwise")) continue;
    for (bool merged = true; merged;) {
      merged = false;
      const auto users = g.users();
      for (Value v : g[id].in) {
        const NodeId producer = v.node;
        const Node &p = g[producer], &c = g[id];
        if (!p.is("elementwise") || p.out[0].shape != c.out[0].shape || p.phase != c.phase)
          continue;
        // What else reads the producer must come later than the merged node, or be nobody.
        bool others = false, early = false;
        for (NodeId user : users[static_cast<size_t>(producer)]) {
          others = others || user != id;
          early = early || (user < id && user != id);
        }
        for (const auto& [name, out] : g.outputs) others = others || out.node == producer;
        for (const Update& u : g.updates) others = others || u.value.node == producer;
        if (early) continue;
        const Expression pe = expression_of(p), ce = expression_of(c);
        if (pe.code.size() + ce.code.size() > kMaxInstructions ||
            p.in.size() + c.in.size() > kMaxOperands)
          continue;
        std::vector<Value> in = p.in;
        in.insert(in.end(), c.in.begin(), c.in.end());
        ExpressionBuilder b(static_cast<int>(in.size()));
        std::vector<Term> p_terms, c_terms;
        for (int i = 0; i < pe.operands; ++i) p_terms.push_back(Term::operand(i));
        const auto p_results = b.inline_expression(pe, p_terms);
        for (int i = 0; i < ce.operands; ++i) {
          const Value operand = c.in[static_cast<size_t>(i)];
          c_terms.push_back(operand.node == producer ? p_results[static_cast<size_t>(operand.out)]
                                                     : Term::operand(pe.operands + i));
        }
        auto results = b.inline_expression(ce, c_terms);
        const size_t c_outputs = results.size();
        std::vector<DType> store = dtypes(c.out);
        if (others) {
          results.insert(results.end(), p_results.begin(), p_results.end());
          const std::vector<DType> stored = dtypes(p.out);
          store.insert(store.end(), stored.begin(), stored.end());
        }
        const Expression joined = b.finish(results);
        if (!reads_shape(g, joined, in, c.out[0].shape)) continue;
        Node fused = elementwise_node(g, joined, in, store, c);
        g[id] = std::move(fused);
        if (others) {
          auto redirect = [&](Value& value) {
            if (value.node == producer) value = {id, value.out + static_cast<int32_t>(c_outputs)};
          };
          for (NodeId later = id + 1; later < g.size(); ++later)
            for (Value& value : g[later].in) redirect(value);
          for (auto& [name, out] : g.outputs) redirect(out);
          for (Update& u : g.updates) redirect(u.value);
        }
        merged = true;
        break;
      }
    }
  }
  g = without_dead_nodes(g);
  verify(g, "fuse_elementwise");
  return g;
}

Graph fuse_epilogue(const Graph& graph) {
  Graph g = graph;
  for (NodeId id = 0; id < g.size(); ++id) {
    if (!g[id].is("elementwise")) continue;
    const auto users = g.users();
    // The latest matmul among the operands: the others are ready by then.
    Value chosen;
    for (Value v : g[id].in) {
      const Node& m = g[v.node];
      if (!m.is("matmul") || m.attrs.find("expr") || m.out[0].shape != g[id].out[0].shape ||
          m.phase != g[id].phase)
        continue;
      if (users[static_cast<size_t>(v.node)].size() != 1) continue;
      bool is_output = false;
      for (const auto& [name, out] : g.outputs) is_output = is_output || out.node == v.node;
      for (const Update& u : g.updates) is_output = is_output || u.value.node == v.node;
      if (!is_output && v.node > chosen.node) chosen = v;
    }
    if (!chosen.valid()) continue;
    bool broadcast_ok = true;  // the epilogue walks rows of the result: bias, whole rows, scalars
    const int64_t width = g[id].out[0].shape.last();
    for (Value v : g[id].in) {
      const TensorType& t = g.type(v);
      broadcast_ok =
          broadcast_ok && (t.shape == g[id].out[0].shape || t.numel() == 1 ||
                           t.dtype == DType::i32 || (t.shape.rank() == 1 && t.shape[0] == width));
    }
    if (!broadcast_ok) continue;
    const Node& m = g[chosen.node];
    const Expression e = expression_of(g[id]);
    // Operand 0 becomes the product; the rest keep their order.
    Node fused = m;
    ExpressionBuilder b(e.operands);
    std::vector<Term> terms(static_cast<size_t>(e.operands));
    int next = 1;
    for (int i = 0; i < e.operands; ++i) {
      const Value v = g[id].in[static_cast<size_t>(i)];
      if (v == chosen) {
        terms[static_cast<size_t>(i)] = Term::operand(0);
        continue;
      }
      terms[static_cast<size_t>(i)] = Term::operand(next++);
      fused.in.push_back(v);
    }
    fused.attrs.set({"expr", b.finish(b.inline_expression(e, terms)).str()});
    set_store(fused.attrs, dtypes(g[id].out));
    fused.out = g[id].out;
    g[id] = std::move(fused);
  }
  g = without_dead_nodes(g);
  verify(g, "fuse_epilogue");
  return g;
}

Graph schedule(const Graph& graph) {
  const NodeId n = graph.size();
  const auto users = graph.users();
  std::vector<NodeId> last_use(static_cast<size_t>(n), -1);
  for (NodeId id = 0; id < n; ++id)
    for (NodeId user : users[static_cast<size_t>(id)])
      last_use[static_cast<size_t>(id)] = std::max(last_use[static_cast<size_t>(id)], user);
  // A node sinks to just before its first reader when all its inputs live at least that long
  // anyway. From the end, so that a reader that sank is counted where it now stands.
  std::vector<NodeId> place(static_cast<size_t>(n));
  std::iota(place.begin(), place.end(), 0);
  std::set<NodeId> pinned;
  for (const auto& [name, v] : graph.outputs) pinned.insert(v.node);
  for (const Update& u : graph.updates) pinned.insert(u.value.node);
  for (NodeId id = n - 1; id >= 0; --id) {
    const Node& node = graph[id];
    const auto& readers = users[static_cast<size_t>(id)];
    if (node.leaf != Leaf::none || node.in.empty() || readers.empty() || pinned.contains(id) ||
        node.phase == Phase::optimizer)
      continue;
    NodeId first = n;
    for (NodeId reader : readers) first = std::min(first, place[static_cast<size_t>(reader)]);
    if (first == id + 1 || graph[first].phase != node.phase) continue;
    bool free = true;
    for (Value v : node.in)
      free = free &&
             (graph[v.node].leaf != Leaf::none || last_use[static_cast<size_t>(v.node)] > first);
    if (free) place[static_cast<size_t>(id)] = first;
  }
  // Nodes that sank to the same place keep their order.
  std::vector<std::vector<NodeId>> before(static_cast<size_t>(n));
  for (NodeId id = 0; id < n; ++id)
    if (place[static_cast<size_t>(id)] != id)
      before[static_cast<size_t>(place[static_cast<size_t>(id)])].push_back(id);
  Rewriter r(graph);
  for (NodeId id = 0; id < n; ++id) {
    if (place[static_cast<size_t>(id)] != id) continue;
    for (NodeId sunk : before[static_cast<size_t>(id)]) r.copy(sunk);
    r.copy(id);
  }
  return r.finish("schedule");
}

}  // namespace millrace
