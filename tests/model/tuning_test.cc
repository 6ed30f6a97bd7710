// Fine-tuning of every family: what is frozen stays and costs nothing, low-rank additions train
// alone, come back from a checkpoint, and are worth the same when merged.
#include "model/tuning.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <set>

#include "core/error_testing.h"
#include "cpu/cpu_backend.h"
#include "cpu/gemm.h"
#include "cpu/machine.h"
#include "tests/graph/tiny_model.h"
#include "train/checkpoint.h"
#include "train/evaluation.h"

namespace millrace {
namespace {

constexpr int64_t kTunedLength = 9, kTunedSource = 7;

class Tuning : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    cpu::gemm_set_measuring(false);
    fs::remove_all(folder);
    fs::create_directories(folder / "base");
    fs::create_directories(folder / "additions");
  }
  void TearDown() override {
    cpu::gemm_set_measuring(true);
    fs::remove_all(folder);
  }

  TinyModel plain() const {
    const bool pairs = make_model(GetParam())->takes().pairs;
    return TinyModel("type: " + GetParam(), {2, kTunedLength, false, pairs ? kTunedSource : 0},
                     GetParam());
  }
  std::unique_ptr<TinyModel> tuned(const std::string& keys) const {
    const BatchShape shape = plain().shape;
    auto tiny = std::make_unique<TinyModel>("type: " + GetParam() + ", " + keys, shape, GetParam());
    tiny->settings.tuning.init_from = (folder / "base").string();
    tiny->model = tuned_model(std::move(tiny->model), tiny->settings.tuning, tiny->schema);
    return tiny;
  }
  // The loss without dropout, of the batch that train_steps leaves in the session.
  static double loss(Session& session, size_t plan) {
    session.run(plan);
    return session.scalar_output(plan, "loss");
  }
  void write(const fs::path& to, const Session& session, const Plan& step, const Model& model) {
    CheckpointContent content;
    content.tensors = state_tensors(session, step);
    content.texts = {{model_file_names(model).config, model.external_config()}};
    std::map<std::string, FileDigest> digests;
    write_checkpoint_files(to, content, model, &digests);
  }

  const fs::path folder = fs::temp_directory_path() / fmt::format("millrace_tuning_{}", getpid());
  std::unique_ptr<Backend> backend = cpu::make_backend(cpu::best_isa());
};

INSTANTIATE_TEST_SUITE_P(Model, Tuning, testing::ValuesIn(model_families()),
                         [](const auto& tested) { return tested.param; });

std::set<std::string> leaves(const Plan& plan, Leaf kind) {
  std::set<std::string> names;
  for (const Node& n : plan.graph.nodes)
    if (n.leaf == kind) names.insert(n.name);
  return names;
}

TEST_P(Tuning, AdditionsTrainAloneAndMerge) {
  const TinyModel whole = plain();
  const Plan step = make_plan(whole.step_graph(), {}, *backend),
             eval = make_plan(build_eval_graph(*whole.model, whole.shape), {}, *backend);
  Session base(*backend, {&step, &eval});
  const Trained before = train_steps(base, 0, whole, 3);
  write(folder / "base", base, step, *whole.model);

  const auto tiny = tuned("lora: {rank: 2, alpha: 8, targets: ['*']}");
  const Plan tuning = make_plan(tiny->step_graph(), {}, *backend),
             tuned_eval = make_plan(build_eval_graph(*tiny->model, tiny->shape), {}, *backend);
  std::set<std::string> moments;
  for (const Parameter& p : tiny->model->parameters()) {
    EXPECT_EQ(p.trained, p.adapter) << p.name;
    if (p.adapter) moments.insert({"m." + p.name, "v." + p.name});
  }
  EXPECT_GE(moments.size(), 4u);
  EXPECT_EQ(leaves(tuning, Leaf::optimizer_state), moments);

  Session session(*backend, {&tuning, &tuned_eval});
  const Trained done = train_steps(session, 0, *tiny, 60, true,
                                   [&] { initialize(session, *tiny->model, 1, folder / "base"); });
  EXPECT_LT(done.losses.back(), 0.9f * done.losses.front());
  const auto table = tiny->model->parameters();
  size_t at = 0;
  for (const Parameter& p : table) {
    const auto values = session.read<float>(p.name);
    if (!p.adapter) {
      EXPECT_EQ(values, before.parameters[at]) << p.name << " was frozen";
    } else if (p.name.ends_with("lora_b")) {
      EXPECT_NE(values, std::vector<float>(values.size())) << p.name << " did not train";
    }
    ++at;
  }

  // The checkpoint holds the additions and their moments, and nothing else.
  write(folder / "additions", session, tuning, *tiny->model);
  EXPECT_FALSE(fs::exists(folder / "additions" / "config.json"));
  size_t tensors = 0;
  for (const Parameter& p : table) tensors += p.adapter ? p.parts() : 0;
  EXPECT_EQ(SafetensorsFile(folder / "additions" / "adapter_model.safetensors").entries().size(),
            tensors);
  EXPECT_EQ(SafetensorsFile(folder / "additions" / "optimizer.safetensors").entries().size(),
            moments.size());
  Session again(*backend, {&tuning, &tuned_eval});
  load_checkpoint_tensors(folder / "additions", tuning, again, *tiny->model);
  for (const std::string& leaf : state_leaves(tuning))
    EXPECT_EQ(again.read<float>(leaf), session.read<float>(leaf)) << leaf;

  // A model without additions of its own gets them merged.
  train_steps(base, 0, whole, 60, true);  // leaves the same batch there
  load_model(folder / "additions", base, *whole.model);
  check_weights(folder / "additions", *whole.model);
  const double apart = loss(session, 1);
  EXPECT_NEAR(loss(base, 1), apart, 2e-5 * apart);
  load_model(folder / "base", base, *whole.model);
  EXPECT_GT(loss(base, 1), 1.05 * apart) << "the additions make no difference";
}

