#include "graph/builder.h"

namespace millrace {

Builder::ScopeGuard Builder::enter(const std::string& name, bool is_layer) {
  const int32_t previous = scope_;
  const std::string full = path(name);
  int32_t found = -1;
  for (size_t i = 0; i < graph_.scopes.size(); ++i)
    if (graph_.scopes[i].path == full) found = static_cast<int32_t>(i);
  if (found < 0) {
    found = static_cast<int32_t>(graph_.scopes.size());
    graph_.scopes.push_back(
        {full, is_layer ? found : graph_.scopes[static_cast<size_t>(previous)].recompute_unit});
  }
  scope_ = found;
  return ScopeGuard(*this, previous);
}

std::string Builder::path(const std::string& name) const {
  const std::string& here = graph_.scopes[static_cast<size_t>(scope_)].path;
  return here.empty() ? name : here + "." + name;
}

void Builder::fail(const std::string& what) {
  if (fault_) return;
  const std::string& where = graph_.scopes[static_cast<size_t>(scope_)].path;
  fault_ = ErrorFields{.code = ErrorCode::config,
                       .what = what,
                       .where = where.empty() ? "model" : "model scope " + where,
                       .remedy = "sizes of the model config that meet here must agree"};
}

Value Builder::leaf(Leaf kind, const std::string& name, TensorType type) {
  static const OpCard* const card = find_op_card("leaf");
  MR_CHECK(graph_.find_leaf(name) < 0, "leaf {} declared twice", name);
  graph_.nodes.push_back({.op = card,
                          .in = {},
                          .attrs = {},
                          .out = {type},
                          .scope = scope_,
                          .phase = phase,
                          .leaf = kind,
                          .name = name});
  return {graph_.size() - 1, 0};
}

Value Builder::random_key() {
  const NodeId existing = graph_.find_leaf("random_key");
  return existing >= 0 ? Value{existing, 0} : input("random_key", {{4}, DType::i32});
}

Value Builder::update_number() {
  const NodeId existing = graph_.find_leaf("step");
  return existing >= 0 ? Value{existing, 0} : input("step", {Shape{}, DType::f32});
}

Value Builder::loss_scale() {
  if (!loss_scale_.valid()) loss_scale_ = input("loss_scale", {Shape{}, DType::f32});
  return loss_scale_;
}

const TensorType& Builder::type(Value v) const {
  static const TensorType kNothing{};  // after a fault: model code may still ask for shapes
  return v.valid() ? graph_.type(v) : kNothing;
}

std::vector<Value> Builder::op_all(std::string_view name, std::vector<Value> in, Attrs attrs) {
  const OpCard* card = find_op_card(name);
  MR_CHECK(card, "no op named {}", name);
  std::vector<TensorType> out;
  if (!fault_) {
    for (Value v : in) MR_CHECK(v.valid(), "{}: input missing", name);
    std::vector<TensorType> in_types;
    for (Value v : in) in_types.push_back(type(v));
    const std::string fault = infer_types(*card, attrs, in_types, out);
    if (!fault.empty()) fail(fmt::format("{}: {}", name, fault));
  }
  if (fault_) return std::vector<Value>(8);
  graph_.nodes.push_back({.op = card,
                          .in = std::move(in),
                          .attrs = std::move(attrs),
                          .out = std::move(out),
                          .scope = scope_,
                          .phase = phase,
                          .leaf = Leaf::none,
                          .name = {}});
  const NodeId id = graph_.size() - 1;
  std::vector<Value> values;
  for (size_t i = 0; i < graph_[id].out.size(); ++i)
    values.push_back({id, static_cast<int32_t>(i)});
  return values;
}

Value Builder::elementwise(const Expression& expression, std::vector<Value> in) {
  return op("elementwise", std::move(in), {{"expr", expression.str()}});
}

Value Builder::apply(Function f, Value a) {
  ExpressionBuilder e(1);
  return elementwise(e.finish({e.apply(f, e.operand(0))}), {a});
}

Value Builder::apply(Function f, Value a, Value b) {
  ExpressionBuilder e(2);
  return elementwise(e.finish({e.apply(f, e.operand(0), e.operand(1))}), {a, b});
}

Value Builder::scale(Value a, double factor) {
  ExpressionBuilder e(1);
  return elementwise(e.finish({e.apply(Function::mul, e.operand(0), e.constant(factor))}), {a});
}

Value Builder::dropout(Value x, double p) {
  if (p == 0 || !training) return x;
  ExpressionBuilder e(2);
  const Term factor = e.keep(e.operand(1), p, next_random_stream());
  return elementwise(e.finish({e.apply(Function::mul, e.operand(0), factor)}), {x, random_key()});
}

Value Builder::constant(double value, Shape shape) {
  return op("constant", {}, {{"shape", shape_text(shape)}, {"value", value}});
}

Value Builder::reshape(Value x, const Shape& shape) {
  return op("reshape", {x}, {{"shape", shape_text(shape)}});
}

Value Builder::matmul(Value a, Value b, bool transpose_a, bool transpose_b) {
  return op("matmul", {a, b}, {{"ta", transpose_a}, {"tb", transpose_b}});
}

Value Builder::reduce_to(Value x, const Shape& target) {
  if (failed() || shape(x) == target) return x;
  return op("reduce_sum", {x}, {{"shape", shape_text(target)}});
}

Graph Builder::finish() {
  if (fault_) throw Error(*fault_);
  verify(graph_, "build");
  return std::move(graph_);
}

}  // namespace millrace
