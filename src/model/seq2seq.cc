// The encoder-decoder Transformer (Vaswani et al., arXiv 1706.03762), with the norm before each
// half of a layer (pre-norm, Xiong et al., arXiv 2002.04745) or behind it.
//   memory = encoder(source): for each layer attention over all of the source, then the MLP
//   for each layer of the decoder: attention over what was written, attention over the memory, MLP
//   logits = head(decoder(target))
#include <nlohmann/json.hpp>

#include "model/transformer.h"

namespace millrace {
namespace {

class Seq2Seq : public Model {
 public:
  void declare(Schema& s) override {
    s_.declare(s);
    s.integer("model.num_layers", &L_)
        .range(1, 1024)
        .help("Layers of the decoder and, unless said, of the encoder.");
    s.integer("model.num_encoder_layers", &E_)
        .range(1, 1024)
        .allow_auto()
        .help("Layers of the encoder; auto: num_layers.");
    s.integer("model.vocab_size", &V_)
        .range(2, 1 << 24)
        .allow_auto()
        .help("Vocabulary; auto: what the tokenizer has.");
    s.choice("model.norm_position", &norm_position_, {"pre", "post"})
        .help("Norms before each half of a layer, or behind it as in 2017.");
    s.boolean("model.tied_embeddings", &tied_)
        .help("The output head is the embedding of the target's tokens.");
    s.boolean("model.shared_embeddings", &shared_).help("Source and target have one embedding.");
  }

  void resolve(Schema& s, int64_t vocab_size, MaxLengths lengths) override {
    resolve_lengths(s, lengths_, lengths);
    s_.resolve(s);
    set_auto(s, "model.num_encoder_layers", E_, L_, "auto: num_layers");
    resolve_vocabulary(s, V_, vocab_size);
  }

  std::vector<Parameter> parameters() const override {
    TransformerTable table(s_);
    table.matrix("embedding", V_, s_.D, s_.init_std);
    if (!shared_) table.matrix("encoder.embedding", V_, s_.D, s_.init_std);
    if (s_.positions == "learned") {
      table.matrix("encoder.positions", lengths_.source, s_.D, s_.init_std);
      table.matrix("positions", lengths_.target, s_.D, s_.init_std);
    }
    table.layers("encoder.", E_);
    if (norm_position_ == "pre") table.norm("encoder.norm");
    table.layers("", L_, true);
    if (norm_position_ == "pre") table.norm("norm");
    if (!tied_) table.matrix("head", V_, s_.D, s_.init_std);
    return table.take();
  }

  Value build_loss(Builder& b, BatchShape shape) const override {
    Layers layers(b, parameters());
    const Value memory = encode(layers, shape), lengths = source_lengths(b, shape);
    const TensorType rows{{shape.batch, shape.length}, DType::i32};
    const Value tokens = b.input("tokens", rows);
    const Value x =
        decode(layers, tokens, {}, lengths, [&] { return layers.linear(memory, "kv"); });
    const Value targets = b.input("targets", rows);
    return layers.cross_entropy(x, head_weight(layers), targets);
  }

  // What decoding reads of a source: keys and values for the attention of every layer.
  void build_encode(Builder& b, BatchShape shape, int64_t) const override {
    Layers layers(b, parameters());
    const Value memory = encode(layers, shape);
    for (int64_t i = 0; i < L_; ++i) {
      const auto layer = b.layer(fmt::format("layers.{}", i));
      const auto scope = b.scope("cross");
      const Value cache = memory_cache(b, shape);
      b.update(cache, layers.linear(memory, "kv"));
    }
  }

  Value build_decode(Builder& b, BatchShape shape, int64_t capacity) const override {
    Layers layers(b, parameters());
    const NewTokens given(b, shape, capacity);
    const Value x = decode(layers, given.tokens, given.places, source_lengths(b, shape),
                           [&] { return memory_cache(b, shape); });
    return given.logits(b, x, head_weight(layers));
  }

  Takes takes() const override { return {.pairs = true}; }
  int64_t vocab_size() const override { return V_; }
  MaxLengths max_lengths() const override { return lengths_; }

