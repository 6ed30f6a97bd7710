// The pointer-generator (See, Liu, Manning, "Get To The Point", arXiv 1704.04368): a summary is
// written word by word, each generated from the vocabulary or copied out of the source.
//   memory = BiLSTM(source), keys = memory W + b;  h_0, c_0 = relu(last states of both directions)
//   h_t, context_t, attention_t, overlap_t: op attention_decoder, of x_t = embedding(token t)
//   gate_t = w_c context_t + w_h h_t + w_x x_t + b
//   P(word) = s(gate_t) softmax(head (U [h_t; context_t] + b)) + (1 - s(gate_t)) mass_t(word)
// with s the sigmoid and mass_t the attention on the places of the source that hold the word. The
// loss is -log P(target) and, in training from coverage_start on, coverage_weight overlap_t, which
// is large where attention goes where it was before. Two things differ from the paper: the
// decoder's LSTM reads [x; context] itself, not a projection of it; and the head has no bias.
#include <cmath>
#include <nlohmann/json.hpp>

#include "model/layers.h"

namespace millrace {
namespace {

class PointerGenerator : public Model {
 public:
  void declare(Schema& s) override {
    s.integer("model.emb_dim", &E_)
        .range(1, 65536)
        .help("Width of the embedding, which source and target share.");
    s.integer("model.hidden_dim", &H_)
        .range(1, 65536)
        .help("Units of the decoder's LSTM, and of each direction of the encoder's.");
    s.integer("model.num_layers", &L_).range(1, 1024).help("Layers of the encoder.");
    s.integer("model.attention_dim", &A_)
        .range(1, 65536)
        .allow_auto()
        .help("Units of the attention; auto: 2 x hidden_dim.");
    s.integer("model.chunk_len", &chunk_length_)
        .range(1, 1 << 20)
        .help("The longest source is chunk_len x num_chunks tokens, read as one sequence.");
    s.integer("model.num_chunks", &chunks_)
        .range(1, 1 << 20)
        .allow_auto()
        .help("See chunk_len; auto: training.max_source_length alone says how long a source is.");
    s.integer("model.vocab_size", &V_)
        .range(2, 1 << 24)
        .allow_auto()
        .help("Words that can be generated; auto: what the tokenizer has.");
    s.boolean("model.coverage", &coverage_)
        .help("Attention knows what it attended to before, and the loss counts what it repeats.");
    s.number("model.coverage_weight", &coverage_weight_)
        .min(0)
        .max(1e6)
        .help("Weight of the repeated attention in the training loss.");
    s.integer("model.coverage_start", &coverage_start_)
        .range(0, 4e6)
        .help(
            "The first update whose loss counts the repeated attention (See et al. turn it on at "
            "the end of training); attention itself knows what it attended to from the beginning.");
    s.number("model.dropout", &dropout_)
        .min(0)
        .below(1)
        .help("Dropout on embeddings, between the encoder's layers and before the head.");
    s.number("model.init_std", &init_std_)
        .above(0)
        .max(10)
        .help(
            "Standard deviation of the initial embedding: LSTMs fed with small numbers learn late. "
            "Matrices get 1/sqrt(3 x their inputs), as in PyTorch.");
  }

  void resolve(Schema& s, int64_t vocab_size, MaxLengths lengths) override {
    resolve_lengths(s, lengths_, lengths);
    set_auto(s, "model.attention_dim", A_, 2 * H_, "auto: 2 x hidden_dim");
    if (chunks_ < 0) chunk_length_ = lengths.source;
    set_auto(s, "model.num_chunks", chunks_, 1, "auto: training.max_source_length in one");
    if (chunk_length_ * chunks_ != lengths.source)
      refuse_sizes(
          s, "model.chunk_len",
          fmt::format("model.chunk_len {} x model.num_chunks {} is {}, and a source has up to {} "
                      "tokens",
                      chunk_length_, chunks_, chunk_length_ * chunks_, lengths.source),
          fmt::format("training.max_source_length = chunk_len x num_chunks = {}",
                      chunk_length_ * chunks_),
          fmt::format("training.max_source_length={}", chunk_length_ * chunks_));
    if (coverage_start_ > 0 && !coverage_)
      refuse_sizes(s, "model.coverage_start",
                   fmt::format("model.coverage_start {} without coverage", coverage_start_),
                   "model.coverage true, or no coverage_start", "model.coverage=true");
    resolve_vocabulary(s, V_, vocab_size);
    if (V_ > vocab_size)
      refuse_sizes(
          s, "model.vocab_size",
          fmt::format("model.vocab_size {} is larger than the tokenizer's {}", V_, vocab_size),
          fmt::format("{}: the ids behind it are those of rare words", vocab_size),
          "model.vocab_size=auto");
  }

