// Layers that model families share: a parameter and the op that uses it, under the current scope.
#pragma once
#include <map>
#include <string>

#include "graph/builder.h"
#include "model/model.h"

namespace millrace {

// Looks parameters up in the family's table, so that table and graph cannot disagree.
class Layers {
 public:
  Layers(Builder& builder, const std::vector<Parameter>& table) : b(builder) {
    for (const Parameter& p : table) shapes_[p.name] = p.shape;
  }
  Builder& b;

  bool has(const std::string& name) const { return shapes_.contains(b.path(name)); }
  // The parameter `name` under the current scope path; the same leaf each time it is asked for.
  Value parameter(const std::string& name) {
    const std::string full = b.path(name);
    const auto found = shapes_.find(full);
    MR_CHECK(found != shapes_.end(), "parameter {} is not in the table", full);
    if (const NodeId existing = b.graph().find_leaf(full); existing >= 0) return {existing, 0};
    return b.parameter(full, found->second);
  }
  // x [.., in] -> [.., out]; weight [in, out], bias [out] when the table has one.
  Value linear(Value x, const std::string& name) {
    const auto scope = b.scope(name);
    const Value weight = parameter("weight");
    const Value y = adapted(b.matmul(x, weight), x, b.shape(weight));
    return has("bias") ? b.add(y, parameter("bias")) : y;
  }
  // LayerNorm or RMSNorm over the last dimension.
  Value norm(Value x, const std::string& name, const std::string& kind, double eps) {
    const auto scope = b.scope(name);
    if (kind == "rms_norm") return b.op("rms_norm", {x, parameter("weight")}, {{"eps", eps}});
    std::vector<Value> in{x, parameter("weight")};
    if (has("bias")) in.push_back(parameter("bias"));
    const bool bias = in.size() == 3;
    return b.op("layer_norm", std::move(in), {{"eps", eps}, {"bias", bias}});
  }
  // x [..,D] and a head [V,D]: the loss of build_loss. With a gate and a mass, both as the targets,
  // a word may also be copied (ops/linear_cross_entropy.cc).
  Value cross_entropy(Value x, Value head, Value targets, Value gate = {}, Value mass = {}) {
    return scaled_cross_entropy(b.loss_scale(), x, head, targets, gate, mass);
  }
  // The same, and what it is multiplied with.
  Value scaled_cross_entropy(Value scale, Value x, Value head, Value targets, Value gate = {},
                             Value mass = {}) {
    const auto scope = b.scope("loss");
    Attrs attrs{{"gradients", b.training}, {"chunk_rows", 0}};
    // Its gradient would be as large as the head itself.
    if (b.training && !mass.valid() && b.frozen.contains(b.graph()[head.node].name))
      attrs.set({"frozen", 1});
    if (b.label_smoothing > 0) attrs.set({"smoothing", b.label_smoothing});
    std::vector<Value> in{x, head, targets, scale};
    if (mass.valid()) {
      in.insert(in.end(), {gate, mass});
      attrs.set({"copy", 1});
    }
    return b.op("linear_cross_entropy", std::move(in), attrs);
  }

 private:
  // y = x W, and what an adapter of this layer adds to it.
  Value adapted(Value y, Value x, const Shape& weight) {
    std::string layer = b.path("weight");
    layer.resize(layer.rfind('.'));
    b.linear_layers.insert(layer);
    const Adapters& a = b.adapters;
    if (!a.layers.contains(layer)) return y;
    const auto half = [&](const char* name, const Shape& shape) {
      const NodeId existing = b.graph().find_leaf(b.path(name));
      return existing >= 0 ? Value{existing, 0} : b.parameter(b.path(name), shape);
    };
    const Value down = b.matmul(b.dropout(x, a.dropout), half("lora_a", {weight[0], a.rank})),
                up = b.matmul(down, half("lora_b", {a.rank, weight[1]}));
    return b.add(y, b.scale(up, a.scale));
  }

  std::map<std::string, Shape> shapes_;
};

}  // namespace millrace
