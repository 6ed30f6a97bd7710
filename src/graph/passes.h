// The passes: each takes a graph and gives a graph, is verified after, and can be switched off by
// name. The order is fixed in optimize(); docs/ARCHITECTURE.md says why.
#pragma once
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "graph/graph.h"

namespace millrace {

// How much of the forward pass is run a second time to save memory.
struct Recompute {
  bool cheap = false;        // normalisation and element-wise results
  int64_t whole_layers = 0;  // the first so many layers keep only their input
  friend bool operator==(const Recompute&, const Recompute&) = default;
};

// What values of forward and backward are stored and multiplied in; tf32, and 16 bits where a
// device does not store them, are for products alone. Leaves, statistics, losses, gradients of
// parameters and the optimizer stay f32 in all of them.
enum class Precision : uint8_t { fp32, tf32, bf16, fp16 };
std::string_view precision_name(Precision precision);

struct PassOptions {
  Precision precision = Precision::fp32;
  std::set<std::string> off;  // names from pass_names()
  Recompute recompute;
  int64_t head_chunk_rows = 0;  // rows of logits alive at once; 0: the kernel's own choice
};

std::vector<std::string_view> pass_names();  // and "beside" (Plan::beside)

// Merges equal nodes, folds constants into expressions, drops identities, lets gradients of
// embeddings and norms do the additions and sums behind them.
Graph simplify(const Graph& graph);
// Types and casts of a precision. Where 16 bits are stored, parameters are read through copies,
// leaves named by shadow_name, which the optimizer keeps current in the pass that updates the
// parameter.
Graph apply_precision(const Graph& graph, Precision precision, bool stores_halves = true);
std::string shadow_name(std::string_view parameter);
// Backward nodes read recomputed values instead of stored ones.
Graph recompute(const Graph& graph, const Recompute& how);
// Chains of element-wise nodes become one.
Graph fuse_elementwise(const Graph& graph);
// Element-wise nodes behind a matmul become its epilogue.
Graph fuse_epilogue(const Graph& graph);
// Moves nodes towards their first reader where that shortens lives.
Graph schedule(const Graph& graph);
// Sets how many rows of logits the loss head works on at a time.
Graph chunk_head(const Graph& graph, int64_t rows);

Graph optimize(const Graph& graph, const PassOptions& options, bool stores_halves = true);

// The layers of the graph, in order: scopes marked by Builder::layer.
std::vector<int32_t> recompute_units(const Graph& graph);

}  // namespace millrace
