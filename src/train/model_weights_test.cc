#include "train/model_weights.h"

#include <gtest/gtest.h>
#include <unistd.h>

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
        {", \"modules_to_save\": [\"lm_head\"]", "`modules_to_save`"}}) {
    config(more);
    const ErrorFields e = error_of([&] { ModelWeights(folder / "more"); });
    EXPECT_EQ(e.code, ErrorCode::config);
    EXPECT_NE(e.where.find(field), std::string::npos) << e.where;
  }
  config();
  fs::remove_all(folder / "base");
  const ErrorFields e = error_of([&] { ModelWeights(folder / "more"); });
  EXPECT_NE(e.where.find("`base_model_name_or_path`"), std::string::npos) << e.where;
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
