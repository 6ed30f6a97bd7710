// The decoder-only Transformer: GPT-2 (Radford et al. 2019) and Llama (Touvron et al., arXiv
// 2302.13971) shapes and everything between, pre-norm.
//   x = embedding[tokens] (+ positions)
//   for each layer: x += attention(norm(x)); x += mlp(norm(x))
//   logits = head(norm(x))
#include <nlohmann/json.hpp>

#include "model/layers.h"
#include "model/model.h"

namespace millrace {
namespace {

// Where tokens stand when not each row is one sequence from its start: behind those that a cache
// holds (decode), or several sequences in a row (packed training).
struct Places {
  Value position;   // [], tokens in the cache
  Value positions;  // [B, T]
  Value segments;   // [B, T], of packed rows
  int64_t batch = 0, capacity = 0;
  bool cached() const { return capacity > 0; }
};

class Gpt : public Model {
 public:
  void declare(Schema& s) override {
    s.integer("model.d_model", &D_).range(1, 65536).help("Width of the residual stream.");
    s.integer("model.num_layers", &L_).range(1, 1024).help("Number of layers.");
    s.integer("model.num_heads", &H_)
        .range(1, 4096)
        .allow_auto()
        .help("Attention heads; auto: one for every 64 of d_model.");
    s.integer("model.num_kv_heads", &G_)
        .range(1, 4096)
        .allow_auto()
        .help("Key/value heads (grouped-query attention); auto: num_heads.");
    s.integer("model.d_ff", &F_)
        .range(1, 1 << 20)
        .allow_auto()
        .help(
            "Width inside the MLP; auto: 4 x d_model, or 8/3 x d_model rounded up to 64 for "
            "swiglu.");
    s.integer("model.vocab_size", &V_)
        .range(2, 1 << 24)
        .allow_auto()
        .help("Vocabulary; auto: what the tokenizer has.");
    s.choice("model.positions", &positions_, {"learned", "rotary"})
        .help("How the model knows where a token stands.");
    s.choice("model.norm", &norm_, {"layer_norm", "rms_norm"}).help("Normalisation.");
    s.number("model.norm_eps", &eps_).above(0).max(1).help("Epsilon of the normalisation.");
    s.choice("model.activation", &activation_, {"gelu_tanh", "gelu", "relu", "silu", "swiglu"})
        .help("Activation of the MLP; gelu_tanh is GPT-2's.");
    s.boolean("model.tied_embeddings", &tied_).help("The output head is the token embedding.");
    s.boolean("model.bias", &bias_).help("Biases in linear layers and LayerNorm.");
    s.number("model.dropout", &dropout_)
        .min(0)
        .below(1)
        .help("Dropout on embeddings, attention and the two residual branches.");
    s.number("model.rope_theta", &theta_)
        .above(0)
        .max(1e12)
        .help("Base of the rotary frequencies.");
    s.number("model.init_std", &init_std_)
        .above(0)
        .max(10)
        .help(
            "Standard deviation of the initial weights; projections into the residual stream get "
            "1/sqrt(2 x num_layers) of it.");
  }