  std::vector<Parameter> parameters() const override {
    using Init = Parameter::Init;
    std::vector<Parameter> table;
    auto weight = [&](const std::string& name, const Shape& shape, double std) {
      table.push_back(
          {name + ".weight", shape, Init::normal, std, shape.rank() >= 2, {}, {}, false});
    };
    auto std_of = [](int64_t rows) { return 1 / std::sqrt(3 * static_cast<double>(rows)); };
    auto matrix = [&](const std::string& name, int64_t rows, int64_t columns) {
      weight(name, {rows, columns}, std_of(rows));
    };
    auto linear = [&](const std::string& name, int64_t rows, int64_t columns) {
      matrix(name, rows, columns);
      table.push_back({name + ".bias", {columns}, Init::zeros, 0, false, {}, {}, false});
    };
    weight("embedding", {V_, E_}, init_std_);
    for (int64_t i = 0; i < L_; ++i) {
      const std::string name = fmt::format("encoder.layers.{}.", i);
      linear(name + "input", i == 0 ? E_ : M(), 8 * H_);
      weight(name + "recurrent", {2, H_, 4 * H_}, std_of(H_));
    }
    linear("reduce.h", M(), H_);
    linear("reduce.c", M(), H_);
    linear("attention.keys", M(), A_);
    matrix("attention.query", H_, A_);
    weight("attention.score", {A_}, std_of(A_));
    // Zeros: attention begins as if there was no coverage.
    if (coverage_)
      table.push_back({"attention.coverage.weight", {A_}, Init::zeros, 0, false, {}, {}, false});
    linear("decoder.input", E_, 4 * H_);
    matrix("decoder.recurrent", H_ + M(), 4 * H_);
    matrix("decoder.gate.state", H_, 1);
    linear("decoder.gate.context", M(), 1);
    matrix("decoder.gate.input", E_, 1);
    matrix("decoder.output.state", H_, H_);
    linear("decoder.output.context", M(), H_);
    weight("decoder.head", {V_, H_}, std_of(H_));
    return table;
  }

  Value build_loss(Builder& b, BatchShape shape) const override {
    Layers layers(b, parameters());
    const int64_t B = shape.batch, T = shape.length, S = shape.source;
    const Source source = encode(layers, shape);
    const TensorType rows{{B, T}, DType::i32};
    const Value x = embed(layers, b.input("tokens", rows));
    const Written written = decode(layers, x, source);
    const auto scope = b.scope("copy");
    const Value targets = time_major(b, b.input("targets", rows));
    const Value source_open = b.input("source_open", {{B, S}, DType::i32});
    const Value mass = b.op("copy_mass", {written.attention, source_open, targets});
    const Value loss = layers.cross_entropy(written.hidden, written.head, targets,
                                            b.reshape(written.gate, {T, B}), mass);
    if (!coverage_ || !b.training) return loss;
    // As a source of one place, a target matches itself, and one that is not scored nothing.
    const Value scored =
        b.op("copy_mass", {b.reshape(written.overlap, {1, T * B, 1}),
                           b.reshape(targets, {T * B, 1}), b.reshape(targets, {1, T * B})});
    Value repeated = b.mul(b.reduce_to(scored, {}), b.loss_scale());
    if (coverage_start_ > 0) repeated = b.mul(repeated, from_update(b, coverage_start_));
    return b.add(loss, b.scale(repeated, coverage_weight_));
  }

  void build_encode(Builder& b, BatchShape shape, int64_t) const override {
    Layers layers(b, parameters());
    const Cache kept = cache(b, shape);
    Source source = encode(layers, shape);
    if (shape.beams > 1) {
      const Value rows = b.input(kBeamSources, {{shape.batch}, DType::i32});
      for (Value* of : {&source.h, &source.c}) *of = b.op("embedding", {rows, *of});
    }
    b.update(kept.memory, source.memory);
    b.update(kept.keys, source.keys);
    b.update(kept.h, source.h);
    b.update(kept.c, source.c);
    for (const Value none : {kept.context, kept.covered})
      b.update(none, b.constant(0, b.shape(none)));
  }

