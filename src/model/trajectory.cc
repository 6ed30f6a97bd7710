// A causal Transformer over states, vectors of numbers that an agent goes through: the kind of
// model of Giuliari et al. (arXiv 2003.08111) with one stack instead of two, and a context before
// the states that are predicted from.
//   x = change from the last state . input + part of the sequence (+ positions)
//   for each layer: x += attention(norm(x)); x += mlp(norm(x))
//   next change ~ N(this change + mean(norm(x)), exp(log_std(norm(x)))^2), or its mean alone
//   class of a part ~ softmax(classes . norm(x)) at its last place
// Beginning with the change that was, a model that has learnt nothing goes straight on: what is
// learnt is how agents do not.
#include <nlohmann/json.hpp>
#include <numbers>

#include "model/transformer.h"

namespace millrace {
namespace {

constexpr int64_t kParts = 3;  // context, previous, current

class TrajectoryModel : public Model {
 public:
  void declare(Schema& s) override {
    s_.declare(s);
    s.integer("model.num_layers", &L_).range(1, 1024).help("Number of layers.");
    s.integer("model.channels", &C_)
        .range(1, 1 << 16)
        .allow_auto()
        .help("Numbers of a state; auto: what the data has.");
    s.integer("model.previous", &parts_.previous)
        .range(1, 1 << 20)
        .allow_auto()
        .help(
            "States that the predicted ones follow on; auto: 8, or less where "
            "training.max_length is too short. What stands before them is context.");
    s.integer("model.current", &parts_.current)
        .range(1, 1 << 20)
        .allow_auto()
        .help("States to predict; auto: 12, or less where training.max_length is too short.");
    s.choice("model.likelihood", &likelihood_, {"mse", "gaussian"})
        .help(
            "What the loss is: the squared error of a state, in standard deviations of the "
            "training data, or the negative log-likelihood under a Gaussian whose deviations "
            "are predicted too.");
    s.integer("model.classes", &classes_)
        .range(0, 1 << 16)
        .help(
            "Classes, of which each part of a sequence (context, previous, current) has one: that "
            "of its last state, as data.class_column has it; 0: none.");
    s.number("model.class_weight", &class_weight_)
        .min(0)
        .max(1e6)
        .help(
            "What the classes' mean cross-entropy is multiplied with before it is added to the "
            "loss of the states.");
  }

  void resolve(Schema& s, int64_t channels, MaxLengths lengths) override {
    MaxLengths own{N_, N_ > 0 ? lengths.source : 0};  // a source is none of its business
    resolve_lengths(s, own, lengths);
    N_ = own.target;
    s_.resolve(s);
    set_auto(s, "model.channels", C_, channels, "auto: from the data");
    if (C_ != channels)
      refuse_sizes(s, "model.channels",
                   fmt::format("model.channels {} is not what the data has: {}", C_, channels),
                   std::to_string(channels), "model.channels=auto");
    set_auto(s, "model.current", parts_.current, std::clamp<int64_t>(N_ * 3 / 5, 1, 12), "auto");
    set_auto(s, "model.previous", parts_.previous, std::clamp<int64_t>(N_ - parts_.current, 1, 8),
             "auto");
    if (parts_.previous < 2 || parts_.least() > N_)
      refuse_sizes(s, "model.previous",
                   fmt::format("model.previous {} and model.current {} in sequences of up to {} "
                               "states",
                               parts_.previous, parts_.current, N_),
                   "previous of 2 or more, and both together within training.max_length",
                   fmt::format("training.max_length={}",
                               std::max<int64_t>(2, parts_.previous) + parts_.current));
    // The last change is only predicted: of one current state nothing is read.
    if (classes_ > 0 && parts_.current < 2)
      refuse_sizes(s, "model.current", "a current part of one state has no place for its class",
                   "2 or more, or model.classes=0", "model.current=2");
  }

  std::vector<Parameter> parameters() const override {
    TransformerTable table(s_);
    // Few numbers make a row of x: of the size that an embedding gives it they would be lost.
    table.matrix("input", C_, s_.D, 1 / std::sqrt(static_cast<double>(C_)));
    table.matrix("parts", kParts, s_.D, s_.init_std);
    if (s_.positions == "learned")
      table.matrix("positions", StateParts::places(N_), s_.D, s_.init_std);
    table.layers("", L_);
    table.norm("norm");
    table.linear("mean", s_.D, C_, s_.init_std);
    if (gaussian()) table.linear("log_std", s_.D, C_, s_.init_std);
    if (classes_ > 0) table.matrix("classes", classes_, s_.D, s_.init_std);
    return table.take();
  }