  void resolve(Schema& s, int64_t vocab_size, int64_t max_length) override {
    T_ = max_length;
    auto set_auto = [&](const char* key, int64_t& field, int64_t value, const char* why) {
      if (field >= 0) return;
      field = value;
      s.note(key, why);
    };
    set_auto("model.num_heads", H_, D_ % 64 == 0 ? D_ / 64 : 1, "auto: d_model / 64");
    set_auto("model.num_kv_heads", G_, H_, "auto: num_heads");
    set_auto("model.d_ff", F_, activation_ == "swiglu" ? (8 * D_ / 3 + 63) / 64 * 64 : 4 * D_,
             "auto: from d_model");
    set_auto("model.vocab_size", V_, vocab_size, "auto: from the tokenizer");
    auto refuse = [&](const char* key, const std::string& what, const std::string& expected,
                      const std::string& remedy) {
      throw Error({.code = ErrorCode::config,
                   .what = what,
                   .where = s.where(key),
                   .expected = expected,
                   .got = what,
                   .remedy = remedy});
    };
    if (D_ % H_ != 0)
      refuse("model.num_heads",
             fmt::format("model.d_model {} is not divisible by model.num_heads {}", D_, H_),
             "d_model = num_heads x head width",
             fmt::format("model.num_heads={} or model.d_model={}", nearest_divisor(D_, H_),
                         (D_ + H_ - 1) / H_ * H_));
    if (H_ % G_ != 0)
      refuse("model.num_kv_heads",
             fmt::format("model.num_heads {} is not divisible by model.num_kv_heads {}", H_, G_),
             "each key/value head serves the same number of query heads",
             fmt::format("model.num_kv_heads={}", nearest_divisor(H_, G_)));
    if (positions_ == "rotary" && (D_ / H_) % 2 != 0)
      refuse("model.num_heads", fmt::format("head width {} is odd", D_ / H_),
             "an even head width for rotary positions",
             "another num_heads, or model.positions=learned");
    if (V_ < vocab_size)
      refuse("model.vocab_size",
             fmt::format("model.vocab_size {} is smaller than the tokenizer's {}", V_, vocab_size),
             fmt::format("at least {}", vocab_size), "model.vocab_size=auto");
  }

  std::vector<Parameter> parameters() const override {
    using Init = Parameter::Init;
    const bool gpt2 = positions_ == "learned";
    const int64_t K = D_ / H_, Q = H_ * K, KV = G_ * K;
    const double out_std = init_std_ / std::sqrt(2.0 * static_cast<double>(L_));
    std::vector<Parameter> table;
    auto weight = [&](std::string name, int64_t in, int64_t out, double std,
                      std::vector<std::string> external, std::vector<int64_t> widths = {}) {
      table.push_back({name + ".weight",
                       {in, out},
                       Init::normal,
                       std,
                       true,
                       suffixed(external, ".weight"),
                       widths,
                       !gpt2});
      if (bias_)
        table.push_back({name + ".bias",
                         {out},
                         Init::zeros,
                         0,
                         false,
                         suffixed(external, ".bias"),
                         widths,
                         false});
    };
    auto norm = [&](std::string name, const std::string& external) {
      table.push_back(
          {name + ".weight", {D_}, Init::ones, 0, false, {external + ".weight"}, {}, false});
      if (norm_ == "layer_norm" && bias_)
        table.push_back(
            {name + ".bias", {D_}, Init::zeros, 0, false, {external + ".bias"}, {}, false});
    };
    table.push_back({"embedding.weight",
                     {V_, D_},
                     Init::normal,
                     init_std_,
                     true,
                     {gpt2 ? "transformer.wte.weight" : "model.embed_tokens.weight"},
                     {},
                     false});
    if (gpt2)
      table.push_back({"positions.weight",
                       {T_, D_},
                       Init::normal,
                       init_std_,
                       true,
                       {"transformer.wpe.weight"},
                       {},
                       false});
    for (int64_t i = 0; i < L_; ++i) {
      const std::string name = fmt::format("layers.{}.", i),
                        hf = fmt::format(
                            fmt::runtime(gpt2 ? "transformer.h.{}." : "model.layers.{}."), i);
      norm(name + "norm1", hf + (gpt2 ? "ln_1" : "input_layernorm"));
      if (gpt2)
        weight(name + "attention.qkv", D_, Q + 2 * KV, init_std_, {hf + "attn.c_attn"});
      else
        weight(name + "attention.qkv", D_, Q + 2 * KV, init_std_,
               {hf + "self_attn.q_proj", hf + "self_attn.k_proj", hf + "self_attn.v_proj"},
               {Q, KV, KV});
      weight(name + "attention.output", Q, D_, out_std,
             {hf + (gpt2 ? "attn.c_proj" : "self_attn.o_proj")});
      norm(name + "norm2", hf + (gpt2 ? "ln_2" : "post_attention_layernorm"));
      if (activation_ == "swiglu")
        weight(name + "mlp.gate", D_, F_, init_std_, {hf + "mlp.gate_proj"});
      weight(name + "mlp.up", D_, F_, init_std_, {hf + (gpt2 ? "mlp.c_fc" : "mlp.up_proj")});
      weight(name + "mlp.down", F_, D_, out_std, {hf + (gpt2 ? "mlp.c_proj" : "mlp.down_proj")});
    }
    norm("norm", gpt2 ? "transformer.ln_f" : "model.norm");
    if (!tied_)
      table.push_back(
          {"head.weight", {V_, D_}, Init::normal, init_std_, true, {"lm_head.weight"}, {}, false});
    return table;
  }

