// The ledger: every nanosecond of wall time has exactly one owner. The clock is read at each change
// of owner, so the parts add up to the whole by construction; time nobody claimed is `residual`,
// shown and never spread. Inside a plan's run the owner changes at each node.
//
// A device works beside the host. While it does, the time is the device's; what the host does
// meanwhile (filling inputs, launching) costs nothing and is not shown. Only where the device stood
// still does the time go to what the host did, and to `idle_launch` when it did nothing else.
#pragma once
#include <array>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/clock.h"
#include "core/timeline.h"
#include "graph/plan.h"

namespace millrace {

enum class Owner : uint8_t {
  residual,
  input_wait,
  h2d,
  forward,
  backward,
  optimizer,
  comm,
  eval,
  eval_texts,
  sample,
  checkpoint,
  logging,
  idle_launch
};
constexpr size_t kOwners = 13;
std::string_view owner_name(Owner owner);

// Times of one plan's nodes, summed over its runs.
struct NodeTimes {
  const Plan* plan = nullptr;
  std::vector<int64_t> ns;  // per node
  // What they take with nothing beside them: on a device nodes overlap, and `ns` are their shares
  // of what all take together. Empty: the same.
  std::vector<int64_t> alone_ns;
  int64_t runs = 0;
};

// A thread beside the one whose time the ledger splits: it overlaps with that time and is no part
// of it.
struct BackgroundTimes {
  std::string name;
  int64_t busy_ns = 0, wait_ns = 0, items = 0;
};

class Ledger {
 public:
  Ledger() : start_(now_ns()), last_(start_) {}

  // From now on `owner` pays. Returns the time of the change.
  int64_t change(Owner owner) {
    const int64_t now = now_ns();
    ns_[static_cast<size_t>(current_)] += now - last_;
    if (timeline && now > last_) add_span(owner_name(current_), now);
    last_ = now;
    current_ = owner;
    return now;
  }
  // The executor has already split [last change, now] by node; it reports the three phases.
  void add_run(std::span<const int64_t> phase_ns, int64_t end) {
    int64_t claimed = 0;
    for (size_t p = 0; p < 3; ++p) {
      ns_[static_cast<size_t>(Owner::forward) + p] += phase_ns[p];
      claimed += phase_ns[p];
    }
    ns_[static_cast<size_t>(current_)] += (end - last_) - claimed;
    if (timeline) add_span("run", end);
    last_ = end;
  }
  // What a device worked since this was called last, by phase, as it says itself.
  void add_device(std::span<const int64_t> phase_ns);
  // Nothing is under way on a device: what the host did since then is its own, whatever the device
  // says next.
  void settle_host() {
    change(current_);
    settled_ = ns_;
  }
  Owner current() const { return current_; }
  int64_t total_ns() const { return last_ - start_; }
  int64_t ns(Owner owner) const { return ns_[static_cast<size_t>(owner)]; }
  NodeTimes& times_of(const Plan& plan);
  const std::vector<NodeTimes>& node_times() const { return times_; }
  // What has been added since `earlier`, a copy of this one.
  Ledger since(const Ledger& earlier) const;
  std::vector<BackgroundTimes> background;  // the second lane
  Timeline* timeline = nullptr;             // gets every span, while it is set

 private:
  void add_span(std::string_view name, int64_t end);  // from the last change on
  int64_t start_, last_;
  Owner current_ = Owner::residual;
  std::array<int64_t, kOwners> ns_{};
  std::array<int64_t, kOwners> settled_{};  // as it stood when the device was last heard of
  std::vector<NodeTimes> times_;
};

// Puts the previous owner back when it goes out of sight.
class OwnerScope {
 public:
  OwnerScope(Ledger& ledger, Owner owner) : ledger_(ledger), before_(ledger.current()) {
    ledger_.change(owner);
  }
  ~OwnerScope() { ledger_.change(before_); }
  OwnerScope(const OwnerScope&) = delete;
  OwnerScope& operator=(const OwnerScope&) = delete;

 private:
  Ledger& ledger_;
  Owner before_;
};

// What lies in a cache moves faster than what lies in memory, and no more can lie there than fits.
struct CacheCeiling {
  double capacity = 0, bytes = 0;  // bytes, bytes/s
  friend bool operator==(const CacheCeiling&, const CacheCeiling&) = default;
};
// The best that was seen: products of matrices in FLOP/s, moving bytes in bytes/s (read and
// written). 0: not measured.
struct Ceiling {
  double flops = 0, bytes = 0;
  std::vector<CacheCeiling> caches = {};  // nearest first; empty: not measured
  friend bool operator==(const Ceiling&, const Ceiling&) = default;
};
Ceiling best_of(const Ceiling& a, const Ceiling& b);
// "150.0 GFLOP/s in products, 22.0 GB/s from memory, 80.0 from caches of 32.0 MiB"
std::string ceiling_text(const Ceiling& ceiling);

// The least that a node can take: its arithmetic at the ceiling, or its bytes, as many of them as
// fit from each cache, whichever takes longer.
double limit_seconds(const Cost& cost, const Ceiling& ceiling);

// What the ledger says about the nodes of its plans, grouped.
struct LedgerRow {
  std::string name;
  int64_t ns = 0, nodes = 0, runs = 0;
  int64_t started = 0;   // nodes, each as often as it ran
  int64_t alone_ns = 0;  // what rates are of
  double flops = 0, bytes = 0;
  // Each node at the ceiling of its arithmetic or of its bytes, if known; of a node that overlaps
  // with others so much less as `ns` is less than what it takes alone.
  double limit_ns = 0;
};
std::vector<LedgerRow> rows_by_op(const Ledger& ledger, const Ceiling& ceiling = {});
// A ceiling is the best that was seen: higher where products of this ledger, or an op that takes
// some of its time, were faster. It was measured while something else ran, then.
Ceiling raised(Ceiling ceiling, const Ledger& ledger);
// "layers.*.attention", …: layer numbers joined.
std::vector<LedgerRow> rows_by_component(const Ledger& ledger, const Ceiling& ceiling = {});
// By op and what computes it: "matmul: gemm", "attention: flash".
std::vector<LedgerRow> rows_by_kernel(const Ledger& ledger, const Ceiling& ceiling = {});
// Rows shorter than that are one, "all others", at the end.
std::vector<LedgerRow> join_small(std::vector<LedgerRow> rows, double least_ns);
// Nodes that are alike in phase, component, op, kernel and shapes, as a table of text.
std::string profile_text(const Ledger& ledger, const Ceiling& ceiling);

}  // namespace millrace
