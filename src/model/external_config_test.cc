#include "model/external_config.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "core/error.h"
#include "model/model.h"

namespace millrace {
namespace {

using Json = nlohmann::json;

// As transformers writes them.
Json gpt2() {
  return {{"model_type", "gpt2"},
          {"vocab_size", 311},
          {"n_positions", 160},
          {"n_embd", 48},
          {"n_layer", 3},
          {"n_head", 4},
          {"n_inner", nullptr},
          {"activation_function", "gelu_new"},
          {"layer_norm_epsilon", 1e-5},
          {"tie_word_embeddings", true}};
}
Json llama() {
  return {{"model_type", "llama"},
          {"vocab_size", 307},
          {"hidden_size", 64},
          {"intermediate_size", 120},
          {"num_hidden_layers", 3},
          {"num_attention_heads", 4},
          {"num_key_value_heads", 2},
          {"max_position_embeddings", 256},
          {"hidden_act", "silu"},
          {"rms_norm_eps", 1e-6},
          {"rope_parameters", {{"rope_theta", 5000.0}, {"rope_type", "default"}}},
          {"attention_bias", false},
          {"mlp_bias", false},
          {"tie_word_embeddings", false},
          {"head_dim", 16}};
}

Json changed(Json config, const std::string& field, Json value) {
  config[field] = std::move(value);
  return config;
}

std::unique_ptr<Model> read(const Json& config) {
  return model_from_external_config(config.dump(), "config.json");
}

// The Error's fields; fails when there is none.
ErrorFields refusal(const std::string& text) {
  try {
    model_from_external_config(text, "config.json");
  } catch (const Error& e) {
    return e.fields();
  }
  ADD_FAILURE() << "it was taken: " << text.substr(0, 200);
  return {};
}

int64_t weights(const Model& model) {
  int64_t count = 0;
  for (const Parameter& p : model.parameters()) count += p.shape.numel();
  return count;
}

TEST(ExternalConfig, Gpt2) {
  const auto model = read(gpt2());
  EXPECT_EQ(model->vocab_size(), 311);
  EXPECT_EQ(model->max_lengths().target, 160);
  const int64_t layer =
      2 * 48 + (48 + 1) * 144 + (48 + 1) * 48 + 2 * 48 + (48 + 1) * 192 + 193 * 48;
  EXPECT_EQ(weights(*model), 311 * 48 + 160 * 48 + 3 * layer + 2 * 48);
  EXPECT_EQ(weights(*read(changed(gpt2(), "tie_word_embeddings", false))) - weights(*model),
            311 * 48);
  EXPECT_LT(weights(*read(changed(gpt2(), "n_inner", 100))), weights(*model));
}

TEST(ExternalConfig, Llama) {
  const auto model = read(llama());
  EXPECT_EQ(model->vocab_size(), 307);
  EXPECT_EQ(model->max_lengths().target, 256);
  const int64_t layer = 64 + 64 * (64 + 2 * 32) + 64 * 64 + 64 + 3 * 64 * 120;
  EXPECT_EQ(weights(*model), 2 * 307 * 64 + 3 * layer + 64);
  // transformers 4: rope_theta beside the others, rope_scaling null.
  Json old = llama();
  old.erase("rope_parameters");
  old.erase("head_dim");
  old["rope_theta"] = 5000.0;
  old["rope_scaling"] = nullptr;
  EXPECT_EQ(read(old)->external_config(), model->external_config());
  old["rope_theta"] = 6000.0;
  EXPECT_NE(read(old)->external_config(), model->external_config());
}

// Both ways of writing scaled rotary positions, transformers 4 and 5, say the same.
TEST(ExternalConfig, ScaledRotaryPositions) {
  const Json scaling = {{"rope_type", "llama3"},
                        {"factor", 8.0},
                        {"low_freq_factor", 1.0},
                        {"high_freq_factor", 4.0},
                        {"original_max_position_embeddings", 64}};
  Json old = llama(), now = llama();
  old.erase("rope_parameters");
  old["rope_theta"] = 5000.0;
  old["rope_scaling"] = scaling;
  now["rope_parameters"].update(scaling);
  const std::string text = read(now)->external_config();
  EXPECT_EQ(read(old)->external_config(), text);
  EXPECT_EQ(Json::parse(text)["rope_scaling"], scaling);
}

// Biases in one half of a layer, and heads whose widths are not what hidden_size makes.
TEST(ExternalConfig, LlamaWithBiasesAndWidthsOfItsOwn) {
  const int64_t none = weights(*read(llama())), attention = 3 * (64 + 2 * 32 + 64),
                mlp = 3 * (2 * 120 + 64);
  for (const bool of_attention : {false, true})
    for (const bool of_mlp : {false, true}) {
      const Json config =
          changed(changed(llama(), "attention_bias", of_attention), "mlp_bias", of_mlp);
      const auto model = read(config);
      EXPECT_EQ(weights(*model) - none, (of_attention ? attention : 0) + (of_mlp ? mlp : 0));
      const Json written = Json::parse(model->external_config());
      EXPECT_EQ(written["attention_bias"], of_attention);
      EXPECT_EQ(written["mlp_bias"], of_mlp);
    }
  for (const int64_t width : {8, 32}) {
    const auto model = read(changed(llama(), "head_dim", width));
    EXPECT_EQ(weights(*model) - none, 3 * 64 * (2 * 4 + 2 * 2) * (width - 16));
    EXPECT_EQ(Json::parse(model->external_config())["head_dim"], width);
  }
  // Where hidden_size does not divide.
  Json odd = changed(changed(llama(), "hidden_size", 66), "head_dim", 16);
  EXPECT_EQ(Json::parse(read(odd)->external_config())["head_dim"], 16);
  EXPECT_EQ(read(changed(llama(), "hidden_act", "swish"))->external_config(),
            read(llama())->external_config());
  EXPECT_EQ(read(changed(gpt2(), "activation_function", "swish"))->external_config(),
            read(changed(gpt2(), "activation_function", "silu"))->external_config());
}

// Every shape of the family comes back from what it writes.
TEST(ExternalConfig, IsTheInverseOfWriting) {
  for (const char* keys :
       {"d_model: 24, num_layers: 2, num_heads: 2",
        "d_model: 24, num_layers: 2, num_heads: 2, activation: gelu, tied_embeddings: false",
        "d_model: 24, num_layers: 2, num_heads: 4, num_kv_heads: 2, d_ff: 40, positions: rotary, "
        "norm: rms_norm, activation: swiglu, bias: false, tied_embeddings: false",
        "d_model: 24, num_layers: 1, num_heads: 2, positions: rotary, norm: rms_norm, activation: "
        "swiglu, bias: true, rope_theta: 1234.5",
        "d_model: 24, num_layers: 1, num_heads: 2, positions: rotary, norm: rms_norm, activation: "
        "swiglu, bias: false, rope_scaling: linear, rope_factor: 2.5",
        "d_model: 24, num_layers: 1, num_heads: 2, positions: rotary, norm: rms_norm, activation: "
        "swiglu, bias: false, rope_scaling: llama3, rope_factor: 8, rope_original_length: 64",
        "d_model: 24, num_layers: 1, num_heads: 2, positions: rotary, norm: rms_norm, activation: "
        "swiglu, bias_in: attention, head_dim: 16",
        "d_model: 24, num_layers: 1, num_heads: 5, positions: rotary, norm: rms_norm, activation: "
        "swiglu, bias_in: mlp, head_dim: 6",
        // Shapes that have no name elsewhere.
        "d_model: 24, num_layers: 2, num_heads: 2, head_dim: 8",
        "d_model: 24, num_layers: 2, num_heads: 2, bias_in: mlp",
        "d_model: 24, num_layers: 2, num_heads: 2, positions: rotary, rope_scaling: llama3",
        "d_model: 24, num_layers: 2, num_heads: 4, num_kv_heads: 2, bias: false",
        "d_model: 24, num_layers: 2, num_heads: 2, norm: rms_norm, activation: swiglu, norm_eps: "
        "3e-6"}) {
    SCOPED_TRACE(keys);
    const auto model = make_model(model_families().front());
    Schema schema;
    model->declare(schema);
    schema.load_text(fmt::format("model: {{{}}}", keys), "test.yaml");
    schema.finish();
    model->resolve(schema, 31, {17, 17});
    const std::string text = model->external_config();
    const auto again = model_from_external_config(text, "config.json");
    EXPECT_EQ(again->external_config(), text);
    EXPECT_EQ(again->vocab_size(), 31);
    EXPECT_EQ(again->max_lengths().target, 17);
    const auto ours = model->parameters(), theirs = again->parameters();
    ASSERT_EQ(ours.size(), theirs.size());
    for (size_t i = 0; i < ours.size(); ++i) {
      EXPECT_EQ(ours[i].name, theirs[i].name);
      EXPECT_EQ(ours[i].shape, theirs[i].shape);
      EXPECT_EQ(ours[i].external, theirs[i].external);
    }
  }
}

TEST(ExternalConfig, WhatCannotBeExpressedIsRefusedByField) {
  const std::pair<Json, const char*> cases[] = {
      {changed(gpt2(), "model_type", "mamba"), "model_type"},
      {changed(gpt2(), "model_type", nullptr), "model_type"},
      {changed(gpt2(), "model_type", 5), "model_type"},
      {changed(gpt2(), "activation_function", "tanh"), "activation_function"},
      {changed(gpt2(), "activation_function", 3), "activation_function"},
      {changed(gpt2(), "scale_attn_weights", false), "scale_attn_weights"},
      {changed(gpt2(), "scale_attn_by_inverse_layer_idx", true), "scale_attn_by_inverse_layer_idx"},
      {changed(gpt2(), "add_cross_attention", true), "add_cross_attention"},
      {changed(gpt2(), "n_head", 5), "n_head"},
      {changed(gpt2(), "n_embd", 0), "n_embd"},
      {changed(gpt2(), "n_embd", -48), "n_embd"},
      {changed(gpt2(), "n_embd", 48.5), "n_embd"},
      {changed(gpt2(), "n_embd", "48"), "n_embd"},
      {changed(gpt2(), "n_embd", nullptr), "n_embd"},
      {changed(gpt2(), "n_embd", 18446744073709551615u), "n_embd"},
      {changed(gpt2(), "n_layer", 1e9), "n_layer"},
      {changed(gpt2(), "n_inner", Json::array({1})), "n_inner"},
      {changed(gpt2(), "vocab_size", 1 << 25), "vocab_size"},
      {changed(gpt2(), "tie_word_embeddings", "yes"), "tie_word_embeddings"},
      {changed(gpt2(), "layer_norm_epsilon", 0), "layer_norm_epsilon"},
      {changed(gpt2(), "layer_norm_epsilon", "1e-5"), "layer_norm_epsilon"},
      {changed(gpt2(), "quantization_config", Json::object()), "quantization_config"},
      {changed(llama(), "hidden_act", "gelu"), "hidden_act"},
      {changed(llama(), "num_key_value_heads", 3), "num_key_value_heads"},
      {changed(changed(llama(), "head_dim", nullptr), "num_attention_heads", 64),
       "num_attention_heads"},  // width 1 is odd
      {changed(changed(llama(), "head_dim", nullptr), "num_attention_heads", 6),
       "num_attention_heads"},
      {changed(llama(), "head_dim", 15), "head_dim"},
      {changed(llama(), "head_dim", 0), "head_dim"},
      {changed(llama(), "mlp_bias", 1), "mlp_bias"},
      {changed(llama(), "sliding_window", 128), "sliding_window"},
      {changed(llama(), "rope_scaling", {{"type", "yarn"}, {"factor", 2.0}}), "rope_scaling.type"},
      {changed(llama(), "rope_scaling", {{"type", "linear"}}), "rope_scaling.factor"},
      {changed(llama(), "rope_scaling", {{"type", "linear"}, {"factor", 0.5}}),
       "rope_scaling.factor"},
      {changed(llama(), "rope_parameters", {{"rope_type", "llama3"}}), "rope_parameters.factor"},
      {changed(llama(), "rope_parameters",
               {{"rope_type", "llama3"},
                {"factor", 8.0},
                {"low_freq_factor", 4.0},
                {"high_freq_factor", 4.0},
                {"original_max_position_embeddings", 64}}),
       "rope_parameters.low_freq_factor"},
      {changed(llama(), "rope_parameters", {{"partial_rotary_factor", 0.5}}),
       "rope_parameters.partial_rotary_factor"},
      {changed(llama(), "rope_parameters", {{"rope_theta", -1}}), "rope_parameters.rope_theta"},
      {changed(llama(), "rope_parameters", "default"), "rope_parameters"},
      {{{"model_type", "millrace"}}, "millrace"},
      {{{"model_type", "millrace"}, {"millrace", {{"family", "other"}}}}, "model_type"},
  };
  for (const auto& [config, field] : cases) {
    SCOPED_TRACE(config.dump());
    const ErrorFields e = refusal(config.dump());
    EXPECT_NE(e.where.find(fmt::format("config.json: `{}`", field)), std::string::npos) << e.where;
    EXPECT_FALSE(e.expected.empty());
    EXPECT_FALSE(e.got.empty());
    EXPECT_FALSE(e.remedy.empty());
    EXPECT_EQ(e.code, ErrorCode::config);
  }
}

TEST(ExternalConfig, OurOwnFormIsNotTrustedEither) {
  Json own = {
      {"model_type", "millrace"},
      {"millrace",
       {{"family", "gpt"}, {"max_length", 8}, {"model", {{"vocab_size", 9}, {"d_model", 8}}}}}};
  EXPECT_EQ(read(own)->vocab_size(), 9);
  for (const auto& [key, value] : {std::pair<const char*, Json>{"d_model", "wide"},
                                   {"d_model", 1e12},
                                   {"heads", 2},
                                   {"num_heads", 3},
                                   {"vocab_size", nullptr},
                                   {"vocab_size", 1},
                                   {"positions", "none"},
                                   {"dropout", 7},
                                   {"norm_eps", Json::object()}}) {
    Json bad = own;
    bad["millrace"]["model"][key] = value;
    SCOPED_TRACE(bad.dump());
    EXPECT_EQ(refusal(bad.dump()).code, ErrorCode::config);
  }
  own["millrace"]["max_length"] = 0;
  refusal(own.dump());
}

TEST(ExternalConfig, BytesThatAreNoConfig) {
  const std::string hostile[] = {
      "",
      "[]",
      "3",
      "{",
      "{\"model_type\": \"gpt2\"",
      "\xff\xfe",
      std::string("{\"a\": \"\0\"}", 10),
      std::string(200'000, '['),
      "{\"n_embd\": " + std::string(100'000, '[') + std::string(100'000, ']') + "}",
      "{\"a\": \"" + std::string(2'000'000, 'x') + "\"}"};
  for (const std::string& text : hostile) {
    SCOPED_TRACE(text.substr(0, 40));
    EXPECT_EQ(refusal(text).where, "config.json");
  }
}

}  // namespace
}  // namespace millrace