  Value build_loss(Builder& b, BatchShape shape) const override {
    Layers layers(b, parameters());
    const TensorType rows{{shape.batch, shape.length}, DType::i32};
    const Value tokens = b.input("tokens", rows);
    Places places;
    if (shape.packed) {
      places.positions = b.input("positions", rows);
      places.segments = b.input("segments", rows);
    }
    const Value x = trunk(layers, tokens, places);
    const Value targets = b.input("targets", rows);
    const Value scale = b.loss_scale();
    const Value head = head_weight(layers);
    const auto scope = b.scope("loss");
    return b.op("linear_cross_entropy", {x, head, targets, scale},
                {{"gradients", b.training}, {"chunk_rows", 0}});
  }

  Value build_decode(Builder& b, BatchShape shape, int64_t capacity) const override {
    Layers layers(b, parameters());
    const Value tokens =
        b.input(prompt_leaf(shape.length), {{shape.batch, shape.length}, DType::i32});
    const Value position = b.input("position", {Shape{}, DType::i32});
    const Value row = b.input("prompt_row", {{shape.batch}, DType::i32});
    const Value positions =
        b.op("iota", {position}, {{"size", shape.length}, {"repeat", shape.batch}});
    const Value x = trunk(layers, tokens, {position, positions, {}, shape.batch, capacity});
    const Value last =
        b.op("embedding", {row, b.reshape(x, {shape.batch * shape.length, D_})});  // [B, D]
    return b.matmul(last, head_weight(layers), false, true);
  }

  bool takes_packed_rows() const override { return true; }
  int64_t vocab_size() const override { return V_; }
  int64_t max_length() const override { return T_; }

  std::string external_config() const override {
    nlohmann::ordered_json j;
    if (is_gpt2()) {
      j = {{"architectures", {"GPT2LMHeadModel"}},
           {"model_type", "gpt2"},
           {"vocab_size", V_},
           {"n_positions", T_},
           {"n_embd", D_},
           {"n_layer", L_},
           {"n_head", H_},
           {"n_inner", F_},
           {"activation_function", activation_ == "gelu_tanh" ? "gelu_new" : activation_},
           {"layer_norm_epsilon", eps_},
           {"resid_pdrop", dropout_},
           {"embd_pdrop", dropout_},
           {"attn_pdrop", dropout_},
           {"tie_word_embeddings", tied_}};
    } else if (is_llama()) {
      j = {{"architectures", {"LlamaForCausalLM"}},
           {"model_type", "llama"},
           {"vocab_size", V_},
           {"hidden_size", D_},
           {"intermediate_size", F_},
           {"num_hidden_layers", L_},
           {"num_attention_heads", H_},
           {"num_key_value_heads", G_},
           {"max_position_embeddings", T_},
           {"hidden_act", "silu"},
           {"rms_norm_eps", eps_},
           {"rope_theta", theta_},
           {"tie_word_embeddings", tied_},
           {"attention_bias", bias_},
           {"mlp_bias", bias_}};
    } else {
      // Other programs must not take it for a model they know.
      j = {{"model_type", "millrace"},
           {"millrace",
            {{"family", "gpt"},
             {"max_length", T_},
             {"model",
              {{"d_model", D_},
               {"num_layers", L_},
               {"num_heads", H_},
               {"num_kv_heads", G_},
               {"d_ff", F_},
               {"vocab_size", V_},
               {"positions", positions_},
               {"norm", norm_},
               {"norm_eps", eps_},
               {"activation", activation_},
               {"tied_embeddings", tied_},
               {"bias", bias_},
               {"dropout", dropout_},
               {"rope_theta", theta_},
               {"init_std", init_std_}}}}}};
    }
    // None: our tokenizers have no such tokens, and the families' defaults name real ones.
    j["bos_token_id"] = j["eos_token_id"] = nullptr;
    j["torch_dtype"] = "float32";
    return j.dump(2) + "\n";
  }

