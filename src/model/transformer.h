// What Transformer families share: the shape of a layer, as config keys, and the graph of its two
// halves, attention and MLP.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "model/layers.h"
#include "model/model.h"

namespace millrace {

// Where tokens stand when not each row is one sequence from its start: behind those that a cache
// holds (decode), several sequences in a row (packed training), or padded at its end.
struct Places {
  Value position = {};         // [B], tokens in the cache
  Value positions = {};        // [B, T]
  Value segments = {};         // [B, T], of packed rows
  Value history = {};          // [B, capacity], which rows of the cache hold what, in a beam search
  Value lengths = {};          // [B], of padded rows
  double sequence_length = 0;  // BatchShape::sequence_length
  bool causal = true;
  int64_t cache_rows = 0, capacity = 0;
  bool cached() const { return capacity > 0; }
};

// Places of new tokens [rows,T] behind those that a cache for shape.batch rows holds. Declares the
// input "position".
Places places_behind(Builder& b, int64_t rows, BatchShape shape, int64_t capacity);

// The inputs of a decode graph, and what becomes of them.
struct NewTokens {
  NewTokens(Builder& b, BatchShape shape, int64_t capacity);
  // x [B,T,D] -> [B,V], of the rows that are to be predicted after.
  Value logits(Builder& b, Value x, Value head) const;

  Value tokens, row;
  Places places;
};

struct TransformerShape {
  int64_t D = 128, H = -1, G = -1, F = -1;  // -1: auto
  int64_t head_dim = 0;                     // 0: D / H
  std::string positions = "learned", norm = "layer_norm", activation = "gelu_tanh";
  double eps = 1e-5, dropout = 0, theta = 10000, init_std = 0.02;
  // Scaled rotary positions (ops/rope.h).
  std::string rope_scaling = "none";
  double rope_factor = 1, rope_low_frequency = 1, rope_high_frequency = 4;
  int64_t rope_original_length = 8192;
  bool bias = true;
  std::string bias_in = "all";

  int64_t K() const { return head_dim > 0 ? head_dim : D / H; }
  // Whether the linear layer of this name has one.
  bool biased(const std::string& layer) const;
  void declare(Schema& schema);
  // Fills what was `auto`; refuses sizes that contradict each other.
  void resolve(Schema& schema);
  // The keys with their values, for own_config_text.
  nlohmann::ordered_json keys() const;

  // Tokens [B,T] -> [B,T,D], with what the position adds; `table`: the scope of learned positions.
  Value embed(Layers& layers, Value tokens, const std::string& embedding, const std::string& table,
              const Places& places) const;
  // The second half of it: x [B,T,D] with what the position adds, and dropout.
  Value placed(Layers& layers, Value x, const std::string& table, const Places& places) const;
  // x [B,T,D] -> [B,T,D], parameters under "attention".
  Value attention(Layers& layers, Value x, const Places& places) const;
  // Queries of x, keys and values kv [B,S,2GK] of a source, whose rows are `lengths` [B] long.
  Value cross_attention(Layers& layers, Value x, Value kv, Value lengths) const;
  // Parameters under "mlp".
  Value mlp(Layers& layers, Value x) const;
  Value normalised(Layers& layers, Value x, const std::string& name) const {
    return layers.norm(x, name, norm, eps);
  }

  Attrs rope_attrs() const;  // of op rope

 private:
  Attrs heads() const { return {{"heads", H}, {"kv_heads", G}, {"head_dim", K()}}; }
  void drop(Builder& b, std::vector<Value>& in, Attrs& attrs) const;
};

// The parameters of such a model, in order, of a family without names elsewhere.
class TransformerTable {
 public:
  explicit TransformerTable(const TransformerShape& shape) : s_(shape) {}
  void matrix(const std::string& name, int64_t rows, int64_t columns, double std);
  void linear(const std::string& name, int64_t in, int64_t out, double std);
  void norm(const std::string& name);
  // `prefix`layers.0 to count - 1; with `cross` each also attends to a source.
  void layers(const std::string& prefix, int64_t count, bool cross = false);
  std::vector<Parameter> take() { return std::move(table_); }

 private:
  const TransformerShape& s_;
  std::vector<Parameter> table_;
};

}  // namespace millrace
