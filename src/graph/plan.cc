#include "graph/plan.h"

#include <xxhash.h>

#include <algorithm>
#include <numeric>

#include "core/text.h"

namespace millrace {

std::string_view memory_class_name(MemoryClass c) {
  switch (c) {
    case MemoryClass::parameters:
      return "parameters";
    case MemoryClass::shadows:
      return "16-bit weights";
    case MemoryClass::optimizer_state:
      return "optimizer state";
    case MemoryClass::gradients:
      return "gradients";
    case MemoryClass::cache:
      return "key/value cache";
    case MemoryClass::inputs:
      return "inputs";
    case MemoryClass::activations:
      return "activations";
    case MemoryClass::temporaries:
      return "temporaries";
    case MemoryClass::workspace:
      return "workspace";
  }
  return "";
}

namespace {

MemoryClass leaf_class(Leaf leaf) {
  switch (leaf) {
    case Leaf::parameter:
      return MemoryClass::parameters;
    case Leaf::shadow:
      return MemoryClass::shadows;
    case Leaf::optimizer_state:
      return MemoryClass::optimizer_state;
    case Leaf::gradient_buffer:
      return MemoryClass::gradients;
    case Leaf::cache:
      return MemoryClass::cache;
    default:
      return MemoryClass::inputs;
  }
}

// Work that fills the device gains nothing beside other work, and keeps much memory alive.
constexpr int64_t kBesideBytes = 48 << 20;
// So many nodes of the others may be done before its memory is used again.
constexpr int kBesideReach = 8;

// What the optimizer alone reads, gradients of parameters: the chain of gradients through the
// layers does not wait for it.
std::vector<bool> find_beside(const Graph& g) {
  const auto users = g.users();
  std::vector<bool> beside(g.nodes.size(), false);
  for (NodeId id = g.size() - 1; id >= 0; --id) {
    const Node& n = g[id];
    if (n.leaf != Leaf::none || n.phase != Phase::backward) continue;
    int64_t bytes = 0;
    for (const TensorType& t : g.in_types(n)) bytes += t.bytes();
    for (const TensorType& t : n.out) bytes += t.bytes();
    const auto& readers = users[static_cast<size_t>(id)];
    beside[static_cast<size_t>(id)] =
        bytes <= kBesideBytes && std::all_of(readers.begin(), readers.end(), [&](NodeId reader) {
          return g[reader].phase == Phase::optimizer ||
                 (g[reader].op->is_view && beside[static_cast<size_t>(reader)]);
        });
  }
  return beside;
}

// Ends of kernels whose results only the optimizer, or something beside, reads.
std::vector<bool> find_end_beside(const Plan& plan) {
  const Graph& g = plan.graph;
  std::vector<bool> found(g.nodes.size(), false);
  for (size_t i = 0; i < found.size(); ++i) found[i] = plan.kernels[i].end_from >= 0;
  for (NodeId id = 0; id < g.size(); ++id) {
    if (g[id].phase == Phase::optimizer || plan.beside[static_cast<size_t>(id)]) continue;
    for (const Value v : g[id].in)
      if (v.out >= plan.kernels[static_cast<size_t>(v.node)].end_from)
        found[static_cast<size_t>(v.node)] = false;
  }
  return found;
}

// Per node: until where what it touches beside others must stay.
std::vector<NodeId> needed_until(const Plan& plan) {
  const Graph& g = plan.graph;
  std::vector<NodeId> until(g.nodes.size()), others;
  for (NodeId id = g.size() - 1; id >= 0; --id) {
    const auto i = static_cast<size_t>(id);
    const auto ahead = static_cast<int64_t>(others.size());
    until[i] = (plan.beside[i] || plan.end_beside[i]) && ahead > 0
                   ? others[static_cast<size_t>(std::max<int64_t>(ahead - kBesideReach, 0))]
                   : id;
    if (!plan.beside[i] && !plan.kernels[i].name.empty()) others.push_back(id);
  }
  return until;
}

// Assigns buffers: leaves and views first, in-place results share, the rest get their own.
void assign_buffers(Plan& plan) {
  const Graph& g = plan.graph;
  const std::vector<NodeId> until = needed_until(plan);
  struct Use {
    NodeId last, until;  // the last node in order that reads it, and how long it must stay
  };
  std::vector<std::vector<Use>> use(g.nodes.size());
  auto use_of = [&](Value v) -> Use& {
    return use[static_cast<size_t>(v.node)][static_cast<size_t>(v.out)];
  };
  // Of an end that runs beside: the rest of the node is done in its place.
  const auto until_of = [&](NodeId id, bool end) {
    const auto i = static_cast<size_t>(id);
    return plan.beside[i] || (plan.end_beside[i] && end) ? until[i] : id;
  };
  for (NodeId id = 0; id < g.size(); ++id)
    for (size_t o = 0; o < g[id].out.size(); ++o) {
      const int32_t end_from = plan.kernels[static_cast<size_t>(id)].end_from;
      use[static_cast<size_t>(id)].push_back(
          {id, until_of(id, static_cast<int32_t>(o) >= end_from)});
    }
  const auto inputs_until = [&](NodeId id) { return until_of(id, false); };
  for (NodeId id = 0; id < g.size(); ++id)
    for (Value v : g[id].in) use_of(v) = {id, std::max(use_of(v).until, inputs_until(id))};
  for (const auto& [name, v] : g.outputs) use_of(v) = {g.size(), g.size()};
  std::vector<NodeId> last_read;  // per buffer
  std::map<Value, NodeId> update_of;
  for (const Update& u : g.updates) update_of[u.value] = u.leaf;
  std::vector<bool> reaches_optimizer(g.nodes.size(), false);
  for (const Node& n : g.nodes)
    if (n.phase == Phase::optimizer)
      for (Value v : n.in) reaches_optimizer[static_cast<size_t>(v.node)] = true;

  plan.buffer_of.resize(g.nodes.size());
  plan.workspace_of.assign(g.nodes.size(), -1);
  for (NodeId id = 0; id < g.size(); ++id) {
    const Node& n = g[id];
    auto& mine = plan.buffer_of[static_cast<size_t>(id)];
    const auto in_types = g.in_types(n);
    const OpSite site{n.attrs, in_types, n.out};
    const auto pairs = n.op->in_place ? n.op->in_place(site) : std::vector<InPlace>{};
    std::vector<int32_t> taken;  // input buffers already given to an output of this node
    for (size_t o = 0; o < n.out.size(); ++o) {
      const Value value{id, static_cast<int32_t>(o)};
      const auto [read, dies] = use[static_cast<size_t>(id)][o];
      int32_t buffer = -1;
      auto buffer_in = [&](Value v) {
        return plan.buffer_of[static_cast<size_t>(v.node)][static_cast<size_t>(v.out)];
      };
      if (n.op->is_view) buffer = buffer_in(n.in[0]);
      const auto updated = update_of.find(value);
      if (updated != update_of.end()) {
        const int32_t leaf_buffer = plan.buffer_of[static_cast<size_t>(updated->second)][0];
        // In place of the leaf, or, when the node does not read it, straight into it.
        bool reads = false;
        for (size_t i = 0; i < n.in.size(); ++i) reads = reads || buffer_in(n.in[i]) == leaf_buffer;
        for (const InPlace& p : pairs)
          if (p.out == static_cast<int>(o) &&
              buffer_in(n.in[static_cast<size_t>(p.in)]) == leaf_buffer)
            buffer = leaf_buffer;
        if (!reads && !n.op->is_view) buffer = leaf_buffer;
        MR_CHECK(buffer == leaf_buffer, "{} cannot update {} in place", n.op->name,
                 g[updated->second].name);
        for (NodeId later = id + 1; later < g.size(); ++later)
          for (Value v : g[later].in)
            MR_CHECK(v.node >= id || buffer_in(v) != leaf_buffer, "{} read after its update",
                     g[updated->second].name);
      }
      for (const InPlace& p : pairs) {
        if (buffer >= 0 || p.out != static_cast<int>(o)) continue;
        const int32_t candidate = buffer_in(n.in[static_cast<size_t>(p.in)]);
        const Buffer& b = plan.buffers[static_cast<size_t>(candidate)];
        // The input must die here: no later reader of anything that shares its buffer, and no
        // earlier one that is still at it beside.
        if (b.in_state || last_read[static_cast<size_t>(candidate)] > id ||
            b.last > inputs_until(id) || b.bytes != aligned(n.out[o].bytes()) ||
            in_types[static_cast<size_t>(p.in)].dtype != n.out[o].dtype)
          continue;
        if (std::find(taken.begin(), taken.end(), candidate) != taken.end()) continue;
        // Read through another input too (a value used twice, a view): only if that one may be
        // overwritten as well.
        bool shared = false;
        for (size_t i = 0; i < n.in.size(); ++i) {
          if (buffer_in(n.in[i]) != candidate) continue;
          shared = shared || std::none_of(pairs.begin(), pairs.end(), [&](const InPlace& q) {
                     return q.out == static_cast<int>(o) && q.in == static_cast<int>(i);
                   });
        }
        if (shared) continue;
        buffer = candidate;
      }
      if (buffer >= 0) {
        taken.push_back(buffer);
        Buffer& b = plan.buffers[static_cast<size_t>(buffer)];
        b.last = std::max(b.last, dies);
        NodeId& last = last_read[static_cast<size_t>(buffer)];
        last = std::max(last, read);
      } else {
        Buffer b{.bytes = aligned(n.out[o].bytes()),
                 .offset = 0,
                 .in_state = n.leaf != Leaf::none,
                 .first = id,
                 .last = dies,
                 .memory_class = MemoryClass::temporaries,
                 .owner = id};
        if (n.leaf != Leaf::none) {
          b.memory_class = leaf_class(n.leaf);
          b.last = g.size();
        } else if (n.phase == Phase::forward && dies < g.size() &&
                   g[dies].phase != Phase::forward) {
          b.memory_class = MemoryClass::activations;
        }
        if (n.leaf == Leaf::none && reaches_optimizer[static_cast<size_t>(id)] &&
            n.phase != Phase::optimizer && n.out[o].numel() > 1)
          b.memory_class = MemoryClass::gradients;
        buffer = static_cast<int32_t>(plan.buffers.size());
        plan.buffers.push_back(b);
        last_read.push_back(read);
      }
      mine.push_back(buffer);
    }
    if (plan.kernels[static_cast<size_t>(id)].workspace_bytes > 0) {
      plan.workspace_of[static_cast<size_t>(id)] = static_cast<int32_t>(plan.buffers.size());
      plan.buffers.push_back(
          {.bytes = aligned(plan.kernels[static_cast<size_t>(id)].workspace_bytes),
           .offset = 0,
           .in_state = false,
           .first = id,
           .last = until[static_cast<size_t>(id)],
           .memory_class = MemoryClass::workspace,
           .owner = id});
      last_read.push_back(id);
    }
  }
}

// Largest first, each into the lowest gap among the buffers that live at the same time.
void assign_offsets(Plan& plan) {
  std::vector<size_t> order(plan.buffers.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return plan.buffers[a].bytes > plan.buffers[b].bytes;
  });
  std::vector<size_t> placed;
  for (size_t index : order) {
    Buffer& b = plan.buffers[index];
    if (b.in_state) continue;
    std::vector<std::pair<int64_t, int64_t>> busy;
    for (size_t other : placed) {
      const Buffer& o = plan.buffers[other];
      if (o.first <= b.last && b.first <= o.last) busy.emplace_back(o.offset, o.offset + o.bytes);
    }
    std::sort(busy.begin(), busy.end());
    int64_t at = 0;
    for (const auto& [begin, end] : busy) {
      if (at + b.bytes <= begin) break;
      at = std::max(at, end);
    }
    b.offset = at;
    placed.push_back(index);
    plan.scratch_bytes = std::max(plan.scratch_bytes, at + b.bytes);
  }
  for (Buffer& b : plan.buffers) {
    if (!b.in_state) continue;
    b.offset = plan.state_bytes;
    plan.state_bytes += b.bytes;
  }
}

void account(Plan& plan) {
  int64_t most = -1;
  for (NodeId id = 0; id < plan.graph.size(); ++id) {
    std::array<int64_t, kMemoryClasses> alive{};
    int64_t scratch = 0;
    for (const Buffer& b : plan.buffers) {
      if (!b.in_state && (b.first > id || b.last < id)) continue;
      alive[static_cast<size_t>(b.memory_class)] += b.bytes;
      if (!b.in_state) scratch += b.bytes;
    }
    if (scratch > most) {
      most = scratch;
      plan.peak_at = id;
      plan.at_peak = alive;
    }
  }
  for (const Node& n : plan.graph.nodes) {
    const Cost cost = plan.graph.cost(n);
    plan.cost.flops += cost.flops;
    plan.cost.bytes += cost.bytes;
  }
}

}  // namespace