  bool read_external_config(const ExternalConfig& config) override {
    const std::string type = config.text("model_type").value_or("");
    if (type == "gpt2")
      read_gpt2(config);
    else if (type == "llama")
      read_llama(config);
    else
      return type == "millrace" && read_own(config);
    return true;
  }

 private:
  // The shapes that transformers has a class for.
  bool is_gpt2() const {
    return positions_ == "learned" && norm_ == "layer_norm" && bias_ && activation_ != "swiglu" &&
           G_ == H_;
  }
  bool is_llama() const {
    return positions_ == "rotary" && norm_ == "rms_norm" && activation_ == "swiglu";
  }

  static constexpr const char* kAnother = "a model without it";

  void read_gpt2(const ExternalConfig& config) {
    positions_ = "learned";
    norm_ = "layer_norm";
    bias_ = true;
    V_ = config.required_integer("vocab_size", 2, 1 << 24);
    D_ = config.required_integer("n_embd", 1, 65536);
    L_ = config.required_integer("n_layer", 1, 1024);
    H_ = G_ = config.required_integer("n_head", 1, 4096);
    T_ = config.required_integer("n_positions", 1, 1 << 20);
    F_ = config.integer("n_inner", 1, 1 << 20).value_or(4 * D_);
    eps_ = config.number("layer_norm_epsilon", 0, 1).value_or(1e-5);
    tied_ = config.boolean("tie_word_embeddings").value_or(true);
    dropout_ = config.number("resid_pdrop", -1, 1).value_or(0);
    if (dropout_ < 0 || dropout_ == 1)
      config.refuse("resid_pdrop", "at least 0, below 1", "check the rates");
    const std::string name = config.text("activation_function").value_or("gelu_new");
    if (name == "gelu_new" || name == "gelu_pytorch_tanh")
      activation_ = "gelu_tanh";
    else if (name == "gelu" || name == "relu" || name == "silu")
      activation_ = name;
    else
      config.refuse("activation_function", "gelu_new, gelu, relu or silu", kAnother);
    if (D_ % H_ != 0)
      config.refuse("n_head", fmt::format("a divisor of n_embd = {}", D_), "check the sizes");
    if (!config.boolean("scale_attn_weights").value_or(true))
      config.refuse("scale_attn_weights", "true", kAnother);
    for (const char* field : {"scale_attn_by_inverse_layer_idx", "add_cross_attention"})
      if (config.boolean(field).value_or(false)) config.refuse(field, "false", kAnother);
    if (config.has("quantization_config"))
      config.refuse("quantization_config", "plain weights", kAnother);
  }

