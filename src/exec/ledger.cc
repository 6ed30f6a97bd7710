#include "exec/ledger.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/text.h"

namespace millrace {

std::string_view owner_name(Owner owner) {
  constexpr std::string_view kNames[] = {
      "residual", "input_wait", "h2d",    "forward",    "backward", "optimizer",  "comm",
      "eval",     "eval_texts", "sample", "checkpoint", "logging",  "idle_launch"};
  static_assert(std::size(kNames) == kOwners);
  return kNames[static_cast<size_t>(owner)];
}

NodeTimes& Ledger::times_of(const Plan& plan) {
  for (NodeTimes& t : times_)
    if (t.plan == &plan) return t;
  times_.push_back({&plan, std::vector<int64_t>(plan.graph.nodes.size(), 0), {}, 0});
  return times_.back();
}

void Ledger::add_device(std::span<const int64_t> phase_ns) {
  change(current_);
  std::array<int64_t, kOwners> host{};
  int64_t elapsed = 0, worked = 0, device = 0;
  for (size_t o = 0; o < kOwners; ++o) {
    host[o] = ns_[o] - settled_[o];
    elapsed += host[o];
    if (static_cast<Owner>(o) != Owner::idle_launch) worked += host[o];
  }
  for (const int64_t ns : phase_ns) device += ns;
  // Clocks differ by a little: the device cannot have worked longer than there was time.
  const double share =
      device > elapsed ? static_cast<double>(elapsed) / static_cast<double>(device) : 1;
  ns_ = settled_;
  int64_t left = elapsed;
  for (size_t p = 0; p < 3; ++p) {
    const auto ns = static_cast<int64_t>(share * static_cast<double>(phase_ns[p]));
    ns_[static_cast<size_t>(Owner::forward) + p] += ns;
    left -= ns;
  }
  // The device stood still for `left`.
  const double shown = worked > left ? static_cast<double>(left) / static_cast<double>(worked) : 1;
  for (size_t o = 0; o < kOwners; ++o) {
    if (static_cast<Owner>(o) == Owner::idle_launch) continue;
    const auto ns = static_cast<int64_t>(shown * static_cast<double>(host[o]));
    ns_[o] += ns;
    left -= ns;
  }
  ns_[static_cast<size_t>(Owner::idle_launch)] += left;
  settled_ = ns_;
}

void Ledger::add_span(std::string_view name, int64_t end) {
  timeline->add({last_, end, kHostLane, name, name, {}});
}

Ledger Ledger::since(const Ledger& earlier) const {
  Ledger part = *this;
  part.timeline = nullptr;
  part.start_ = earlier.last_;
  for (size_t o = 0; o < kOwners; ++o) part.ns_[o] -= earlier.ns_[o];
  for (const NodeTimes& was : earlier.times_) {
    NodeTimes& now = part.times_of(*was.plan);
    now.runs -= was.runs;
    for (size_t n = 0; n < was.ns.size(); ++n) now.ns[n] -= was.ns[n];
    for (size_t n = 0; n < was.alone_ns.size(); ++n) now.alone_ns[n] -= was.alone_ns[n];
  }
  return part;
}

namespace {

// "layers.3.attention" -> "layers.*.attention".
std::string component(const std::string& path) {
  std::string out;
  for (size_t i = 0; i < path.size();) {
    const size_t dot = std::min(path.find('.', i), path.size());
    const std::string part = path.substr(i, dot - i);
    const bool number = !part.empty() && std::all_of(part.begin(), part.end(),
                                                     [](char c) { return c >= '0' && c <= '9'; });
    out += (out.empty() ? "" : ".") + (number ? std::string("*") : part);
    i = dot + 1;
  }
  return out.empty() ? "update" : out;
}

template <typename Key>
std::vector<LedgerRow> group(const Ledger& ledger, const Ceiling& ceiling, Key key) {
  std::map<std::string, LedgerRow> rows;
  for (const NodeTimes& t : ledger.node_times())
    for (NodeId id = 0; id < t.plan->graph.size(); ++id) {
      if (t.plan->kernels[static_cast<size_t>(id)].name.empty()) continue;
      const Cost cost = t.plan->graph.cost(t.plan->graph[id]);
      const auto runs = static_cast<double>(t.runs);
      LedgerRow& row = rows[key(*t.plan, id)];
      const int64_t ns = t.ns[static_cast<size_t>(id)],
                    alone_ns = t.alone_ns.empty() ? ns : t.alone_ns[static_cast<size_t>(id)];
      row.ns += ns;
      row.alone_ns += alone_ns;
      row.nodes += 1;
      row.runs = std::max(row.runs, t.runs);
      row.started += t.runs;
      row.flops += cost.flops * runs;
      row.bytes += cost.bytes * runs;
      const double overlaps =
          alone_ns > 0 ? static_cast<double>(ns) / static_cast<double>(alone_ns) : 1;
      row.limit_ns += 1e9 * runs * limit_seconds(cost, ceiling) * overlaps;
    }
  std::vector<LedgerRow> list;
  for (auto& [name, row] : rows) {
    row.name = name;
    list.push_back(row);
  }
  std::sort(list.begin(), list.end(),
            [](const LedgerRow& a, const LedgerRow& b) { return a.ns > b.ns; });
  return list;
}

std::string component_of(const Plan& plan, NodeId id) { return component(plan.graph.path(id)); }

}  // namespace

Ceiling best_of(const Ceiling& a, const Ceiling& b) {
  Ceiling best{std::max(a.flops, b.flops), std::max(a.bytes, b.bytes), b.caches};
  if (b.caches.empty()) best.caches = a.caches;
  if (a.caches.size() == b.caches.size())
    for (size_t i = 0; i < a.caches.size(); ++i)
      best.caches[i].bytes = std::max(a.caches[i].bytes, b.caches[i].bytes);
  return best;
}

std::string ceiling_text(const Ceiling& ceiling) {
  std::string s = fmt::format("{:.1f} GFLOP/s in products, {:.1f} GB/s from memory",
                              ceiling.flops * 1e-9, ceiling.bytes * 1e-9);
  for (size_t i = ceiling.caches.size(); i-- > 0;)
    s += fmt::format(", {:.1f} from caches of {}", ceiling.caches[i].bytes * 1e-9,
                     human_bytes(static_cast<int64_t>(ceiling.caches[i].capacity)));
  return s;
}

double limit_seconds(const Cost& cost, const Ceiling& ceiling) {
  double seconds = ceiling.flops > 0 ? cost.flops / ceiling.flops : 0, nearer = 0;
  auto moved = [&](double rate) {
    if (rate > 0) seconds = std::max(seconds, (cost.bytes - nearer) / rate);
  };
  for (const CacheCeiling& cache : ceiling.caches) {
    moved(cache.bytes);
    nearer = cache.capacity;
  }
  moved(ceiling.bytes);
  return seconds;
}

std::vector<LedgerRow> rows_by_op(const Ledger& ledger, const Ceiling& ceiling) {
  return group(ledger, ceiling,
               [](const Plan& plan, NodeId id) { return std::string(plan.graph[id].op->name); });
}

Ceiling raised(Ceiling ceiling, const Ledger& ledger) {
  constexpr double kSome = 0.005;  // of the time: the clock is too coarse for less
  const auto time_of = [](const std::vector<LedgerRow>& rows) {
    double all = 0;
    for (const LedgerRow& row : rows) all += static_cast<double>(row.ns);
    return all;
  };
  // Products part by part of the model: some shapes are faster than all together.
  const auto products = group(ledger, {}, [](const Plan& plan, NodeId id) {
    return plan.graph[id].op->name == "matmul" ? component_of(plan, id) : std::string();
  });
  const double least = kSome * time_of(products);
  for (const LedgerRow& row : products)
    if (const auto ns = static_cast<double>(row.ns);
        ceiling.flops > 0 && !row.name.empty() && ns > least)
      ceiling.flops = std::max(ceiling.flops, 1e9 * row.flops / static_cast<double>(row.alone_ns));
  // Each level by what it alone would let an op do: one that runs in a cache says nothing of
  // memory.
  Ceiling level{0, 0, ceiling.caches};
  for (CacheCeiling& cache : level.caches) cache.bytes = 0;
  auto raise = [&](double& rate, double& of_level) {
    of_level = rate;
    double faster = 1;
    const auto rows = rows_by_op(ledger, level);
    const double all = time_of(rows);
    for (const LedgerRow& row : rows)
      if (const auto ns = static_cast<double>(row.ns); ns > kSome * all)
        faster = std::max(faster, row.limit_ns / ns);
    rate *= faster;
    of_level = 0;
  };
  raise(ceiling.bytes, level.bytes);
  for (size_t i = 0; i < ceiling.caches.size(); ++i)
    raise(ceiling.caches[i].bytes, level.caches[i].bytes);
  return ceiling;
}

std::vector<LedgerRow> rows_by_component(const Ledger& ledger, const Ceiling& ceiling) {
  return group(ledger, ceiling, component_of);
}

std::vector<LedgerRow> rows_by_kernel(const Ledger& ledger, const Ceiling& ceiling) {
  return group(ledger, ceiling, [](const Plan& plan, NodeId id) {
    // Without what it chose for a shape, which stands in brackets.
    const std::string& kernel = plan.kernels[static_cast<size_t>(id)].name;
    return fmt::format("{}: {}", plan.graph[id].op->name, kernel.substr(0, kernel.find(" [")));
  });
}

std::vector<LedgerRow> join_small(std::vector<LedgerRow> rows, double least_ns) {
  LedgerRow small{"all others"};
  std::erase_if(rows, [&](const LedgerRow& row) {
    if (static_cast<double>(row.ns) >= least_ns) return false;
    small.ns += row.ns;
    small.alone_ns += row.alone_ns;
    small.started += row.started;
    small.flops += row.flops;
    small.bytes += row.bytes;
    small.limit_ns += row.limit_ns;
    return true;
  });
  if (small.ns > 0) rows.push_back(small);
  return rows;
}

std::string profile_text(const Ledger& ledger, const Ceiling& ceiling) {
  const auto rows = group(ledger, ceiling, [](const Plan& plan, NodeId id) {
    const Node& n = plan.graph[id];
    std::string types;
    for (const TensorType& t : plan.graph.in_types(n)) types += t.str() + " ";
    types += "->";
    for (const TensorType& t : n.out) types += " " + t.str();
    return fmt::format("{}\t{}\t{}\t{}\t{}", phase_name(n.phase), component_of(plan, id),
                       n.op->name, plan.kernels[static_cast<size_t>(id)].name, types);
  });
  std::string text =
      "us_per_run\tnodes\truns\tlimit_us\tGFLOP/s\tGB/s\tphase\tcomponent\top"
      "\tkernel\ttypes\n";
  for (const LedgerRow& row : rows) {
    const auto ns = static_cast<double>(row.ns),
               alone = static_cast<double>(std::max<int64_t>(row.alone_ns, 1)),
               runs = static_cast<double>(std::max<int64_t>(row.runs, 1));
    text += fmt::format("{:.2f}\t{}\t{}\t{:.2f}\t{:.1f}\t{:.1f}\t{}\n", 1e-3 * ns / runs, row.nodes,
                        row.runs, 1e-3 * row.limit_ns / runs, row.flops / alone, row.bytes / alone,
                        row.name);
  }
  return text;
}

}  // namespace millrace
