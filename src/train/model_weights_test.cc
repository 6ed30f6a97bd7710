#include "train/model_weights.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <cmath>

#include "core/error_testing.h"
#include "io/safetensors.h"
#include "train/weights.h"

namespace millrace {
namespace {

// A weight [in 2, out 3] that is two outside, of widths 2 and 1, and additions of rank 1 to the
// first of them.
class ModelWeightsTest : public testing::Test {
 protected:
  void SetUp() override {
    fs::remove_all(folder);
    fs::create_directories(folder / "base");
    fs::create_directories(folder / "more");
    write("base/model.safetensors",
          {{"q.weight", {2, 2}, {1, 4, 2, 5}}, {"k.weight", {1, 2}, {3, 6}}});
    write("more/adapter_model.safetensors",
          {{"base_model.model.q.lora_A.weight", {1, 2}, {10, 100}},
           {"base_model.model.q.lora_B.weight", {2, 1}, {1, -2}}});
    config();
  }
  void TearDown() override { fs::remove_all(folder); }

  void write(const std::string& name, const std::vector<NamedTensor>& tensors) const {
    std::vector<TensorToWrite> list;
    for (const NamedTensor& t : tensors)
      list.push_back({t.name, "F32", t.shape, std::as_bytes(std::span(t.values)), {}});
    write_file(folder / name, safetensors_bytes(list, {}));
  }
  void config(const std::string& more = "") const {
    write_file(folder / "more/adapter_config.json",
               fmt::format(R"({{"peft_type": "LORA", "r": 1, "lora_alpha": 2.0,
                               "base_model_name_or_path": "{}"{}}})",
                           (folder / "base").string(), more));
  }

  const fs::path folder = fs::temp_directory_path() / fmt::format("millrace_weights_{}", getpid());
  const Parameter weight{.name = "qk.weight",
                         .shape = {2, 3},
                         .external = {"q.weight", "k.weight"},
                         .part_widths = {2, 1},
                         .transposed = true};
};

TEST_F(ModelWeightsTest, AdditionsAreMergedPartByPart) {
  const ModelWeights base(folder / "base"), more(folder / "more");
  EXPECT_FALSE(base.has_adapters());
  EXPECT_TRUE(more.has_adapters());
  EXPECT_EQ(more.whole_folder(), folder / "base");
  EXPECT_EQ(base.values(weight, true), (std::vector<float>{1, 2, 3, 4, 5, 6}));
  EXPECT_EQ(more.values(weight, false), (std::vector<float>{1, 2, 3, 4, 5, 6}));
  // alpha / rank = 2: a row of the inputs 10 and 100 gets 2 (1, -2) times it, and k nothing.
  EXPECT_EQ(more.values(weight, true), (std::vector<float>{21, -38, 3, 204, -395, 6}));
}

TEST_F(ModelWeightsTest, AdditionsToAdditions) {
  fs::create_directories(folder / "again");
  fs::copy(folder / "more/adapter_model.safetensors", folder / "again/adapter_model.safetensors");
  write_file(folder / "again/adapter_config.json",
             fmt::format(R"({{"peft_type": "LORA", "r": 1, "lora_alpha": 1,
                             "base_model_name_or_path": "{}"}})",
                         (folder / "more").string()));
  const ModelWeights again(folder / "again");
  EXPECT_EQ(again.whole_folder(), folder / "base");
  EXPECT_EQ(again.values(weight, true), (std::vector<float>{31, -58, 3, 304, -595, 6}));
  EXPECT_EQ(again.values(weight, false), (std::vector<float>{21, -38, 3, 204, -395, 6}));
  // To itself, without an end.
  write_file(folder / "again/adapter_config.json",
             fmt::format(R"({{"peft_type": "LORA", "r": 1, "lora_alpha": 1,
                             "base_model_name_or_path": "{}"}})",
                         (folder / "again").string()));
  EXPECT_NE(error_of([&] { ModelWeights(folder / "again"); }).what.find("without an end"),
            std::string::npos);
}

TEST_F(ModelWeightsTest, WhatIsNotKnownHereIsRefusedByField) {
  for (const auto& [more, field] :
       {std::pair{", \"use_dora\": true", "`use_dora`"},
        {", \"use_rslora\": true", "`use_rslora`"},
        {", \"bias\": \"all\"", "`bias`"},
        {", \"lora_bias\": true", "`lora_bias`"},
        {", \"use_qalora\": true", "`use_qalora`"},
        {", \"alpha_pattern\": {\"v_proj\": 64}", "`alpha_pattern`"},
        {", \"rank_pattern\": {\"v_proj\": 8}", "`rank_pattern`"},
        {", \"trainable_token_indices\": [3, 4]", "`trainable_token_indices`"},
        {", \"target_parameters\": [\"q\"]", "`target_parameters`"},
        {", \"alora_invocation_tokens\": [1]", "`alora_invocation_tokens`"},
        {", \"init_lora_weights\": \"pissa_niter_4\"", "`init_lora_weights`"},
        {", \"modules_to_save\": [\"lm_head\"]", "`modules_to_save`"}}) {
    config(more);
    const ErrorFields e = error_of([&] { ModelWeights(folder / "more"); });
    EXPECT_EQ(e.code, ErrorCode::config);
    EXPECT_NE(e.where.find(field), std::string::npos) << e.where;
  }
  // What PEFT writes where none of them is asked for.
  config(
      R"(, "lora_bias": false, "alpha_pattern": {}, "rank_pattern": {}, "init_lora_weights": true,
           "trainable_token_indices": null, "target_parameters": null)");
  EXPECT_EQ(ModelWeights(folder / "more").unused({weight}), std::vector<std::string>{});
  config(R"(, "init_lora_weights": "gaussian")");
  EXPECT_TRUE(ModelWeights(folder / "more").has_adapters());
  config();
  fs::remove_all(folder / "base");
  const ErrorFields e = error_of([&] { ModelWeights(folder / "more"); });
  EXPECT_NE(e.where.find("`base_model_name_or_path`"), std::string::npos) << e.where;
}