  void read_llama(const ExternalConfig& config) {
    positions_ = "rotary";
    norm_ = "rms_norm";
    activation_ = "swiglu";
    V_ = config.required_integer("vocab_size", 2, 1 << 24);
    D_ = config.required_integer("hidden_size", 1, 65536);
    F_ = config.required_integer("intermediate_size", 1, 1 << 20);
    L_ = config.required_integer("num_hidden_layers", 1, 1024);
    H_ = config.required_integer("num_attention_heads", 1, 4096);
    G_ = config.integer("num_key_value_heads", 1, 4096).value_or(H_);
    T_ = config.integer("max_position_embeddings", 1, 1 << 20).value_or(2048);
    eps_ = config.number("rms_norm_eps", 0, 1).value_or(1e-6);
    tied_ = config.boolean("tie_word_embeddings").value_or(false);
    bias_ = config.boolean("attention_bias").value_or(false);
    if (config.boolean("mlp_bias").value_or(false) != bias_)
      config.refuse("mlp_bias", fmt::format("{}, as attention_bias", bias_), kAnother);
    if (const std::string name = config.text("hidden_act").value_or("silu"); name != "silu")
      config.refuse("hidden_act", "silu", kAnother);
    if (D_ % H_ != 0 || D_ / H_ % 2 != 0)
      config.refuse("num_attention_heads",
                    fmt::format("a divisor of hidden_size = {} with an even quotient", D_),
                    "check the sizes");
    if (H_ % G_ != 0)
      config.refuse("num_key_value_heads", fmt::format("a divisor of {} heads", H_),
                    "check the sizes");
    if (config.integer("head_dim", 1, 65536).value_or(D_ / H_) != D_ / H_)
      config.refuse("head_dim", fmt::format("hidden_size / num_attention_heads = {}", D_ / H_),
                    kAnother);
    if (config.has("sliding_window")) config.refuse("sliding_window", "null", kAnother);
    if (config.has("quantization_config"))
      config.refuse("quantization_config", "plain weights", kAnother);
    // transformers 5 writes rope_parameters; before, rope_theta and rope_scaling.
    theta_ = config.number("rope_theta", 0, 1e12).value_or(10000);
    for (const char* field : {"rope_parameters", "rope_scaling"}) {
      const auto rope = config.object(field);
      if (!rope) continue;
      theta_ = rope->number("rope_theta", 0, 1e12).value_or(theta_);
      for (const char* kind : {"rope_type", "type"})
        if (rope->text(kind).value_or("default") != "default")
          rope->refuse(kind, "default", "a model without scaled rotary positions");
      if (rope->number("partial_rotary_factor", 0, 1).value_or(1) != 1)
        rope->refuse("partial_rotary_factor", "1", kAnother);
    }
  }

  // What external_config() wrote for a shape that has no name elsewhere.
  bool read_own(const ExternalConfig& config) {
    const auto own = config.object("millrace");
    if (!own) config.refuse("millrace", "an object", "a config.json as Millrace wrote it");
    if (own->text("family").value_or("") != "gpt") return false;
    const auto keys = own->object("model");
    if (!keys) own->refuse("model", "an object", "a config.json as Millrace wrote it");
    const int64_t vocab_size = keys->required_integer("vocab_size", 2, 1 << 24);
    Schema schema;
    declare(schema);
    schema.load_text(fmt::format("{{\"model\": {}}}", keys->json()), config.name());
    schema.finish();
    resolve(schema, vocab_size, own->required_integer("max_length", 1, 1 << 20));
    return true;
  }

  static std::vector<std::string> suffixed(std::vector<std::string> names, const char* suffix) {
    for (std::string& n : names) n += suffix;
    return names;
  }
  static int64_t nearest_divisor(int64_t n, int64_t wish) {
    for (int64_t d = 0; d < n; ++d)
      for (int64_t candidate : {wish - d, wish + d})
        if (candidate > 0 && n % candidate == 0) return candidate;
    return 1;
  }

  Value head_weight(Layers& layers) const {
    const auto scope = layers.b.scope(tied_ ? "embedding" : "head");
    return layers.parameter("weight");
  }

