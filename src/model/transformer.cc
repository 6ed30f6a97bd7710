#include "model/transformer.h"

#include <cmath>
#include <nlohmann/json.hpp>

namespace millrace {
namespace {

int64_t nearest_divisor(int64_t n, int64_t wish) {
  for (int64_t d = 0; d < n; ++d)
    for (int64_t candidate : {wish - d, wish + d})
      if (candidate > 0 && n % candidate == 0) return candidate;
  return 1;
}

}  // namespace

Places places_behind(Builder& b, int64_t rows, BatchShape shape, int64_t capacity) {
  const Value position = b.input("position", {{rows}, DType::i32});
  return {.position = position,
          .positions = b.op("iota", {position}, {{"size", shape.length}}),
          .cache_rows = shape.batch,
          .capacity = capacity};
}

NewTokens::NewTokens(Builder& b, BatchShape shape, int64_t capacity) {
  tokens = b.input(prompt_leaf(shape.length), {{shape.batch, shape.length}, DType::i32});
  places = places_behind(b, shape.batch, shape, capacity);
  row = b.input("prompt_row", {{shape.batch}, DType::i32});
  if (shape.beams > 1) {
    places.history = b.input(kBeamHistory, {{shape.batch, capacity}, DType::i32});
    b.input(kBeamParents, {{shape.batch}, DType::i32});
  }
}

Value NewTokens::logits(Builder& b, Value x, Value head) const {
  const Shape shape = b.shape(x);
  const Value rows = b.reshape(x, {shape[0] * shape[1], shape[2]});
  return b.matmul(b.op("embedding", {row, rows}), head, false, true);
}

void TransformerShape::declare(Schema& s) {
  s.integer("model.d_model", &D).range(1, 65536).help("Width of the residual stream.");
  s.integer("model.num_heads", &H)
      .range(1, 4096)
      .allow_auto()
      .help("Attention heads; auto: one for every 64 of d_model.");
  s.integer("model.num_kv_heads", &G)
      .range(1, 4096)
      .allow_auto()
      .help("Key/value heads (grouped-query attention); auto: num_heads.");
  s.integer("model.head_dim", &head_dim)
      .range(0, 65536)
      .help("Width of a head; 0: d_model / num_heads.");
  s.integer("model.d_ff", &F)
      .range(1, 1 << 20)
      .allow_auto()
      .help(
          "Width inside the MLP; auto: 4 x d_model, or 8/3 x d_model rounded up to 64 for "
          "swiglu.");
  s.choice("model.positions", &positions, {"learned", "rotary"})
      .help("How the model knows where a token stands.");
  s.choice("model.norm", &norm, {"layer_norm", "rms_norm"}).help("Normalisation.");
  s.number("model.norm_eps", &eps).above(0).max(1).help("Epsilon of the normalisation.");
  s.choice("model.activation", &activation, {"gelu_tanh", "gelu", "relu", "silu", "swiglu"})
      .help("Activation of the MLP; gelu_tanh is GPT-2's.");
  s.boolean("model.bias", &bias).help("Biases in linear layers and LayerNorm.");
  s.choice("model.bias_in", &bias_in, {"all", "attention", "mlp"})
      .help("With bias: the linear layers that have one.");
  s.number("model.dropout", &dropout)
      .min(0)
      .below(1)
      .help("Dropout on embeddings, attention and the residual branches.");
  s.number("model.rope_theta", &theta).above(0).max(1e12).help("Base of the rotary frequencies.");
  s.choice("model.rope_scaling", &rope_scaling, {"none", "linear", "llama3"})
      .help(
          "Rotary positions for longer texts than a model was first trained with. linear: all "
          "frequencies are divided by rope_factor; llama3: only the low ones, as in Llama 3.1.");
  s.number("model.rope_factor", &rope_factor).min(1).max(1e6).help("What they are divided by.");
  s.number("model.rope_low_frequency", &rope_low_frequency)
      .above(0)
      .max(1e6)
      .help("llama3: a frequency is low with fewer turns in rope_original_length.");
  s.number("model.rope_high_frequency", &rope_high_frequency)
      .above(0)
      .max(1e6)
      .help("llama3: it stays as it is with more; between the two it goes over.");
  s.integer("model.rope_original_length", &rope_original_length)
      .range(1, 1 << 20)
      .help("llama3: tokens that the model was first trained with.");
  s.number("model.init_std", &init_std)
      .above(0)
      .max(10)
      .help(
          "Standard deviation of the initial weights; projections into the residual stream get "
          "1/sqrt(2 x num_layers) of it.");
}

void TransformerShape::resolve(Schema& s) {
  set_auto(s, "model.num_heads", H, D % 64 == 0 ? D / 64 : 1, "auto: d_model / 64");
  set_auto(s, "model.num_kv_heads", G, H, "auto: num_heads");
  set_auto(s, "model.d_ff", F, activation == "swiglu" ? (8 * D / 3 + 63) / 64 * 64 : 4 * D,
           "auto: from d_model");
  if (head_dim == 0 && D % H != 0)
    refuse_sizes(s, "model.num_heads",
                 fmt::format("model.d_model {} is not divisible by model.num_heads {}", D, H),
                 "d_model = num_heads x head width",
                 fmt::format("model.num_heads={} or model.d_model={}", nearest_divisor(D, H),
                             (D + H - 1) / H * H));
  if (H % G != 0)
    refuse_sizes(s, "model.num_kv_heads",
                 fmt::format("model.num_heads {} is not divisible by model.num_kv_heads {}", H, G),
                 "each key/value head serves the same number of query heads",
                 fmt::format("model.num_kv_heads={}", nearest_divisor(H, G)));
  if (positions == "rotary" && K() % 2 != 0)
    refuse_sizes(s, "model.num_heads", fmt::format("head width {} is odd", K()),
                 "an even head width for rotary positions",
                 "another num_heads, or model.positions=learned");
  if (rope_scaling == "llama3" && !(rope_low_frequency < rope_high_frequency))
    refuse_sizes(
        s, "model.rope_low_frequency",
        fmt::format("model.rope_low_frequency {} is not below model.rope_high_frequency {}",
                    rope_low_frequency, rope_high_frequency),
        "the low one below the high one",
        "model.rope_low_frequency=1 and model.rope_high_frequency=4");
}

bool TransformerShape::biased(const std::string& layer) const {
  if (!bias || bias_in == "all") return bias;
  const bool attention =
      layer.find("attention.") != layer.npos || layer.find("cross.") != layer.npos;
  return bias_in == "attention" ? attention : layer.find("mlp.") != layer.npos;
}

Attrs TransformerShape::rope_attrs() const {
  Attrs attrs = heads();
  attrs.set({"theta", theta});
  if (rope_scaling == "none") return attrs;
  attrs.set({"factor", rope_factor});
  if (rope_scaling == "linear") return attrs;
  attrs.set({"original_length", static_cast<double>(rope_original_length)});
  attrs.set({"low_frequency", rope_low_frequency});
  attrs.set({"high_frequency", rope_high_frequency});
  return attrs;
}

nlohmann::ordered_json TransformerShape::keys() const {
  return {{"d_model", D},
          {"num_heads", H},
          {"num_kv_heads", G},
          {"head_dim", head_dim},
          {"d_ff", F},
          {"positions", positions},
          {"norm", norm},
          {"norm_eps", eps},
          {"activation", activation},
          {"bias", bias},
          {"bias_in", bias_in},
          {"dropout", dropout},
          {"rope_theta", theta},
          {"init_std", init_std},
          {"rope_scaling", rope_scaling},
          {"rope_factor", rope_factor},
          {"rope_low_frequency", rope_low_frequency},
          {"rope_high_frequency", rope_high_frequency},
          {"rope_original_length", rope_original_length}};
}

Value TransformerShape::embed(Layers& layers, Value tokens, const std::string& embedding,
                              const std::string& table, const Places& places) const {
  Builder& b = layers.b;
  Value x;
  {
    const auto scope = b.scope(embedding);
    x = b.op("embedding", {tokens, layers.parameter("weight")});  // [B,T,D]
  }
  return placed(layers, x, table, places);
}

Value TransformerShape::placed(Layers& layers, Value x, const std::string& table,
                               const Places& places) const {
  Builder& b = layers.b;
  if (positions == "learned") {
    const int64_t T = b.shape(x).last(1);
    const auto scope = b.scope(table);
    Value rows = layers.parameter("weight");  // [max T, D]
    if (places.positions.valid())
      rows = b.op("embedding", {places.positions, rows});
    else if (T < b.shape(rows)[0])
      rows = b.op("embedding", {b.op("iota", {}, {{"size", T}}), rows});
    x = b.add(x, rows);
  }
  return b.dropout(x, dropout);
}

void TransformerShape::drop(Builder& b, std::vector<Value>& in, Attrs& attrs) const {
  if (!b.training || !(dropout > 0)) return;
  attrs.set({"dropout", dropout});
  attrs.set({"stream", b.next_random_stream()});
  in.push_back(b.random_key());
}

Value TransformerShape::attention(Layers& layers, Value x, const Places& places) const {
  Builder& b = layers.b;
  const auto scope = b.scope("attention");
  Value qkv = layers.linear(x, "qkv");  // [B, T, (H + 2G) K]
  if (positions == "rotary") {
    Attrs attrs = rope_attrs();
    std::vector<Value> in{qkv};
    if (places.positions.valid()) {
      attrs.set({"positions", 1});
      in.push_back(places.positions);
    }
    qkv = b.op("rope", std::move(in), attrs);
  }
  if (places.cached()) {
    const TensorType rows{{places.cache_rows, places.capacity, G * K()}, DType::f32};
    const Value keys = b.leaf(Leaf::cache, b.path("cache_k"), rows),
                values = b.leaf(Leaf::cache, b.path("cache_v"), rows);
    std::vector<Value> in{qkv, keys, values, places.position};
    Attrs attrs = heads();
    if (places.history.valid()) {
      attrs.set({"history", 1});
      in.push_back(places.history);
    }
    if (const int64_t sequences = b.shape(qkv)[0]; sequences < places.cache_rows)
      attrs.set({"beams", places.cache_rows / sequences});
    const auto out = b.op_all("attention_cached", std::move(in), attrs);
    b.update(keys, out[1]);
    b.update(values, out[2]);
    return layers.linear(out[0], "output");
  }
  Attrs attrs = heads();
  attrs.set({"causal", places.causal});
  std::vector<Value> in{qkv};
  if (const Value mask = places.segments.valid() ? places.segments : places.lengths; mask.valid()) {
    attrs.set({"mask", places.segments.valid() ? "segments" : "lengths"});
    in.push_back(mask);
  }
  if (places.sequence_length > 0) attrs.set({"sequence_length", places.sequence_length});
  drop(b, in, attrs);
  return layers.linear(b.op("attention", std::move(in), attrs), "output");
}

Value TransformerShape::cross_attention(Layers& layers, Value x, Value kv, Value lengths) const {
  Builder& b = layers.b;
  Attrs attrs = heads();
  attrs.set({"cross", 1});
  attrs.set({"causal", 0});
  attrs.set({"mask", "lengths"});
  std::vector<Value> in{layers.linear(x, "q"), kv, lengths};
  drop(b, in, attrs);
  return layers.linear(b.op("attention", std::move(in), attrs), "output");
}

Value TransformerShape::mlp(Layers& layers, Value x) const {
  Builder& b = layers.b;
  const auto scope = b.scope("mlp");
  const Value up = layers.linear(x, "up");
  if (activation == "swiglu")
    return layers.linear(b.mul(b.apply(Function::silu, layers.linear(x, "gate")), up), "down");
  const Function f = activation == "gelu"   ? Function::gelu
                     : activation == "relu" ? Function::relu
                     : activation == "silu" ? Function::silu
                                            : Function::gelu_tanh;
  return layers.linear(b.apply(f, up), "down");
}

void TransformerTable::matrix(const std::string& name, int64_t rows, int64_t columns, double std) {
  table_.push_back(
      {name + ".weight", {rows, columns}, Parameter::Init::normal, std, true, {}, {}, false});
}

void TransformerTable::linear(const std::string& name, int64_t in, int64_t out, double std) {
  matrix(name, in, out, std);
  if (s_.biased(name))
    table_.push_back({name + ".bias", {out}, Parameter::Init::zeros, 0, false, {}, {}, false});
}

void TransformerTable::norm(const std::string& name) {
  table_.push_back({name + ".weight", {s_.D}, Parameter::Init::ones, 0, false, {}, {}, false});
  if (s_.norm == "layer_norm" && s_.bias)
    table_.push_back({name + ".bias", {s_.D}, Parameter::Init::zeros, 0, false, {}, {}, false});
}

void TransformerTable::layers(const std::string& prefix, int64_t count, bool cross) {
  // So many parts of a layer write into the residual stream.
  const double parts = cross ? 3 : 2,
               out_std = s_.init_std / std::sqrt(parts * static_cast<double>(count));
  const int64_t D = s_.D, Q = s_.H * s_.K(), KV = s_.G * s_.K();
  for (int64_t i = 0; i < count; ++i) {
    const std::string name = fmt::format("{}layers.{}.", prefix, i);
    norm(name + "norm1");
    linear(name + "attention.qkv", D, Q + 2 * KV, s_.init_std);
    linear(name + "attention.output", Q, D, out_std);
    if (cross) {
      norm(name + "norm_cross");
      linear(name + "cross.q", D, Q, s_.init_std);
      linear(name + "cross.kv", D, 2 * KV, s_.init_std);
      linear(name + "cross.output", Q, D, out_std);
    }
    norm(name + "norm2");
    if (s_.activation == "swiglu") linear(name + "mlp.gate", D, s_.F, s_.init_std);
    linear(name + "mlp.up", D, s_.F, s_.init_std);
    linear(name + "mlp.down", s_.F, D, out_std);
  }
}

}  // namespace millrace