Plan make_plan(const Graph& graph, const PassOptions& options, KernelChooser& chooser) {
  Plan plan;
  plan.passes = options;
  plan.graph = optimize(graph, options, chooser.stores_halves());
  for (const Node& n : plan.graph.nodes) {
    const auto in = plan.graph.in_types(n);
    plan.kernels.push_back(n.leaf != Leaf::none || n.op->is_view
                               ? KernelChoice{}
                               : chooser.choose(*n.op, {n.attrs, in, n.out}));
  }
  plan.beside.assign(plan.graph.nodes.size(), false);
  plan.end_beside = plan.beside;
  if (chooser.runs_beside() && !options.off.contains("beside")) {
    plan.beside = find_beside(plan.graph);
    plan.end_beside = find_end_beside(plan);
  }
  assign_buffers(plan);
  assign_offsets(plan);
  account(plan);
  verify_memory(plan);
  return plan;
}

void verify_memory(const Plan& plan) {
  for (size_t i = 0; i < plan.buffers.size(); ++i) {
    const Buffer& a = plan.buffers[i];
    MR_CHECK(a.offset % kAlignment == 0 &&
                 a.offset + a.bytes <= (a.in_state ? plan.state_bytes : plan.scratch_bytes),
             "buffer {} out of its arena", i);
    for (size_t k = i + 1; k < plan.buffers.size(); ++k) {
      const Buffer& b = plan.buffers[k];
      const bool together =
          a.in_state == b.in_state && (a.in_state || (a.first <= b.last && b.first <= a.last));
      MR_CHECK(!together || a.offset + a.bytes <= b.offset || b.offset + b.bytes <= a.offset,
               "buffers {} and {} overlap", i, k);
    }
  }
}