  std::string external_config() const override {
    nlohmann::ordered_json keys = s_.keys();
    keys.update({{"num_layers", L_},
                 {"num_encoder_layers", E_},
                 {"vocab_size", V_},
                 {"norm_position", norm_position_},
                 {"tied_embeddings", tied_},
                 {"shared_embeddings", shared_}});
    return own_config_text("seq2seq", *this, keys);
  }
  bool read_external_config(const ExternalConfig& config) override {
    return read_own_config("seq2seq", *this, config);
  }

 private:
  bool pre() const { return norm_position_ == "pre"; }
  Value source_lengths(Builder& b, BatchShape shape) const {
    const NodeId there = b.graph().find_leaf("source_lengths");
    return there >= 0 ? Value{there, 0}
                      : b.input("source_lengths", {{shape.sources()}, DType::i32});
  }
  Value memory_cache(Builder& b, BatchShape shape) const {
    return b.leaf(Leaf::cache, b.path("cache_kv"),
                  {{shape.sources(), shape.source, 2 * s_.G * s_.K()}, DType::f32});
  }
  Value head_weight(Layers& layers) const {
    const auto scope = layers.b.scope(tied_ ? "embedding" : "head");
    return layers.parameter("weight");
  }

  // x + half(norm(x)), or norm(x + half(x)).
  template <typename Half>
  Value residual(Layers& layers, Value x, const char* norm, Half half) const {
    Builder& b = layers.b;
    const Value y = half(pre() ? s_.normalised(layers, x, norm) : x);
    const Value sum = b.add(x, b.dropout(y, s_.dropout));
    return pre() ? sum : s_.normalised(layers, sum, norm);
  }

  // "source" -> [B, S, D]
  Value encode(Layers& layers, BatchShape shape) const {
    Builder& b = layers.b;
    const Value source = b.input("source", {{shape.sources(), shape.source}, DType::i32});
    const Places places{.lengths = source_lengths(b, shape), .causal = false};
    Value x = s_.embed(layers, source, shared_ ? "embedding" : "encoder.embedding",
                       "encoder.positions", places);
    for (int64_t i = 0; i < E_; ++i) {
      const auto layer = b.layer(fmt::format("encoder.layers.{}", i));
      x = residual(layers, x, "norm1", [&](Value y) { return s_.attention(layers, y, places); });
      x = residual(layers, x, "norm2", [&](Value y) { return s_.mlp(layers, y); });
    }
    return pre() ? s_.normalised(layers, x, "encoder.norm") : x;
  }

  // tokens -> [B, T, D]; `memory` gives a layer's keys and values of the source, [B, S, 2GK].
  template <typename Memory>
  Value decode(Layers& layers, Value tokens, const Places& places, Value lengths,
               Memory memory) const {
    Builder& b = layers.b;
    Value x = s_.embed(layers, tokens, "embedding", "positions", places);
    for (int64_t i = 0; i < L_; ++i) {
      const auto layer = b.layer(fmt::format("layers.{}", i));
      x = residual(layers, x, "norm1", [&](Value y) { return s_.attention(layers, y, places); });
      x = residual(layers, x, "norm_cross", [&](Value y) {
        const auto scope = b.scope("cross");
        // The rows of a source are so many queries of it.
        const Shape rows = b.shape(y),
                    queries{b.shape(lengths)[0], rows.numel() / (b.shape(lengths)[0] * s_.D), s_.D};
        const bool beams = queries[0] != rows[0];
        const Value out =
            s_.cross_attention(layers, beams ? b.reshape(y, queries) : y, memory(), lengths);
        return beams ? b.reshape(out, rows) : out;
      });
      x = residual(layers, x, "norm2", [&](Value y) { return s_.mlp(layers, y); });
    }
    return pre() ? s_.normalised(layers, x, "norm") : x;
  }

  TransformerShape s_;
  int64_t L_ = 4, E_ = -1, V_ = -1;
  MaxLengths lengths_;
  std::string norm_position_ = "pre";
  bool tied_ = true, shared_ = true;
};

}  // namespace

std::unique_ptr<Model> make_seq2seq_model() { return std::make_unique<Seq2Seq>(); }

}  // namespace millrace
