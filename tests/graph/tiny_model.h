// Tiny models, gpt of both shapes unless said, with a few training steps to compare: what the tests
// of passes and plans share.
#pragma once
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/rng.h"
#include "exec/session.h"
#include "model/model.h"
#include "train/program.h"
#include "train/weights.h"

namespace millrace {

inline constexpr const char* kGpt2Keys = "d_model: 24, num_layers: 2, num_heads: 2";
inline constexpr const char* kLlamaKeys =
    "d_model: 24, num_layers: 2, num_heads: 4, num_kv_heads: 2, d_ff: 40, positions: rotary, norm: "
    "rms_norm, "
    "activation: swiglu, bias: false, tied_embeddings: false";

struct TinyModel {
  static constexpr int64_t kVocabulary = 29;
  Settings settings;
  std::unique_ptr<Model> model;
  Schema schema;
  BatchShape shape;

  // `keys` are the model's, as in a config: "d_model: 24, num_layers: 2".
  explicit TinyModel(const std::string& keys, BatchShape batch = {2, 12},
                     const std::string& family = "gpt")
      : model(make_model(family)), shape(batch) {
    settings.declare(schema);
    model->declare(schema);
    settings.batch_size = batch.batch;
    // A sequence of states has two more than its row has places.
    settings.max_length = batch.length + (model->takes().states ? 2 : 0);
    schema.load_text("model: {" + keys + "}\n", "test.yaml");
    schema.finish();
    model->resolve(schema, kVocabulary, {settings.max_length, batch.source});
  }

  Graph step_graph() const { return build_step_graph(*model, settings, shape); }
};

// What `steps` updates give: losses, gradient norms and every parameter at the end.
struct Trained {
  std::vector<float> losses, norms;
  std::vector<std::vector<float>> parameters;
  friend bool operator==(const Trained&, const Trained&) = default;
};

// Plan `plan` of the session is a step; random tokens, the same every time. `one_batch`: the same
// in every step too. `initialized` is called when the parameters have their first values.
inline Trained train_steps(Session& session, size_t plan, const TinyModel& tiny, int steps,
                           bool one_batch = false, const std::function<void()>& initialized = {}) {
  initialize(session, *tiny.model, 1);
  if (initialized) initialized();
  for (const auto& [name, type] : session.layout().type)
    if (name.starts_with("m.") || name.starts_with("v."))
      session.write<float>(name, std::vector<float>(static_cast<size_t>(type.numel())));
  const auto tokens_per_step = static_cast<size_t>(tiny.shape.batch * tiny.shape.length);
  Trained done;
  for (int step = 0; step < steps; ++step) {
    RandomStream random(9, RandomUse::test, static_cast<uint64_t>(one_batch ? 0 : step));
    std::vector<int32_t> tokens, targets;
    for (size_t i = 0; i < tokens_per_step; ++i) {
      tokens.push_back(static_cast<int32_t>(random.below(TinyModel::kVocabulary)));
      targets.push_back(
          random.below(10) == 0 ? -1 : static_cast<int32_t>(random.below(TinyModel::kVocabulary)));
    }
    if (tiny.shape.source > 0) {
      std::vector<int32_t> source, lengths;
      for (int64_t i = 0; i < tiny.shape.batch * tiny.shape.source; ++i)
        source.push_back(static_cast<int32_t>(random.below(TinyModel::kVocabulary)));
      for (int64_t i = 0; i < tiny.shape.batch; ++i)
        lengths.push_back(
            static_cast<int32_t>(1 + random.below(static_cast<uint64_t>(tiny.shape.source))));
      session.write<int32_t>("source", source);
      session.write<int32_t>("source_lengths", lengths);
      if (session.has("source_open")) {
        // Every third word of a source is rare, and a word of it is the first target of its row.
        for (size_t i = 0; i < source.size(); i += 3) source[i] += TinyModel::kVocabulary;
        session.write<int32_t>("source_open", source);
        for (int64_t row = 0; row < tiny.shape.batch; ++row)
          targets[static_cast<size_t>(row * tiny.shape.length)] =
              source[static_cast<size_t>(row * tiny.shape.source)];
      }
    }
    if (tiny.shape.packed) {
      // Each row is two sequences.
      std::vector<int32_t> segments, positions;
      for (size_t i = 0; i < tokens_per_step; ++i) {
        const auto at = static_cast<int32_t>(i % static_cast<size_t>(tiny.shape.length)),
                   half = static_cast<int32_t>(tiny.shape.length / 2);
        segments.push_back(at < half ? 0 : 1);
        positions.push_back(at < half ? at : at - half);
      }
      session.write<int32_t>("segments", segments);
      session.write<int32_t>("positions", positions);
    }
    const float scale = 1.0f / static_cast<float>(tokens_per_step), rate = 3e-3f,
                number = static_cast<float>(step + 1);
    if (session.has("states")) {
      std::vector<float> states, next, weights;
      std::vector<int32_t> parts;
      for (size_t i = 0; i < tokens_per_step; ++i) {
        weights.push_back(targets[i] < 0 ? 0.0f : 1.0f);
        parts.push_back(tokens[i] % 3);
        for (int64_t c = 0; c < tiny.model->vocab_size(); ++c) {
          states.push_back(static_cast<float>(random.normal()));
          next.push_back(static_cast<float>(random.normal()));
        }
      }
      session.write<float>("states", states);
      session.write<float>("state_targets", next);
      session.write<float>("weights", weights);
      session.write<int32_t>("parts", parts);
      if (session.has("class_targets")) {
        const auto classes = static_cast<uint64_t>(tiny.model->takes().classes);
        std::vector<int32_t> labels(tokens_per_step, -1);
        for (size_t i = 2; i < tokens_per_step; i += 3)
          labels[i] = static_cast<int32_t>(random.below(classes));
        const float weight = 3;
        session.write<int32_t>("class_targets", labels);
        session.write<float>("class_scale", std::span(&weight, 1));
      }
    } else {
      session.write<int32_t>("tokens", tokens);
      session.write<int32_t>("targets", targets);
    }
    session.write<float>("loss_scale", std::span(&scale, 1));
    session.write<float>("learning_rate", std::span(&rate, 1));
    session.write<float>("step", std::span(&number, 1));
    if (session.has("random_key"))
      session.write<int32_t>("random_key", std::vector<int32_t>{5, 0, step, 0});
    session.run(plan);
    done.losses.push_back(session.scalar_output(plan, "loss"));
    done.norms.push_back(session.scalar_output(plan, "grad_norm"));
  }
  for (const Parameter& p : tiny.model->parameters())
    done.parameters.push_back(session.read<float>(p.name));
  return done;
}

}  // namespace millrace
