// Graph: one node type. Nodes stand in execution order: a node's inputs come before it, always, and
// verify() says so after every pass.
#pragma once
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "core/shape.h"
#include "graph/attrs.h"
#include "graph/op.h"

namespace millrace {

using NodeId = int32_t;

// An output of a node.
struct Value {
  NodeId node = -1;
  int32_t out = 0;
  bool valid() const { return node >= 0; }
  friend auto operator<=>(const Value&, const Value&) = default;
};

enum class Phase : uint8_t { forward, backward, optimizer };
std::string_view phase_name(Phase phase);

// What a leaf holds; decides where it lives and how memory is accounted.
enum class Leaf : uint8_t {
  none,
  input,
  parameter,
  optimizer_state,
  gradient_buffer,
  cache,
  shadow  // a 16-bit copy of a parameter
};

struct Node {
  const OpCard* op = nullptr;
  std::vector<Value> in;
  Attrs attrs;
  std::vector<TensorType> out;
  int32_t scope = 0;  // index into Graph::scopes
  Phase phase = Phase::forward;
  Leaf leaf = Leaf::none;
  std::string name;         // leaves only
  bool recomputed = false;  // a second run of a forward node, placed by the recompute pass

  bool is(std::string_view op_name) const;
};

struct Scope {
  std::string path;  // "layers.3.attention"
  int32_t recompute_unit =
      -1;  // the enclosing scope that is recomputed as a whole (a layer), or -1
};

// A leaf that takes a new value at the end of the step, in the same storage.
struct Update {
  NodeId leaf;
  Value value;
};

struct Graph {
  std::vector<Node> nodes;
  std::vector<Scope> scopes{{"", -1}};
  std::map<std::string, Value> outputs;
  std::vector<Update> updates;

  const Node& operator[](NodeId id) const { return nodes[static_cast<size_t>(id)]; }
  Node& operator[](NodeId id) { return nodes[static_cast<size_t>(id)]; }
  const TensorType& type(Value v) const { return (*this)[v.node].out[static_cast<size_t>(v.out)]; }
  const std::string& path(NodeId id) const {  // where in the model
    return scopes[static_cast<size_t>((*this)[id].scope)].path;
  }
  NodeId size() const { return static_cast<NodeId>(nodes.size()); }
  std::vector<TensorType> in_types(const Node& node) const;
  NodeId find_leaf(std::string_view name) const;  // -1 when absent
  // Every use of every value: users[node] lists the nodes that read any of its outputs.
  std::vector<std::vector<NodeId>> users() const;
  Cost cost(const Node& node) const;
  std::string str() const;
};

// Order, types (every node re-inferred), scopes, leaves, updates. MR_CHECK with `after` in the text
// on any fault: a pass that breaks the graph is our bug.
void verify(const Graph& graph, std::string_view after);

// Copies `from` node by node into a new graph while a pass decides what becomes of each node.
class Rewriter {
 public:
  explicit Rewriter(const Graph& from);
  Value mapped(Value old) const;
  std::vector<Value> mapped(const std::vector<Value>& old) const;
  // Appends a copy of `node` with mapped inputs and maps all its outputs.
  NodeId copy(NodeId old);
  NodeId append(Node node) {
    to.nodes.push_back(std::move(node));
    return to.size() - 1;
  }
  void map(Value old, Value replacement);
  // Maps outputs and updates, drops what nothing needs, verifies. `added` are updates of the new
  // graph that the old one does not have.
  Graph finish(std::string_view pass, const std::vector<Update>& added = {});

  Graph to;

 private:
  const Graph& from_;
  std::vector<std::vector<Value>> map_;
};

// Removes nodes that no output or update needs. Leaves stay: they are the graph's interface.
Graph without_dead_nodes(const Graph& graph);

}  // namespace millrace
