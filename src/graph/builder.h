// Builder: model code reads like the paper because checks live here. The first fault is kept with
// its scope path; everything after it is ignored, and finish() throws it.
#pragma once
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "graph/expression.h"
#include "graph/graph.h"

namespace millrace {

// Low-rank additions to linear layers (LoRA, Hu et al., arXiv 2106.09685): x W + scale (x A) B.
struct Adapters {
  std::set<std::string> layers;  // by their scope paths: "layers.0.attention.qkv"
  int64_t rank = 0;
  double scale = 1, dropout = 0;  // dropout of x on its way into A
};

class Builder {
 public:
  // Leaves the scope when it goes out of sight.
  class ScopeGuard {
   public:
    ScopeGuard(Builder& b, int32_t previous) : b_(b), previous_(previous) {}
    ~ScopeGuard() { b_.scope_ = previous_; }
    ScopeGuard(const ScopeGuard&) = delete;
    ScopeGuard& operator=(const ScopeGuard&) = delete;

   private:
    Builder& b_;
    int32_t previous_;
  };
  [[nodiscard]] ScopeGuard scope(const std::string& name) { return enter(name, false); }
  // A scope that may be recomputed as a whole in the backward pass: a layer.
  [[nodiscard]] ScopeGuard layer(const std::string& name) { return enter(name, true); }
  std::string path(const std::string& name) const;  // current scope path + "." + name

  Value leaf(Leaf kind, const std::string& name, TensorType type);
  Value input(const std::string& name, TensorType type) { return leaf(Leaf::input, name, type); }
  Value parameter(const std::string& name, Shape shape) {
    return leaf(Leaf::parameter, name, {shape, DType::f32});
  }
  Value random_key();  // the step's random key, i32[4]: an input the trainer fills
  // Which update it is, from 1, []: an input the trainer fills.
  Value update_number();
  // What the summed loss is multiplied with, []: an input the trainer fills, unless something else
  // was put in its place before the model asks.
  Value loss_scale();
  void set_loss_scale(Value scale) { loss_scale_ = scale; }

  std::vector<Value> op_all(std::string_view op, std::vector<Value> in, Attrs attrs = {});
  Value op(std::string_view name, std::vector<Value> in, Attrs attrs = {}) {
    return op_all(name, std::move(in), std::move(attrs))[0];
  }

  // Element-wise arithmetic; shapes broadcast by leading (bias) or trailing dimensions, or scalars.
  Value elementwise(const Expression& expression, std::vector<Value> in);
  Value apply(Function f, Value a);
  Value apply(Function f, Value a, Value b);
  Value add(Value a, Value b) { return apply(Function::add, a, b); }
  Value sub(Value a, Value b) { return apply(Function::sub, a, b); }
  Value mul(Value a, Value b) { return apply(Function::mul, a, b); }
  Value scale(Value a, double factor);
  Value dropout(Value x, double p);  // each call its own random stream; p = 0 returns x
  int64_t next_random_stream() { return random_streams_++; }

  Value constant(double value, Shape shape = {});
  Value reshape(Value x, const Shape& shape);
  Value matmul(Value a, Value b, bool transpose_a = false, bool transpose_b = false);
  // Sum over what `x` has more than `shape`; the gradient of broadcasting.
  Value reduce_to(Value x, const Shape& shape);

  const TensorType& type(Value v) const;
  const Shape& shape(Value v) const { return type(v).shape; }
  void output(const std::string& name, Value v) { graph_.outputs[name] = v; }
  void update(Value leaf, Value value) { graph_.updates.push_back({leaf.node, value}); }
  void fail(const std::string& what);
  bool failed() const { return fault_.has_value(); }

  Phase phase = Phase::forward;
  bool training = true;
  double label_smoothing = 0;  // of the loss in training
  Adapters adapters;
  std::set<std::string> linear_layers;  // that could have one, as model code makes them
  // Parameters that nobody will ask the gradient of; an op may then do without computing it.
  std::set<std::string> frozen;

  const Graph& graph() const { return graph_; }
  int32_t current_scope() const { return scope_; }
  void set_scope(int32_t scope) { scope_ = scope; }
  Graph finish();

 private:
  ScopeGuard enter(const std::string& name, bool is_layer);

  Graph graph_;
  int32_t scope_ = 0;
  int64_t random_streams_ = 0;
  Value loss_scale_;
  std::optional<ErrorFields> fault_;
};

}  // namespace millrace