  Value build_loss(Builder& b, BatchShape shape) const override {
    Layers layers(b, parameters());
    const int64_t B = shape.batch, T = shape.length;
    const TensorType rows{{B, T}, DType::i32}, vectors{{B, T, C_}, DType::f32};
    const Value states = b.input("states", vectors), parts = b.input("parts", rows);
    Places places;
    if (shape.packed) {
      places.positions = b.input("positions", rows);
      places.segments = b.input("segments", rows);
      places.sequence_length = shape.sequence_length;
    }
    const Value x = trunk(layers, states, parts, places);
    const Value mean = b.add(states, layers.linear(x, "mean"));
    const Value targets = b.input("state_targets", vectors),
                weights = b.input("weights", {{B, T, 1}, DType::f32});
    if (!b.training) b.output("predicted", mean);
    const Value log_std = gaussian() ? layers.linear(x, "log_std") : Value{};
    Value loss;
    {
      const auto scope = b.scope("loss");
      loss = b.mul(b.loss_scale(), b.reduce_to(errors(b, mean, log_std, targets, weights), {}));
    }
    return classes_ > 0 ? b.add(loss, class_loss(layers, x, b.input("class_targets", rows))) : loss;
  }

  Value build_decode(Builder& b, BatchShape, int64_t) const override {
    b.fail("this model writes no tokens");
    return {};
  }
  bool logits_are_all() const override { return false; }

  Takes takes() const override {
    return {.packed_rows = true, .states = true, .parts = parts_, .classes = classes_};
  }
  int64_t vocab_size() const override { return C_; }
  MaxLengths max_lengths() const override { return {N_, 0}; }

  std::string external_config() const override {
    nlohmann::ordered_json keys = s_.keys();
    keys.update({{"num_layers", L_},
                 {"channels", C_},
                 {"previous", parts_.previous},
                 {"current", parts_.current},
                 {"likelihood", likelihood_},
                 {"classes", classes_},
                 {"class_weight", class_weight_}});
    return own_config_text("trajectory", *this, keys);
  }
  bool read_external_config(const ExternalConfig& config) override {
    return read_own_config("trajectory", *this, config);
  }

 private:
  bool gaussian() const { return likelihood_ == "gaussian"; }

  // states [B,T,C], parts [B,T] -> [B,T,D], normalised.
  Value trunk(Layers& layers, Value states, Value parts, const Places& places) const {
    Builder& b = layers.b;
    Value x = layers.linear(states, "input");
    {
      const auto scope = b.scope("parts");
      x = b.add(x, b.op("embedding", {parts, layers.parameter("weight")}));
    }
    x = s_.placed(layers, x, "positions", places);
    for (int64_t i = 0; i < L_; ++i) {
      const auto layer = b.layer(fmt::format("layers.{}", i));
      x = b.add(x, b.dropout(s_.attention(layers, s_.normalised(layers, x, "norm1"), places),
                             s_.dropout));
      x = b.add(x, b.dropout(s_.mlp(layers, s_.normalised(layers, x, "norm2")), s_.dropout));
    }
    return s_.normalised(layers, x, "norm");
  }

  // [B,T,C]: what each number adds to the loss.
  Value errors(Builder& b, Value mean, Value log_std, Value targets, Value weights) const {
    ExpressionBuilder e(gaussian() ? 4 : 3);
    const Term gap = e.apply(Function::sub, e.operand(0), e.operand(1)), weight = e.operand(2);
    auto weighted = [&](Term term) { return e.finish({e.apply(Function::mul, weight, term)}); };
    if (!gaussian())
      return b.elementwise(weighted(e.apply(Function::mul, gap, gap)), {mean, targets, weights});
    // log std + gap^2 / (2 std^2) + log(2 pi) / 2; std from e^-7 to e^7, so that a state that
    // never changes does not make it infinite.
    const Term s = e.apply(Function::max, e.apply(Function::min, e.operand(3), e.constant(7)),
                           e.constant(-7)),
               z = e.apply(Function::mul, gap, e.apply(Function::exp, e.apply(Function::neg, s))),
               half = e.apply(Function::mul, e.constant(0.5), e.apply(Function::mul, z, z)),
               log_root = e.constant(0.5 * std::log(2 * std::numbers::pi));
    return b.elementwise(
        weighted(e.apply(Function::add, e.apply(Function::add, s, half), log_root)),
        {mean, targets, weights, log_std});
  }

  // x [B,T,D], targets [B,T]: of the few places that have a class.
  Value class_loss(Layers& layers, Value x, Value targets) const {
    Builder& b = layers.b;
    const auto scope = b.scope("classes");
    const Value head = layers.parameter("weight"),
                scale = b.mul(b.loss_scale(), b.input("class_scale", {Shape{}, DType::f32})),
                loss = layers.scaled_cross_entropy(b.scale(scale, class_weight_), x, head, targets);
    if (!b.training) {
      b.output("class_loss", loss);
      b.output("class_logits", b.matmul(x, head, false, true));
    }
    return loss;
  }

  TransformerShape s_;
  int64_t L_ = 4, C_ = -1, N_ = 0, classes_ = 0;
  double class_weight_ = 1;
  StateParts parts_{-1, -1};
  std::string likelihood_ = "mse";
};

}  // namespace

std::unique_ptr<Model> make_trajectory_model() { return std::make_unique<TrajectoryModel>(); }

}  // namespace millrace
