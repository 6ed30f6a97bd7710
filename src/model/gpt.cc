// The decoder-only Transformer: GPT-2 (Radford et al. 2019) and Llama (Touvron et al., arXiv
// 2302.13971) shapes and everything between, pre-norm.
//   x = embedding[tokens] (+ positions)
//   for each layer: x += attention(norm(x)); x += mlp(norm(x))
//   logits = head(norm(x))
#include <nlohmann/json.hpp>

#include "model/transformer.h"
#include "ops/rope.h"

namespace millrace {
namespace {

class Gpt : public Model {
 public:
  void declare(Schema& s) override {
    s_.declare(s);
    s.integer("model.num_layers", &L_).range(1, 1024).help("Number of layers.");
    s.integer("model.vocab_size", &V_)
        .range(2, 1 << 24)
        .allow_auto()
        .help("Vocabulary; auto: what the tokenizer has.");
    s.boolean("model.tied_embeddings", &tied_).help("The output head is the token embedding.");
  }

  void resolve(Schema& s, int64_t vocab_size, MaxLengths lengths) override {
    MaxLengths own{T_, T_ > 0 ? lengths.source : 0};  // a source is none of its business
    resolve_lengths(s, own, lengths);
    T_ = own.target;
    s_.resolve(s);
    resolve_vocabulary(s, V_, vocab_size);
  }

  std::vector<Parameter> parameters() const override {
    using Init = Parameter::Init;
    const bool gpt2 = s_.positions == "learned";
    const int64_t Q = s_.H * s_.K(), KV = s_.G * s_.K();
    const double out_std = s_.init_std / std::sqrt(2.0 * static_cast<double>(L_));
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
      if (s_.biased(name))
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
          {name + ".weight", {s_.D}, Init::ones, 0, false, {external + ".weight"}, {}, false});
      if (s_.norm == "layer_norm" && s_.bias)
        table.push_back(
            {name + ".bias", {s_.D}, Init::zeros, 0, false, {external + ".bias"}, {}, false});
    };
    table.push_back({"embedding.weight",
                     {V_, s_.D},
                     Init::normal,
                     s_.init_std,
                     true,
                     {gpt2 ? "transformer.wte.weight" : "model.embed_tokens.weight"},
                     {},
                     false});
    if (gpt2)
      table.push_back({"positions.weight",
                       {T_, s_.D},
                       Init::normal,
                       s_.init_std,
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
        weight(name + "attention.qkv", s_.D, Q + 2 * KV, s_.init_std, {hf + "attn.c_attn"});
      else
        weight(name + "attention.qkv", s_.D, Q + 2 * KV, s_.init_std,
               {hf + "self_attn.q_proj", hf + "self_attn.k_proj", hf + "self_attn.v_proj"},
               {Q, KV, KV});
      weight(name + "attention.output", Q, s_.D, out_std,
             {hf + (gpt2 ? "attn.c_proj" : "self_attn.o_proj")});
      norm(name + "norm2", hf + (gpt2 ? "ln_2" : "post_attention_layernorm"));
      if (s_.activation == "swiglu")
        weight(name + "mlp.gate", s_.D, s_.F, s_.init_std, {hf + "mlp.gate_proj"});
      weight(name + "mlp.up", s_.D, s_.F, s_.init_std, {hf + (gpt2 ? "mlp.c_fc" : "mlp.up_proj")});
      weight(name + "mlp.down", s_.F, s_.D, out_std,
             {hf + (gpt2 ? "mlp.c_proj" : "mlp.down_proj")});
    }
    norm("norm", gpt2 ? "transformer.ln_f" : "model.norm");
    if (!tied_)
      table.push_back({"head.weight",
                       {V_, s_.D},
                       Init::normal,
                       s_.init_std,
                       true,
                       {"lm_head.weight"},
                       {},
                       false});
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
      places.sequence_length = shape.sequence_length;
    }
    const Value x = trunk(layers, tokens, places);
    const Value targets = b.input("targets", rows);
    return layers.cross_entropy(x, head_weight(layers), targets);
  }

  Value build_decode(Builder& b, BatchShape shape, int64_t capacity) const override {
    Layers layers(b, parameters());
    const NewTokens given(b, shape, capacity);
    return given.logits(b, trunk(layers, given.tokens, given.places), head_weight(layers));
  }

  // Tokens of prompts, shape.length of each: into the first row of its own.
  void build_encode(Builder& b, BatchShape shape, int64_t capacity) const override {
    Layers layers(b, parameters());
    const Value tokens =
        b.input(prompt_leaf(shape.length), {{shape.sources(), shape.length}, DType::i32});
    trunk(layers, tokens, places_behind(b, shape.sources(), shape, capacity));
  }

