// Whole steps on the CUDA device against the CPU: the same start, the same data, a few updates.
#include <gtest/gtest.h>

#include <thread>

#include "cpu/cpu_backend.h"
#include "cpu/machine.h"
#include "tests/parity/cuda_device.h"
#include "tests/parity/model_cases.h"

namespace millrace {
namespace {

class CudaModel : public ModelParity {};
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(CudaModel);
INSTANTIATE_TEST_SUITE_P(Model, CudaModel,
                         testing::ValuesIn(kModelCases, kModelCases + (test_device().backend
                                                                           ? std::size(kModelCases)
                                                                           : 0)),
                         model_case_name);

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
  const std::pair<Precision, double> bounds[] = {{Precision::fp32, 1e-5},
                                                 {Precision::tf32, 2e-3},
                                                 {Precision::bf16, 2e-2},
                                                 {Precision::fp16, 5e-3}};
  for (const auto& [precision, bound] : bounds) {
    SCOPED_TRACE(precision_name(precision));
    const Trained here = train(backend, precision);
    expect_near(here, truth, bound);
    EXPECT_TRUE(here == train(backend, precision)) << "not the same bits twice";
  }
}

}  // namespace
}  // namespace millrace