std::string Plan::text() const {
  std::string s = fmt::format("plan: {} nodes, state {} B, scratch {} B, {} flops\n",
                              graph.nodes.size(), state_bytes, scratch_bytes, cost.flops);
  for (NodeId id = 0; id < graph.size(); ++id) {
    const Node& n = graph[id];
    s += fmt::format("%{} {}", id, n.op->name);
    if (!n.name.empty()) s += " " + n.name;
    for (size_t i = 0; i < n.in.size(); ++i)
      s += fmt::format("{}%{}{}", i ? "," : " (", n.in[i].node,
                       n.in[i].out ? fmt::format(".{}", n.in[i].out) : "");
    if (!n.in.empty()) s += ')';
    if (const std::string a = n.attrs.str(); !a.empty()) s += " {" + a + "}";
    s += " ->";
    for (size_t o = 0; o < n.out.size(); ++o) {
      const Buffer& b = buffers[static_cast<size_t>(buffer_of[static_cast<size_t>(id)][o])];
      s += fmt::format(" {}@{}{}", n.out[o].str(), b.in_state ? "s" : "", b.offset);
    }
    const KernelChoice& kernel = kernels[static_cast<size_t>(id)];
    if (!kernel.name.empty()) s += " by " + kernel.name;
    if (kernel.workspace_bytes > 0) s += fmt::format(" +{}", kernel.workspace_bytes);
    s += fmt::format("  # {} {}{}\n", phase_name(n.phase),
                     graph.scopes[static_cast<size_t>(n.scope)].path, n.recomputed ? " again" : "");
    if (beside[static_cast<size_t>(id)]) s.insert(s.size() - 1, " beside");
    if (end_beside[static_cast<size_t>(id)]) s.insert(s.size() - 1, " end beside");
  }
  for (const auto& [name, v] : graph.outputs)
    s += fmt::format("output {} %{}.{}\n", name, v.node, v.out);
  for (const Update& u : graph.updates)
    s += fmt::format("update {} %{}.{}\n", graph[u.leaf].name, u.value.node, u.value.out);
  return s;
}

std::optional<double> Plan::order_seconds() const {
  std::optional<double> sum;
  for (const KernelChoice& kernel : kernels)
    if (kernel.order_seconds) sum = sum.value_or(0) + *kernel.order_seconds;
  return sum;
}

std::string Plan::hash() const {
  const std::string t = text();
  const XXH128_hash_t h = XXH3_128bits(t.data(), t.size());
  return fmt::format("{:016x}{:016x}", h.high64, h.low64);
}

}  // namespace millrace