  // One word at a time. Besides the logits, of words that are generated, the outputs "gate" [B] and
  // "attention" [B,S]: what is left to do is the mixture P at the head of this file.
  Value build_decode(Builder& b, BatchShape shape, int64_t capacity) const override {
    if (shape.length != 1) b.fail("the decoder's state is kept behind every word");
    Layers layers(b, parameters());
    const int64_t B = shape.batch;
    const Value x = embed(layers, b.input(prompt_leaf(1), {{B, 1}, DType::i32}));
    b.input("position", {{B}, DType::i32});
    b.input("prompt_row", {{B}, DType::i32});
    const Cache kept = cache(b, shape);
    const bool beams = shape.beams > 1;
    const Value lengths = b.input("source_lengths", {{shape.sources()}, DType::i32});
    Source source{kept.memory, kept.keys, lengths, kept.h, kept.c};
    Begin begin{kept.context, kept.covered, shape.beams};
    if (beams) {
      const Value parents = b.input(kBeamParents, {{B}, DType::i32});
      b.input(kBeamHistory, {{B, capacity}, DType::i32});
      for (Value* state : {&source.h, &source.c, &begin.context, &begin.covered})
        *state = b.op("embedding", {parents, *state});
    }
    const Written written = decode(layers, x, source, &begin);
    // Sums over the one step there is: a leaf takes what a node computes.
    b.update(kept.h, b.reduce_to(written.h, {B, H_}));
    b.update(kept.c, b.reduce_to(written.c, {B, H_}));
    b.update(kept.context, b.reduce_to(written.context, {B, M()}));
    const Value attention = b.reshape(written.attention, {B, shape.source});
    b.update(kept.covered, b.add(begin.covered, attention));
    b.output("gate", b.reshape(written.gate, {B}));
    b.output("attention", attention);
    return b.matmul(b.reshape(written.hidden, {B, H_}), written.head, false, true);
  }
  bool logits_are_all() const override { return false; }

  Takes takes() const override { return {.pairs = true, .open_words = true}; }
  int64_t own_source_length() const override { return chunks_ > 0 ? chunk_length_ * chunks_ : 0; }
  int64_t vocab_size() const override { return V_; }
  MaxLengths max_lengths() const override { return lengths_; }

  std::string external_config() const override {
    return own_config_text("pointer_generator", *this,
                           {{"emb_dim", E_},
                            {"hidden_dim", H_},
                            {"num_layers", L_},
                            {"attention_dim", A_},
                            {"chunk_len", chunk_length_},
                            {"num_chunks", chunks_},
                            {"vocab_size", V_},
                            {"coverage", coverage_},
                            {"coverage_weight", coverage_weight_},
                            {"coverage_start", coverage_start_},
                            {"dropout", dropout_},
                            {"init_std", init_std_}});
  }
  bool read_external_config(const ExternalConfig& config) override {
    return read_own_config("pointer_generator", *this, config);
  }

 private:
  int64_t M() const { return 2 * H_; }  // width of the memory

  // What the decoder reads of a source.
  struct Source {
    Value memory, keys;  // [B,S,M], [B,S,A]
    Value lengths;       // [B]
    Value h, c;          // [B,H], its first state
  };
  // What it says of each place of a target.
  struct Written {
    Value hidden;     // [T,B,H], before the head
    Value head;       // [V,H]
    Value gate;       // [T,B,1], before its sigmoid
    Value attention;  // [T,B,S]
    Value overlap;    // [T,B], with coverage
    Value h, c;       // [T,B,H]
    Value context;    // [T,B,M]
  };
  // What decoding keeps of a source, and from one word to the next.
  struct Cache {
    Value memory, keys;      // [sources,S,M], [sources,S,A]
    Value h, c;              // [B,H]
    Value context, covered;  // [B,M], [B,S]
  };
  // What a decoder goes on from.
  struct Begin {
    Value context, covered;  // [B,M], [B,S]
    int64_t beams;           // rows of a source
  };

  Cache cache(Builder& b, BatchShape shape) const {
    const int64_t B = shape.batch, S = shape.source, E = shape.sources();
    auto leaf = [&](const char* name, const Shape& size) {
      return b.leaf(Leaf::cache, fmt::format("decoder.cache_{}", name), {size, DType::f32});
    };
    return {leaf("memory", {E, S, M()}), leaf("keys", {E, S, A_}),  leaf("h", {B, H_}),
            leaf("c", {B, H_}),          leaf("context", {B, M()}), leaf("covered", {B, S})};
  }