// Trained, and nothing of the model takes it: exporting without it would be another model.
TEST_F(ModelWeightsTest, AdditionsThatBelongToNothingAreNamed) {
  const NamedTensor a{"base_model.model.q.lora_A.weight", {1, 2}, {10, 100}},
      b{"base_model.model.q.lora_B.weight", {2, 1}, {1, -2}};
  for (const NamedTensor& other :
       std::vector<NamedTensor>{{"base_model.model.q.lora_B.bias", {2}, {1, 2}},
                                {"base_model.model.embed_tokens.lora_embedding_A", {1, 2}, {1, 2}},
                                {"base_model.model.k.lora_B.weight", {1, 1}, {1}}}) {
    write("more/adapter_model.safetensors", {a, b, other});
    const ErrorFields e = error_of([&] { ModelWeights(folder / "more").unused({weight}); });
    EXPECT_EQ(e.code, ErrorCode::config);
    EXPECT_NE(e.what.find(other.name), std::string::npos) << e.what;
    EXPECT_NE(e.where.find("adapter_model.safetensors"), std::string::npos) << e.where;
  }
}

TEST_F(ModelWeightsTest, TensorsOfNoParameterAreListed) {
  write(
      "base/model.safetensors",
      {{"q.weight", {2, 2}, {1, 4, 2, 5}}, {"k.weight", {1, 2}, {3, 6}}, {"q.bias", {2}, {1, 1}}});
  const std::vector<std::string> left{"q.bias"};
  EXPECT_EQ(ModelWeights(folder / "base").unused({weight}), left);
  EXPECT_EQ(ModelWeights(folder / "more").unused({weight}), left);
}

TEST_F(ModelWeightsTest, ValuesThatAreNotFiniteAreRefusedByPlace) {
  for (const float bad : {NAN, INFINITY, -INFINITY}) {
    write("base/model.safetensors",
          {{"q.weight", {2, 2}, {1, 4, bad, 5}}, {"k.weight", {1, 2}, {3, 6}}});
    for (const char* name : {"base", "more"}) {
      const ModelWeights weights(folder / name);
      weights.check(weight, true);  // looks at no value
      const ErrorFields e = error_of([&] { weights.values(weight, true); });
      EXPECT_EQ(e.code, ErrorCode::config);
      EXPECT_EQ(e.where, (folder / "base/model.safetensors").string() +
                             ": tensor `q.weight`, element [1,0]");
      EXPECT_EQ(e.got, fmt::format("{}", bad));
    }
  }
  SetUp();
  write("more/adapter_model.safetensors", {{"base_model.model.q.lora_A.weight", {1, 2}, {10, NAN}},
                                           {"base_model.model.q.lora_B.weight", {2, 1}, {1, -2}}});
  const ErrorFields e = error_of([&] { ModelWeights(folder / "more").check(weight, true); });
  EXPECT_NE(e.where.find("lora_A.weight`, element [0,1]"), std::string::npos) << e.where;
}

TEST_F(ModelWeightsTest, WhatIsMissingOrOfAnotherTypeIsFoundWithoutReading) {
  const std::array<int8_t, 4> bytes{1, 2, 3, 4};
  const std::array<float, 2> values{3, 6};
  const TensorToWrite q{"q.weight", "I8", {2, 2}, std::as_bytes(std::span(bytes)), {}},
      k{"k.weight", "F32", {1, 2}, std::as_bytes(std::span(values)), {}};
  write_file(folder / "base/model.safetensors", safetensors_bytes(std::vector{q, k}, {}));
  ErrorFields e = error_of([&] { ModelWeights(folder / "more").check(weight, true); });
  EXPECT_NE(e.where.find("q.weight"), std::string::npos) << e.where;
  EXPECT_EQ(e.expected, "F32, F16, BF16 or F64");
  EXPECT_EQ(e.got, "I8");
  write_file(folder / "base/model.safetensors", safetensors_bytes(std::vector{k}, {}));
  e = error_of([&] { ModelWeights(folder / "base").check(weight, true); });
  EXPECT_EQ(e.what, "tensor q.weight is missing");
  EXPECT_EQ(e.expected, "`q.weight` or `weight`");
  EXPECT_EQ(e.got, "none of that name");
}

TEST_F(ModelWeightsTest, MisshapenAdditionsAreNamed) {
  write("more/adapter_model.safetensors",
        {{"base_model.model.q.lora_A.weight", {1, 2}, {10, 100}},
         {"base_model.model.q.lora_B.weight", {3, 1}, {1, -2, 5}}});
  const ModelWeights more(folder / "more");
  for (const bool read : {false, true}) {
    const ErrorFields e =
        error_of([&] { read ? (void)more.values(weight, true) : more.check(weight, true); });
    EXPECT_EQ(e.where, "base_model.model.q.lora_B.weight");
    EXPECT_EQ(e.expected, "[2,1]");
    EXPECT_EQ(e.got, "[3,1]");
  }
}

}  // namespace
}  // namespace millrace