  Takes takes() const override { return {.packed_rows = true}; }
  int64_t vocab_size() const override { return V_; }
  MaxLengths max_lengths() const override { return {T_, 0}; }

  std::string external_config() const override {
    nlohmann::ordered_json j;
    if (is_gpt2()) {
      j = {{"architectures", {"GPT2LMHeadModel"}},
           {"model_type", "gpt2"},
           {"vocab_size", V_},
           {"n_positions", T_},
           {"n_embd", s_.D},
           {"n_layer", L_},
           {"n_head", s_.H},
           {"n_inner", s_.F},
           {"activation_function", s_.activation == "gelu_tanh" ? "gelu_new" : s_.activation},
           {"layer_norm_epsilon", s_.eps},
           {"resid_pdrop", s_.dropout},
           {"embd_pdrop", s_.dropout},
           {"attn_pdrop", s_.dropout},
           {"tie_word_embeddings", tied_}};
    } else if (is_llama()) {
      j = {{"architectures", {"LlamaForCausalLM"}},
           {"model_type", "llama"},
           {"vocab_size", V_},
           {"hidden_size", s_.D},
           {"intermediate_size", s_.F},
           {"num_hidden_layers", L_},
           {"num_attention_heads", s_.H},
           {"num_key_value_heads", s_.G},
           {"head_dim", s_.K()},
           {"max_position_embeddings", T_},
           {"hidden_act", "silu"},
           {"rms_norm_eps", s_.eps},
           {"rope_theta", s_.theta},
           {"tie_word_embeddings", tied_},
           {"attention_bias", s_.biased("attention.qkv")},
           {"mlp_bias", s_.biased("mlp.up")}};
      if (s_.rope_scaling != "none") {
        j["rope_scaling"] = {{"rope_type", s_.rope_scaling}, {"factor", s_.rope_factor}};
        if (s_.rope_scaling == "llama3")
          j["rope_scaling"].update({{"low_freq_factor", s_.rope_low_frequency},
                                    {"high_freq_factor", s_.rope_high_frequency},
                                    {"original_max_position_embeddings", s_.rope_original_length}});
      }
    } else {
      nlohmann::ordered_json keys = s_.keys();
      keys.update({{"num_layers", L_}, {"vocab_size", V_}, {"tied_embeddings", tied_}});
      return own_config_text("gpt", *this, keys);
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
      return read_own_config("gpt", *this, config);
    return true;
  }

  // Causal masks and rotary frequencies, as old files of transformers have them.
  std::vector<std::string> external_constants() const override {
    return {"attn.bias", "attn.masked_bias", "rotary_emb.inv_freq"};
  }

  // Names and keys of llama.cpp's architectures gpt2 and llama.
  std::optional<GgufForm> gguf_form() const override {
    // Its GPT-2 has one activation.
    const bool gpt2 = is_gpt2() && s_.activation == "gelu_tanh";
    if (!gpt2 && !is_llama()) return std::nullopt;
    const std::string arch = gpt2 ? "gpt2" : "llama";
    GgufForm form;
    auto number = [&](const char* key, int64_t value) {
      form.metadata.push_back({arch + key, static_cast<uint32_t>(value)});
    };
    auto real = [&](const char* key, double value) {
      form.metadata.push_back({arch + key, static_cast<float>(value)});
    };
    form.metadata.push_back({"general.architecture", arch});
    number(".context_length", T_);
    number(".embedding_length", s_.D);
    number(".feed_forward_length", s_.F);
    number(".block_count", L_);
    number(".attention.head_count", s_.H);
    if (gpt2) {
      real(".attention.layer_norm_epsilon", s_.eps);
    } else {
      number(".attention.head_count_kv", s_.G);
      number(".vocab_size", V_);
      number(".attention.key_length", s_.K());
      number(".attention.value_length", s_.K());
      number(".rope.dimension_count", s_.K());
      real(".rope.freq_base", s_.theta);
      real(".attention.layer_norm_rms_epsilon", s_.eps);
    }
    if (!gpt2 && s_.rope_scaling == "linear") {
      form.metadata.push_back({arch + ".rope.scaling.type", std::string("linear")});
      real(".rope.scaling.factor", s_.rope_factor);
    } else if (!gpt2 && s_.rope_scaling == "llama3") {
      const Attrs attrs = s_.rope_attrs();
      form.more.push_back({"rope_freqs.weight", {s_.K() / 2}, DType::f32, [attrs, K = s_.K()] {
                             std::vector<float> slower;
                             for (int64_t d = 0; d < K / 2; ++d)
                               slower.push_back(static_cast<float>(
                                   rope_frequency({{"theta", attrs.number("theta")}}, d, K) /
                                   rope_frequency(attrs, d, K)));
                             return slower;
                           }});
    }
    form.table = parameters();
    for (Parameter& p : form.table) name_for_gguf(p, form.rotary_heads);
    return form;
  }

 private:
  // "layers.2.mlp.up.weight" is "blk.2.ffn_up.weight", [out, in].
  void name_for_gguf(Parameter& p, std::map<std::string, int64_t>& rotary_heads) const {
    static const std::map<std::string, std::string> kNames = {{"embedding", "token_embd"},
                                                              {"positions", "position_embd"},
                                                              {"norm1", "attn_norm"},
                                                              {"attention.qkv", "attn_qkv"},
                                                              {"attention.output", "attn_output"},
                                                              {"norm2", "ffn_norm"},
                                                              {"mlp.gate", "ffn_gate"},
                                                              {"mlp.up", "ffn_up"},
                                                              {"mlp.down", "ffn_down"},
                                                              {"norm", "output_norm"},
                                                              {"head", "output"}};
    const size_t dot = p.name.rfind('.');
    const std::string suffix = p.name.substr(dot);
    std::string layer = p.name.substr(0, dot), prefix;
    if (const std::string_view begin = "layers."; layer.starts_with(begin)) {
      const size_t end = layer.find('.', begin.size());
      prefix = "blk." + layer.substr(begin.size(), end - begin.size()) + ".";
      layer = layer.substr(end + 1);
    }
    p.transposed = p.shape.rank() == 2 && !prefix.empty();
    if (p.parts() == 1) {
      p.external = {prefix + kNames.at(layer) + suffix};
      return;
    }
    p.external.clear();
    for (const char* part : {"attn_q", "attn_k", "attn_v"})
      p.external.push_back(prefix + part + suffix);
    rotary_heads[p.external[0]] = s_.H;
    rotary_heads[p.external[1]] = s_.G;
  }

  // The shapes that transformers has a class for.
  bool is_gpt2() const {
    return s_.positions == "learned" && s_.norm == "layer_norm" && s_.bias && s_.bias_in == "all" &&
           s_.activation != "swiglu" && s_.G == s_.H && s_.H * s_.K() == s_.D;
  }
  bool is_llama() const {
    return s_.positions == "rotary" && s_.norm == "rms_norm" && s_.activation == "swiglu";
  }

  static constexpr const char* kAnother = "a model without it";

  void read_gpt2(const ExternalConfig& config) {
    s_.positions = "learned";
    s_.norm = "layer_norm";
    s_.bias = true;
    V_ = config.required_integer("vocab_size", 2, 1 << 24);
    s_.D = config.required_integer("n_embd", 1, 65536);
    L_ = config.required_integer("n_layer", 1, 1024);
    s_.H = s_.G = config.required_integer("n_head", 1, 4096);
    T_ = config.required_integer("n_positions", 1, 1 << 20);
    s_.F = config.integer("n_inner", 1, 1 << 20).value_or(4 * s_.D);
    s_.eps = config.number("layer_norm_epsilon", 0, 1).value_or(1e-5);
    tied_ = config.boolean("tie_word_embeddings").value_or(true);
    s_.dropout = config.number("resid_pdrop", -1, 1).value_or(0);
    if (s_.dropout < 0 || s_.dropout == 1)
      config.refuse("resid_pdrop", "at least 0, below 1", "check the rates");
    const std::string name = config.text("activation_function").value_or("gelu_new");
    if (name == "gelu_new" || name == "gelu_pytorch_tanh")
      s_.activation = "gelu_tanh";
    else if (name == "gelu" || name == "relu" || name == "silu")
      s_.activation = name;
    else if (name == "swish")  // the same by its first name
      s_.activation = "silu";
    else
      config.refuse("activation_function", "gelu_new, gelu, relu or silu", kAnother);
    if (s_.D % s_.H != 0)
      config.refuse("n_head", fmt::format("a divisor of n_embd = {}", s_.D), "check the sizes");
    if (!config.boolean("scale_attn_weights").value_or(true))
      config.refuse("scale_attn_weights", "true", kAnother);
    for (const char* field : {"scale_attn_by_inverse_layer_idx", "add_cross_attention"})
      if (config.boolean(field).value_or(false)) config.refuse(field, "false", kAnother);
    if (config.has("quantization_config"))
      config.refuse("quantization_config", "plain weights", kAnother);
  }

  void read_llama(const ExternalConfig& config) {
    s_.positions = "rotary";
    s_.norm = "rms_norm";
    s_.activation = "swiglu";
    V_ = config.required_integer("vocab_size", 2, 1 << 24);
    s_.D = config.required_integer("hidden_size", 1, 65536);
    s_.F = config.required_integer("intermediate_size", 1, 1 << 20);
    L_ = config.required_integer("num_hidden_layers", 1, 1024);
    s_.H = config.required_integer("num_attention_heads", 1, 4096);
    s_.G = config.integer("num_key_value_heads", 1, 4096).value_or(s_.H);
    T_ = config.integer("max_position_embeddings", 1, 1 << 20).value_or(2048);
    s_.eps = config.number("rms_norm_eps", 0, 1).value_or(1e-6);
    tied_ = config.boolean("tie_word_embeddings").value_or(false);
    const bool attention = config.boolean("attention_bias").value_or(false),
               mlp = config.boolean("mlp_bias").value_or(false);
    s_.bias = attention || mlp;
    s_.bias_in = attention == mlp ? "all" : attention ? "attention" : "mlp";
    if (const std::string name = config.text("hidden_act").value_or("silu");
        name != "silu" && name != "swish")
      config.refuse("hidden_act", "silu", kAnother);
    const bool divides = s_.D % s_.H == 0;
    if (const auto width = config.integer("head_dim", 1, 65536); !divides || width != s_.D / s_.H)
      s_.head_dim = width.value_or(0);
    if (s_.head_dim == 0 && !divides)
      config.refuse("num_attention_heads", fmt::format("a divisor of hidden_size = {}", s_.D),
                    "check the sizes");
    if (s_.K() % 2 != 0)
      config.refuse(s_.head_dim > 0 ? "head_dim" : "num_attention_heads",
                    fmt::format("an even width of heads, not {}", s_.K()), "check the sizes");
    if (s_.H % s_.G != 0)
      config.refuse("num_key_value_heads", fmt::format("a divisor of {} heads", s_.H),
                    "check the sizes");
    if (config.has("sliding_window")) config.refuse("sliding_window", "null", kAnother);
    if (config.has("quantization_config"))
      config.refuse("quantization_config", "plain weights", kAnother);
    // transformers 5 writes rope_parameters; before, rope_theta and rope_scaling.
    s_.theta = config.number("rope_theta", 0, 1e12).value_or(10000);
    for (const char* field : {"rope_parameters", "rope_scaling"}) {
      const auto rope = config.object(field);
      if (!rope) continue;
      s_.theta = rope->number("rope_theta", 0, 1e12).value_or(s_.theta);
      read_rope_scaling(*rope);
      if (rope->number("partial_rotary_factor", 0, 1).value_or(1) != 1)
        rope->refuse("partial_rotary_factor", "1", kAnother);
    }
  }

  void read_rope_scaling(const ExternalConfig& rope) {
    const char* const kind = rope.has("rope_type") ? "rope_type" : "type";
    const std::string name = rope.text(kind).value_or("default");
    if (name == "default") return;
    if (name != "linear" && name != "llama3")
      rope.refuse(kind, "default, linear or llama3", "a model with rotary positions of these");
    auto required = [&](const char* field, double above) {
      const auto value = rope.number(field, above, 1e6);
      if (!value) rope.refuse(field, "a number", "fetch or write the file again");
      return *value;
    };
    s_.rope_scaling = name;
    s_.rope_factor = required("factor", 0);
    if (s_.rope_factor < 1) rope.refuse("factor", "at least 1", kAnother);
    if (name == "linear") return;
    s_.rope_low_frequency = required("low_freq_factor", 0);
    s_.rope_high_frequency = required("high_freq_factor", 0);
    s_.rope_original_length = rope.required_integer("original_max_position_embeddings", 1, 1 << 20);
    if (!(s_.rope_low_frequency < s_.rope_high_frequency))
      rope.refuse("low_freq_factor",
                  fmt::format("below high_freq_factor {}", s_.rope_high_frequency),
                  "check the numbers");
  }

  static std::vector<std::string> suffixed(std::vector<std::string> names, const char* suffix) {
    for (std::string& n : names) n += suffix;
    return names;
  }
  Value head_weight(Layers& layers) const {
    const auto scope = layers.b.scope(tied_ ? "embedding" : "head");
    return layers.parameter("weight");
  }

  // tokens -> [B, T, D], normalised.
  Value trunk(Layers& layers, Value tokens, const Places& places) const {
    Builder& b = layers.b;
    Value x = s_.embed(layers, tokens, "embedding", "positions", places);
    for (int64_t i = 0; i < L_; ++i) {
      const auto layer = b.layer(fmt::format("layers.{}", i));
      x = b.add(x, b.dropout(s_.attention(layers, s_.normalised(layers, x, "norm1"), places),
                             s_.dropout));
      x = b.add(x, b.dropout(s_.mlp(layers, s_.normalised(layers, x, "norm2")), s_.dropout));
    }
    return s_.normalised(layers, x, "norm");
  }

  TransformerShape s_;
  int64_t L_ = 4, V_ = -1, T_ = 0;
  bool tied_ = true;
};

}  // namespace

std::unique_ptr<Model> make_gpt_model() { return std::make_unique<Gpt>(); }

}  // namespace millrace
