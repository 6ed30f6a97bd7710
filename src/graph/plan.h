// Plan: everything known before running. Operations in order, the kernel for each and why others
// declined, every buffer's place in the arena, FLOPs, bytes, the exact peak. It has a text form and
// a hash; `plan`, the executor and the doctor read it and nothing else.
#pragma once
#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "graph/graph.h"
#include "graph/passes.h"

namespace millrace {

struct KernelChoice {
  std::string name;
  int64_t workspace_bytes = 0;
  std::vector<std::string> declined;  // "name: reason", in the order they were tried
  // The kernel's end is apart: it makes the outputs from this one on, out of the workspace. -1: all
  // is made at once.
  int32_t end_from = -1;
  // What a fixed order of sums costs: seconds more than the best that adds in any order. Measured,
  // where there is such a thing.
  std::optional<double> order_seconds = {};
};

// What a backend answers at plan time. Throws Error when it has no kernel at all.
class KernelChooser {
 public:
  virtual ~KernelChooser() = default;
  virtual KernelChoice choose(const OpCard& op, const OpSite& site) = 0;
  // False: choices that are not known yet are made by rule, not by timing. The answer before.
  virtual bool allow_timing(bool) { return true; }
  // True: plans are made for their sizes alone, so no choice is timed or counts afterwards. The
  // answer before.
  virtual bool set_sizes_only(bool) { return false; }
  // Whether a precision of 16 bits is what values are stored in, or what products round their
  // operands to and nothing else.
  virtual bool stores_halves() const { return true; }
  // Whether nodes can run at the same time (Plan::beside).
  virtual bool runs_beside() const { return false; }
};

// As long as it lives, plans are made for their sizes alone.
class SizesOnly {
 public:
  explicit SizesOnly(KernelChooser& chooser)
      : chooser_(chooser), before_(chooser.set_sizes_only(true)) {}
  ~SizesOnly() { chooser_.set_sizes_only(before_); }
  SizesOnly(const SizesOnly&) = delete;
  SizesOnly& operator=(const SizesOnly&) = delete;

 private:
  KernelChooser& chooser_;
  const bool before_;
};

enum class MemoryClass : uint8_t {
  parameters,
  shadows,
  optimizer_state,
  gradients,
  cache,
  inputs,
  activations,
  temporaries,
  workspace
};
constexpr size_t kMemoryClasses = 9;
std::string_view memory_class_name(MemoryClass c);
constexpr int64_t kAlignment = 256;  // what cuBLASLt wants of a workspace; whole cache lines
inline int64_t aligned(int64_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

// A piece of storage. Leaves live in the state, which all plans of a session share by name;
// everything else lives in the scratch arena between `first` and `last` (positions in the node
// order).
struct Buffer {
  int64_t bytes = 0;
  int64_t offset = 0;
  bool in_state = false;
  NodeId first = 0, last = 0;
  MemoryClass memory_class = MemoryClass::temporaries;
  NodeId owner = -1;  // the node that wrote it first
};

struct Plan {
  Graph graph;
  PassOptions passes;
  std::vector<KernelChoice> kernels;            // per node; empty name for leaves and views
  std::vector<std::vector<int32_t>> buffer_of;  // per node and output
  std::vector<int32_t> workspace_of;            // per node, or -1
  // Per node: it may run beside those that follow it, because only the optimizer waits for what it
  // makes. Its memory stays untouched for a while. The same of the ends of kernels.
  std::vector<bool> beside, end_beside;
  std::vector<Buffer> buffers;

  int64_t scratch_bytes = 0;                      // size of the arena this plan needs
  int64_t state_bytes = 0;                        // leaves of this plan, each aligned
  NodeId peak_at = 0;                             // where most is alive
  std::array<int64_t, kMemoryClasses> at_peak{};  // alive there, by class; state classes included
  Cost cost;  // of all nodes: arithmetic, and bytes if each reads and writes memory once

  std::string text() const;
  std::string hash() const;                     // 32 hex digits of the text
  std::optional<double> order_seconds() const;  // of all nodes; nothing when nothing was measured
};

Plan make_plan(const Graph& graph, const PassOptions& options, KernelChooser& chooser);

// Throws through MR_CHECK if two buffers that live at the same time overlap; used after planning.
void verify_memory(const Plan& plan);

}  // namespace millrace