  // tokens -> [B, T, D], normalised.
  Value trunk(Layers& layers, Value tokens, const Places& places) const {
    Builder& b = layers.b;
    const int64_t T = b.shape(tokens).last();
    Value x;
    {
      const auto scope = b.scope("embedding");
      x = b.op("embedding", {tokens, layers.parameter("weight")});  // [B,T,D]
    }
    if (positions_ == "learned") {
      const auto scope = b.scope("positions");
      Value table = layers.parameter("weight");  // [max T, D]
      if (places.positions.valid())
        table = b.op("embedding", {places.positions, table});
      else if (T < T_)
        table = b.op("embedding", {b.op("iota", {}, {{"size", T}}), table});
      x = b.add(x, table);
    }
    x = b.dropout(x, dropout_);
    for (int64_t i = 0; i < L_; ++i) {
      const auto layer = b.layer(fmt::format("layers.{}", i));
      x = b.add(
          x, b.dropout(attention(layers, layers.norm(x, "norm1", norm_, eps_), places), dropout_));
      x = b.add(x, b.dropout(mlp(layers, layers.norm(x, "norm2", norm_, eps_)), dropout_));
    }
    return layers.norm(x, "norm", norm_, eps_);
  }

  Value attention(Layers& layers, Value x, const Places& places) const {
    Builder& b = layers.b;
    const auto scope = b.scope("attention");
    const Attrs heads{{"heads", H_}, {"kv_heads", G_}, {"head_dim", D_ / H_}};
    Value qkv = layers.linear(x, "qkv");  // [B, T, (H + 2G) K]
    if (positions_ == "rotary") {
      Attrs attrs = heads;
      attrs.set({"theta", theta_});
      std::vector<Value> in{qkv};
      if (places.positions.valid()) {
        attrs.set({"positions", 1});
        in.push_back(places.positions);
      }
      qkv = b.op("rope", std::move(in), attrs);
    }
    if (places.cached()) {
      const TensorType rows{{places.batch, places.capacity, G_ * (D_ / H_)}, DType::f32};
      const Value keys = b.leaf(Leaf::cache, b.path("cache_k"), rows),
                  values = b.leaf(Leaf::cache, b.path("cache_v"), rows);
      const auto out = b.op_all("attention_cached", {qkv, keys, values, places.position}, heads);
      b.update(keys, out[1]);
      b.update(values, out[2]);
      return layers.linear(out[0], "output");
    }
    Attrs attrs = heads;
    attrs.set({"causal", 1});
    std::vector<Value> in{qkv};
    if (places.segments.valid()) {
      attrs.set({"mask", "segments"});
      in.push_back(places.segments);
    }
    if (b.training && dropout_ > 0) {
      attrs.set({"dropout", dropout_});
      attrs.set({"stream", b.next_random_stream()});
      in.push_back(b.random_key());
    }
    return layers.linear(b.op("attention", std::move(in), attrs), "output");
  }

  Value mlp(Layers& layers, Value x) const {
    Builder& b = layers.b;
    const auto scope = b.scope("mlp");
    const Value up = layers.linear(x, "up");
    if (activation_ == "swiglu")
      return layers.linear(b.mul(b.apply(Function::silu, layers.linear(x, "gate")), up), "down");
    const Function f = activation_ == "gelu"   ? Function::gelu
                       : activation_ == "relu" ? Function::relu
                       : activation_ == "silu" ? Function::silu
                                               : Function::gelu_tanh;
    return layers.linear(b.apply(f, up), "down");
  }

  int64_t D_ = 128, L_ = 4, H_ = -1, G_ = -1, F_ = -1, V_ = -1, T_ = 0;
  std::string positions_ = "learned", norm_ = "layer_norm", activation_ = "gelu_tanh";
  double eps_ = 1e-5, dropout_ = 0, theta_ = 10000, init_std_ = 0.02;
  bool tied_ = true, bias_ = true;
};

}  // namespace

std::unique_ptr<Model> make_gpt_model() { return std::make_unique<Gpt>(); }

}  // namespace millrace
