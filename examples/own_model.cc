// A model of your own, trained by Millrace's trainer: plans, checkpoints, resume and the ledger
// come with it.
//
//   own_model [RUNS_FOLDER]     trains on the built-in grammar, stops on SIGTERM and goes on when
//   started again
//
// The model is a small one: each character is predicted from the one before it and its place in the
// window.
#include <cstdio>

#include "cpu/cpu_backend.h"
#include "cpu/machine.h"
#include "model/layers.h"
#include "train/signals.h"
#include "train/trainer.h"

using namespace millrace;

class OwnModel : public Model {
 public:
  void declare(Schema& schema) override {
    schema.integer("model.d_model", &D_).range(1, 4096).help("Width.");
    schema.integer("model.num_layers", &L_).range(1, 100).help("Layers.");
  }
  void resolve(Schema&, int64_t vocab_size, MaxLengths lengths) override {
    V_ = vocab_size;
    T_ = lengths.target;
  }
  // Name, shape, how it begins, whether it decays; the file has the same names.
  std::vector<Parameter> parameters() const override {
    std::vector<Parameter> table;
    auto add = [&](const std::string& name, Shape shape, Parameter::Init init, bool decay) {
      table.push_back({name, shape, init, 0.05, decay, {name}, {}, false});
    };
    add("embedding.weight", {V_, D_}, Parameter::Init::normal, true);
    add("positions.weight", {T_, D_}, Parameter::Init::normal, true);
    for (int64_t i = 0; i < L_; ++i) {
      const std::string layer = fmt::format("layers.{}.", i);
      add(layer + "norm.weight", {D_}, Parameter::Init::ones, false);
      add(layer + "up.weight", {D_, 4 * D_}, Parameter::Init::normal, true);
      add(layer + "down.weight", {4 * D_, D_}, Parameter::Init::normal, true);
    }
    return table;
  }
  Value build_loss(Builder& b, BatchShape shape) const override {
    Layers layers(b, parameters());
    const Value places = b.op("iota", {}, {{"size", shape.length}});
    const Value x =
        trunk(layers, b.input("tokens", {{shape.batch, shape.length}, DType::i32}), places);
    const Value targets = b.input("targets", {{shape.batch, shape.length}, DType::i32});
    const Value scale = b.loss_scale();
    return b.op("linear_cross_entropy", {x, table(layers), targets, scale},
                {{"gradients", b.training}, {"chunk_rows", 0}});
  }
  Value build_decode(Builder& b, BatchShape shape, int64_t) const override {
    Layers layers(b, parameters());
    const Value tokens =
        b.input(prompt_leaf(shape.length), {{shape.batch, shape.length}, DType::i32});
    const Value position = b.input("position", {{shape.batch}, DType::i32});
    const Value row = b.input("prompt_row", {{shape.batch}, DType::i32});
    const Value x = trunk(layers, tokens, b.op("iota", {position}, {{"size", shape.length}}));
    const Value last = b.op("embedding", {row, b.reshape(x, {shape.batch * shape.length, D_})});
    return b.matmul(last, table(layers), false, true);
  }
  int64_t vocab_size() const override { return V_; }
  MaxLengths max_lengths() const override { return {T_, 0}; }
  std::string external_config() const override { return "{\"model_type\": \"own\"}\n"; }
  bool read_external_config(const ExternalConfig&) override { return false; }

 private:
  Value table(Layers& layers) const {
    const auto scope = layers.b.scope("embedding");
    return layers.parameter("weight");
  }
  // tokens [B,T], places [T] or [B,T] -> [B,T,D]
  Value trunk(Layers& layers, Value tokens, Value places) const {
    Builder& b = layers.b;
    Value x = b.op("embedding", {tokens, table(layers)});
    {
      const auto scope = b.scope("positions");
      x = b.add(x, b.op("embedding", {places, layers.parameter("weight")}));
    }
    for (int64_t i = 0; i < L_; ++i) {
      const auto layer = b.layer(fmt::format("layers.{}", i));
      const Value h = layers.linear(layers.norm(x, "norm", "rms_norm", 1e-5), "up");
      x = b.add(x, layers.linear(b.apply(Function::gelu_tanh, h), "down"));
    }
    return x;
  }
  int64_t D_ = 64, L_ = 2, V_ = 0, T_ = 0;
};

class Printer : public TrainObserver {
  void evaluated(int64_t step, const Metrics& metrics, bool) override {
    std::printf("step %5ld  validation loss %.4f\n", static_cast<long>(step),
                metrics.at("eval/loss"));
  }
  void note(const std::string& text) override { std::printf("%s\n", text.c_str()); }
};

int main(int argc, char** argv) {
  try {
    const TrainingSignals signals;
    Settings settings;
    settings.runs_folder = argc > 1 ? argv[1] : "runs";
    settings.run_name = "own-model";
    settings.batch_size = 16;
    settings.max_length = 32;
    settings.max_steps = 200;
    settings.optimizer.learning_rate = 3e-3;
    settings.sample_length = 80;

    settings.data.train = {kBuiltinGrammar};
    settings.data.grammar_chars = 100'000;
    DataObserver silent;
    const TrainingData data =
        make_training_data(open_dataset(data_options(settings), silent), settings, {}, silent);

    OwnModel model;
    Schema schema;
    model.declare(schema);
    model.resolve(schema, data.set.vocab_size, {settings.max_length, 0});

    const auto backend = cpu::make_backend(cpu::best_isa());
    const auto before = RunFolder::newest(settings.runs_folder, settings.run_name);
    const auto run = before ? RunFolder::open(*before)
                            : RunFolder::create(settings.runs_folder, settings.run_name);
    run->set_config(schema.resolved_yaml());
    run->write("run.json", "{\"status\": \"running\"}\n");
    Printer printer;
    const auto last = run->checkpoints().newest([](const std::string&) {});
    const Programs programs = make_programs(model, settings, data.shapes(), *backend);
    const TrainResult result = train(model, settings, data, *backend, programs, run.get(), printer,
                                     last ? &*last : nullptr);
    run->write("run.json",
               result.stopped ? "{\"status\": \"stopped\"}\n" : "{\"status\": \"done\"}\n");
    std::printf("%ld updates, %.0f tokens/s, validation loss %.4f\n%s\n",
                static_cast<long>(result.steps), result.tokens_per_second, result.validation_loss,
                result.sample.c_str());
    return result.stopped ? static_cast<int>(ErrorCode::stopped) : 0;
  } catch (const Error& error) {
    std::fprintf(stderr, "error: %s\n", error.what());
    return static_cast<int>(error.code());
  }
}