  static Value weight(Layers& layers, const std::string& name) {
    const auto scope = layers.b.scope(name);
    return layers.parameter("weight");
  }
  // 1 from that update on, 0 before: a value, so that the plan is the same all along.
  static Value from_update(Builder& b, int64_t first) {
    ExpressionBuilder e(1);
    const Term half_before = e.constant(static_cast<double>(first) - 0.5);
    const Term after = e.apply(Function::sub, e.operand(0), half_before);
    return b.elementwise(e.finish({e.apply(Function::step, after)}), {b.update_number()});
  }
  // [B,T] -> [T,B]: recurrence goes step by step through all rows.
  static Value time_major(Builder& b, Value ids) {
    return b.op("permute", {ids}, {{"order", "1x0"}});
  }
  // Ids [B,T] -> [T,B,E].
  Value embed(Layers& layers, Value ids) const {
    Builder& b = layers.b;
    const auto scope = b.scope("embedding");
    const Value rows = b.op("embedding", {time_major(b, ids), layers.parameter("weight")});
    return b.dropout(rows, dropout_);
  }

  Source encode(Layers& layers, BatchShape shape) const {
    Builder& b = layers.b;
    const int64_t B = shape.sources(), S = shape.source;
    const Value lengths = b.input("source_lengths", {{B}, DType::i32});
    Value y = embed(layers, b.input("source", {{B, S}, DType::i32}));
    std::vector<Value> out;
    for (int64_t i = 0; i < L_; ++i) {
      const auto layer = b.layer(fmt::format("encoder.layers.{}", i));
      if (i > 0) y = b.dropout(y, dropout_);
      const Value x = b.reshape(layers.linear(y, "input"), {S, B, 2, 4 * H_});
      out = b.op_all("lstm", {x, weight(layers, "recurrent"), lengths});
      y = b.reshape(out[0], {S, B, M()});
    }
    auto reduced = [&](Value last, const char* name) {  // [B,2,H] -> [B,H]
      const auto scope = b.scope("reduce");
      return b.apply(Function::relu, layers.linear(b.reshape(last, {B, M()}), name));
    };
    const Value h = reduced(out[1], "h"), c = reduced(out[2], "c");
    const auto scope = b.scope("attention");
    const Value memory = b.op("permute", {y}, {{"order", "1x0x2"}});
    return {memory, layers.linear(memory, "keys"), lengths, h, c};
  }

  // x [T,B,E], of the words before each place.
  Written decode(Layers& layers, Value x, const Source& source,
                 const Begin* begin = nullptr) const {
    Builder& b = layers.b;
    std::vector<Value> in{layers.linear(x, "decoder.input"),
                          weight(layers, "decoder.recurrent"),
                          source.memory,
                          source.keys,
                          weight(layers, "attention.query"),
                          weight(layers, "attention.score"),
                          source.lengths,
                          source.h,
                          source.c};
    if (coverage_) in.push_back(weight(layers, "attention.coverage"));
    Attrs attrs{{"coverage", coverage_}};
    if (begin) {
      in.push_back(begin->context);
      if (coverage_) in.push_back(begin->covered);
      attrs.set({"resumed", 1});
      attrs.set({"beams", begin->beams});
    }
    const auto scope = b.scope("decoder");
    const auto out = b.op_all("attention_decoder", std::move(in), std::move(attrs));
    const Value h = out[0], context = out[1];
    auto of_both = [&](const char* name) {
      const auto part = b.scope(name);
      return b.add(layers.linear(h, "state"), layers.linear(context, "context"));
    };
    return {.hidden = b.dropout(of_both("output"), dropout_),
            .head = weight(layers, "head"),
            .gate = b.add(of_both("gate"), layers.linear(x, "gate.input")),
            .attention = out[2],
            .overlap = coverage_ ? out[5] : Value{},
            .h = h,
            .c = out[4],
            .context = context};
  }

  int64_t E_ = 128, H_ = 256, L_ = 2, A_ = -1, V_ = -1, chunk_length_ = 128, chunks_ = -1;
  bool coverage_ = true;
  int64_t coverage_start_ = 0;
  double coverage_weight_ = 1, dropout_ = 0, init_std_ = 1;
  MaxLengths lengths_;
};

}  // namespace

std::unique_ptr<Model> make_pointer_generator_model() {
  return std::make_unique<PointerGenerator>();
}

}  // namespace millrace
