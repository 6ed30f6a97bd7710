// Whole steps on the CUDA device against the CPU: the same start, the same data, a few updates.
#include <gtest/gtest.h>

#include <cmath>
#include <thread>

#include "cpu/cpu_backend.h"
#include "cpu/machine.h"
#include "tests/graph/tiny_model.h"
#include "tests/parity/cuda_device.h"

namespace millrace {
namespace {

constexpr int kSteps = 10;

struct Case {
  const char* name;
  std::string keys;
  BatchShape shape;
  const char* family = "gpt";
};
const Case kCases[] = {
    {"gpt2", kGpt2Keys, {2, 12}},
    {"gpt2_dropout", std::string(kGpt2Keys) + ", dropout: 0.1", {2, 12}},
    {"llama", kLlamaKeys, {2, 12}},
    {"gpt2_larger", "d_model: 128, num_layers: 3, num_heads: 2", {3, 72}},
    {"llama_larger",
     "d_model: 128, num_layers: 2, num_heads: 4, num_kv_heads: 2, d_ff: 192, positions: rotary, "
     "norm: rms_norm, activation: swiglu, bias: false, tied_embeddings: false",
     {2, 65}},
    {"seq2seq", "d_model: 24, num_layers: 2, num_heads: 2", {2, 12, false, 9}, "seq2seq"},
    {"seq2seq_larger", "d_model: 64, num_layers: 2, num_heads: 2", {3, 72, false, 72}, "seq2seq"},
    {"pointer_generator",
     "emb_dim: 24, hidden_dim: 32, num_layers: 2",
     {3, 9, false, 21},
     "pointer_generator"},
    {"trajectory",
     "d_model: 32, num_layers: 2, num_heads: 2, likelihood: gaussian",
     {3, 18},
     "trajectory"},
    {"trajectory_packed_classes",
     "d_model: 32, num_layers: 2, num_heads: 2, classes: 5",
     {3, 36, true},
     "trajectory"}};

class CudaModel : public testing::TestWithParam<Case> {
 protected:
  Trained train(Backend& backend, Precision precision) {
    PassOptions options;
    options.precision = precision;
    const Plan plan = make_plan(tiny_.step_graph(), options, backend);
    const Plan* const one[] = {&plan};
    const Plan refresh = make_refresh_plan(one, backend);
    Session session(backend, {&plan, &refresh});
    return train_steps(session, 0, tiny_, kSteps, false, [&] { session.run(1); });
  }
  TinyModel tiny_{GetParam().keys, GetParam().shape, GetParam().family};
};
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(CudaModel);
INSTANTIATE_TEST_SUITE_P(
    Model, CudaModel,
    testing::ValuesIn(kCases, kCases + (test_device().backend ? std::size(kCases) : 0)),
    [](const auto& test) { return std::string(test.param.name); });

// A checkpoint is read by a thread of its own, and a new shape of batches is captured in mid-run.
TEST_P(CudaModel, IsReadWhileStepsAreCaptured) {
  Backend& backend = *test_device().backend;
  PassOptions options;
  options.precision = Precision::bf16;
  const Plan plan = make_plan(tiny_.step_graph(), options, backend);
  const Plan* const one[] = {&plan};
  const Plan refresh = make_refresh_plan(one, backend);
  const std::string name = tiny_.model->parameters()[0].name;
  for (int round = 0; round < 20; ++round) {
    Session session(backend, {&plan, &refresh});
    std::jthread reader;
    train_steps(session, 0, tiny_, 3, false, [&] {
      session.run(1);
      reader = std::jthread([&](const std::stop_token& stop) {
        while (!stop.stop_requested()) session.read<float>(name);
      });
    });
    reader.request_stop();
    reader.join();
    EXPECT_EQ(session.note(0), "") << "in round " << round;
  }
}

// Several updates in one graph give what they give one by one, and their time is accounted for.
TEST_P(CudaModel, SeveralUpdatesInOneReplay) {
  static const std::string kResults[] = {"loss", "grad_norm"};
  constexpr int64_t kUpdates = 23;  // the first are alone, the last few are less than a graph's
  std::vector<std::vector<float>> losses, parameters;
  for (const int64_t at_once : {1, 4}) {
    const auto backend = open_cuda(0, {.runs_at_once = at_once});
    ASSERT_EQ(backend->runs_at_once(), at_once);
    PassOptions options;
    options.precision = Precision::bf16;
    const Plan plan = make_plan(tiny_.step_graph(), options, *backend);
    const Plan* const one[] = {&plan};
    const Plan refresh = make_refresh_plan(one, *backend);
    Session session(*backend, {&plan, &refresh});
    train_steps(session, 0, tiny_, 1, false, [&] { session.run(1); });
    Ledger ledger;
    std::vector<std::unique_ptr<Late>> late;
    for (int64_t i = 0; i < kUpdates; ++i) {
      const auto number = static_cast<float>(i + 2);
      session.write<float>("step", std::span(&number, 1));
      if (session.has("random_key"))
        session.write<int32_t>("random_key", std::vector<int32_t>{5, 0, static_cast<int>(i), 0});
      if (session.has("tokens")) {
        std::vector<int32_t> tokens(static_cast<size_t>(tiny_.shape.batch * tiny_.shape.length),
                                    static_cast<int32_t>(i % TinyModel::kVocabulary));
        session.write<int32_t>("tokens", tokens);
      }
      session.run(0, &ledger);
      late.push_back(session.fetch(0, kResults));
      if (i >= 4) continue;
      late.back()->wait();  // one that is timed is behind it before others are put off
      session.settle(ledger);
    }
    losses.emplace_back();
    for (const auto& l : late)
      for (const float value : l->wait()) losses.back().push_back(value);
    session.settle(ledger);
    EXPECT_EQ(ledger.times_of(plan).runs, kUpdates);
    EXPECT_EQ(session.note(0), "");
    parameters.push_back(session.read<float>(tiny_.model->parameters()[0].name));
  }
  EXPECT_EQ(losses[0], losses[1]);
  EXPECT_EQ(parameters[0], parameters[1]);
}

TEST_P(CudaModel, TrainsAsTheCpuDoes) {
  Backend& backend = *test_device().backend;
  const auto cpu = cpu::make_backend(cpu::best_isa());
  const Trained truth = train(*cpu, Precision::fp32);
  // Losses are near 3, of states, which are sums over many numbers, larger; what a precision rounds
  // away grows a little with every update.
  const std::pair<Precision, double> bounds[] = {{Precision::fp32, 1e-5},
                                                 {Precision::tf32, 2e-3},
                                                 {Precision::bf16, 2e-2},
                                                 {Precision::fp16, 5e-3}};
  for (const auto& [precision, bound] : bounds) {
    SCOPED_TRACE(precision_name(precision));
    const Trained here = train(backend, precision);
    for (size_t i = 0; i < truth.losses.size(); ++i)
      EXPECT_NEAR(here.losses[i], truth.losses[i],
                  bound * std::max(1.0, std::fabs(truth.losses[i]) / 3.0))
          << "update " << i;
    EXPECT_TRUE(here == train(backend, precision)) << "not the same bits twice";
  }
}

}  // namespace
}  // namespace millrace