TEST_P(Tuning, AdditionsBeginWithNothing) {
  const TinyModel whole = plain();
  const Plan step = make_plan(whole.step_graph(), {}, *backend);
  Session base(*backend, {&step});
  const Trained before = train_steps(base, 0, whole, 1);
  const auto tiny = tuned("lora: {rank: 3}, freeze: []");
  const Plan tuning = make_plan(tiny->step_graph(), {}, *backend);
  Session session(*backend, {&tuning});
  EXPECT_NEAR(train_steps(session, 0, *tiny, 1).losses[0], before.losses[0],
              2e-6 * before.losses[0]);
}

TEST_P(Tuning, FrozenParametersHaveNoGradientsAndNoMoments) {
  const auto table = plain().model->parameters();
  const std::string frozen = table.front().name;
  const auto tiny = tuned(fmt::format("freeze: [{}, bias]", frozen));
  tiny->settings.grad_accum = 2;
  const Plan plan = make_plan(tiny->step_graph(), {}, *backend);
  std::set<std::string> moments, buffers{"gradient.loss"};
  for (const Parameter& p : table) {
    if (p.name == frozen || p.name.ends_with(".bias")) continue;
    moments.insert({"m." + p.name, "v." + p.name});
    buffers.insert("gradient." + p.name);
  }
  EXPECT_EQ(leaves(plan, Leaf::optimizer_state), moments);
  EXPECT_EQ(leaves(plan, Leaf::gradient_buffer), buffers);
  for (const Node& n : plan.graph.nodes)
    for (const TensorType& type : n.out)
      EXPECT_FALSE(n.phase == Phase::backward && type.shape == table.front().shape &&
                   type.dtype == DType::f32)
          << n.op->name << " makes the gradient of " << frozen;
}

TEST(TuningOfTheHead, AFrozenHeadHasNoGradientEither) {
  TinyModel tiny(std::string(kLlamaKeys) + ", freeze: [head]");
  tiny.model = tuned_model(std::move(tiny.model), tiny.settings.tuning, tiny.schema);
  bool found = false;
  for (const Node& n : tiny.step_graph().nodes)
    if (n.op->name == std::string("linear_cross_entropy")) {
      found = true;
      EXPECT_EQ(n.out.size(), 2u) << "loss and the gradient of x";
    }
  EXPECT_TRUE(found);
}

TEST(TuningPatterns, MatchWholeWords) {
  const std::string name = "layers.3.mlp.up.bias";
  for (const char* pattern : {"layers.3.mlp.up.bias", "bias", "layers.3", "layers.[0-5]", "mlp.*",
                              "mlp", "*", "layers.*.up.bias", "3", "mlp.up"})
    EXPECT_TRUE(matches_name(pattern, name)) << pattern;
  for (const char* pattern :
       {"layers.30", "layer", "ml", "up.weight", "layers.[4-9]", "", "bia", "layers.3.up"})
    EXPECT_FALSE(matches_name(pattern, name)) << pattern;
}

TEST(TuningPatterns, ThatMatchNothingAreRefused) {
  auto fields = [](const std::string& keys, const std::string& folder = "base") {
    return error_of([&] {
      TinyModel tiny(std::string(kGpt2Keys) + ", " + keys);
      tiny.settings.tuning.init_from = folder;
      tuned_model(std::move(tiny.model), tiny.settings.tuning, tiny.schema);
    });
  };
  const ErrorFields freeze = fields("freeze: [norm1, atention]");
  EXPECT_EQ(freeze.code, ErrorCode::config);
  EXPECT_EQ(freeze.got, "atention");
  EXPECT_NE(freeze.expected.find("layers.*.attention.qkv.weight"), std::string::npos);
  const ErrorFields lora = fields("lora: {rank: 2, targets: [embedding]}");
  EXPECT_EQ(lora.got, "embedding");
  EXPECT_EQ(lora.expected.find("embedding"), std::string::npos) << "it is no linear layer";
  EXPECT_NE(fields("freeze: ['*']").what.find("nothing is left"), std::string::npos);
  EXPECT_NE(fields("lora: {rank: 2}", "").expected.find("model.init_from"), std::string::npos);
}

}  // namespace
}  // namespace millrace
