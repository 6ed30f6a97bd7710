// Small models of every family, trained for a few updates from the same start with the same data:
// what a device or a precision is held against the CPU in f32 with.
#pragma once
#include <gtest/gtest.h>

#include <cmath>

#include "tests/graph/tiny_model.h"

namespace millrace {

struct ModelCase {
  const char* name;
  std::string keys;
  BatchShape shape;
  const char* family = "gpt";
};
const ModelCase kModelCases[] = {
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

class ModelParity : public testing::TestWithParam<ModelCase> {
 protected:
  static constexpr int kSteps = 10;

  Trained train(Backend& backend, Precision precision) {
    PassOptions options;
    options.precision = precision;
    const Plan plan = make_plan(tiny_.step_graph(), options, backend);
    const Plan* const one[] = {&plan};
    const Plan refresh = make_refresh_plan(one, backend);
    Session session(backend, {&plan, &refresh});
    return train_steps(session, 0, tiny_, kSteps, false, [&] { session.run(1); });
  }
  // Losses are near 3, of states, which are sums over many numbers, larger; what a precision rounds
  // away grows a little with every update.
  static void expect_near(const Trained& here, const Trained& truth, double bound) {
    for (size_t i = 0; i < truth.losses.size(); ++i)
      EXPECT_NEAR(here.losses[i], truth.losses[i],
                  bound * std::max(1.0, std::fabs(truth.losses[i]) / 3.0))
          << "update " << i;
  }
  TinyModel tiny_{GetParam().keys, GetParam().shape, GetParam().family};
};

inline std::string model_case_name(const testing::TestParamInfo<ModelCase>& test) {
  return test.param.name;
}

}  // namespace millrace
