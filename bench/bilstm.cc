// A stack of bidirectional LSTM layers, forward and backward without end, for bench/run: the
// encoder of a summarizer alone.
//
//   millrace_bilstm DEVICE PRECISION STEPS BATCH INPUT HIDDEN LAYERS WINDOW FILE.safetensors
//
// Writes its input and weights into the file, then a line of JSON for every window of runs.
#include <charconv>
#include <cstdio>

#include "core/clock.h"
#include "core/file.h"
#include "core/rng.h"
#include "cpu/cpu_backend.h"
#include "cpu/machine.h"
#include "exec/cuda_library.h"
#include "exec/session.h"
#include "graph/autodiff.h"
#include "io/safetensors.h"
#include "train/program.h"

namespace millrace {
namespace {

struct Workload {
  int64_t steps, batch, input, hidden, layers, window;
};

struct Tensor {
  std::string name;
  Shape shape;
  double deviation;
};
std::vector<Tensor> tensors_of(const Workload& w) {
  std::vector<Tensor> list = {{"x", {w.steps, w.batch, w.input}, 1}};
  const double deviation = 1 / std::sqrt(static_cast<double>(w.hidden));
  for (int64_t layer = 0; layer < w.layers; ++layer) {
    const int64_t width = layer == 0 ? w.input : 2 * w.hidden;
    list.push_back({fmt::format("{}.input", layer), {width, 8 * w.hidden}, deviation});
    list.push_back({fmt::format("{}.bias", layer), {8 * w.hidden}, deviation});
    list.push_back({fmt::format("{}.recurrent", layer), {2, w.hidden, 4 * w.hidden}, deviation});
  }
  return list;
}

// loss = the mean of the squares of the last layer's results.
Graph build(const Workload& w) {
  Builder b;
  const int64_t T = w.steps, B = w.batch, H = w.hidden;
  const Value lengths = b.input("lengths", {{B}, DType::i32});
  std::vector<Value> wanted;
  for (const Tensor& t : tensors_of(w)) wanted.push_back(b.parameter(t.name, t.shape));
  Value y = wanted[0];
  for (size_t layer = 0; layer < static_cast<size_t>(w.layers); ++layer) {
    const auto scope = b.layer(fmt::format("layers.{}", layer));
    const Value *input = &wanted[1 + 3 * layer], *bias = input + 1, *recurrent = input + 2;
    const Value rows = b.reshape(y, {T * B, b.shape(y).last()});
    const Value x = b.reshape(b.add(b.matmul(rows, *input), *bias), {T, B, 2, 4 * H});
    y = b.reshape(b.op("lstm", {x, *recurrent, lengths}), {T, B, 2 * H});
  }
  const Value loss =
      b.scale(b.reduce_to(b.mul(y, y), {}), 1.0 / static_cast<double>(T * B * 2 * H));
  b.phase = Phase::backward;
  const Seed seed{loss, b.constant(1)};
  const std::vector<Value> gradient = gradients(b, std::span(&seed, 1), wanted);
  b.phase = Phase::optimizer;
  b.output("loss", loss);
  b.output("grad_norm", b.op("grad_norm", gradient));
  return b.finish();
}

void fill(const Workload& w, Session& session, const std::string& path) {
  std::vector<std::vector<float>> values;
  std::vector<TensorToWrite> tensors;
  for (const Tensor& t : tensors_of(w)) {
    RandomStream random(1, RandomUse::test, values.size());
    std::vector<float>& numbers = values.emplace_back(static_cast<size_t>(t.shape.numel()));
    for (float& v : numbers) v = static_cast<float>(t.deviation * random.normal());
    session.write<float>(t.name, numbers);
    tensors.push_back(
        {t.name, "F32", {t.shape.begin(), t.shape.end()}, std::as_bytes(std::span(numbers))});
  }
  write_file(path, safetensors_bytes(tensors, {}));
  const std::vector<int32_t> lengths(static_cast<size_t>(w.batch), static_cast<int32_t>(w.steps));
  session.write<int32_t>("lengths", lengths);
}

void race(const Workload& w, Backend& backend, Precision precision, const std::string& path) {
  PassOptions options;
  options.precision = precision;
  const Plan plan = make_plan(build(w), options, backend);
  const Plan* const one[] = {&plan};
  const Plan refresh = make_refresh_plan(one, backend);
  Session session(backend, {&plan, &refresh});
  fill(w, session, path);
  session.run(1);
  static const std::string kResults[] = {"loss", "grad_norm"};
  for (int64_t step = w.window;; step += w.window) {
    const int64_t start = now_ns();
    for (int64_t i = 0; i < w.window; ++i) session.run(0);
    const std::vector<float> results = session.fetch(0, kResults)->wait();
    const double seconds = seconds_since(start);
    fmt::print(
        "{{\"step\": {}, \"ms\": {}, \"span_ms\": {}, \"loss\": {}, \"grad_norm\": {}, \"arena\": "
        "{}}}\n",
        step, 1e3 * seconds / static_cast<double>(w.window), 1e3 * seconds, results[0], results[1],
        layout_session(one).total_bytes());
    std::fflush(stdout);
  }
}

int64_t number(const std::string& word) {
  int64_t value = 0;
  const auto [end, fault] = std::from_chars(word.data(), word.data() + word.size(), value);
  if (fault != std::errc() || end != word.data() + word.size() || value < 1)
    throw Error({.what = fmt::format("'{}' is not a number above zero", word)});
  return value;
}

}  // namespace
}  // namespace millrace

int main(int argc, char** argv) {
  using namespace millrace;
  try {
    const std::vector<std::string> words(argv + 1, argv + argc);
    if (words.size() != 9)
      throw Error({.what =
                       "usage: millrace_bilstm cpu|cuda PRECISION STEPS BATCH INPUT HIDDEN LAYERS "
                       "WINDOW FILE.safetensors"});
    const Workload w{number(words[2]), number(words[3]), number(words[4]),
                     number(words[5]), number(words[6]), number(words[7])};
    const auto backend = words[0] == "cuda" ? open_cuda(0, {}) : cpu::make_backend(cpu::best_isa());
    Precision precision = Precision::fp32;
    for (Precision known : {Precision::fp32, Precision::tf32, Precision::bf16, Precision::fp16})
      if (precision_name(known) == words[1]) precision = known;
    race(w, *backend, precision, words[8]);
  } catch (const Error& error) {
    fmt::print(stderr, "{}\n", error.what());
    return 2;
  }
}
