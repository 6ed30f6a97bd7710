#include "train/weights.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <numeric>

#include "cpu/cpu_backend.h"
#include "cpu/gemm.h"
#include "train/checkpoint.h"
#include "train/program.h"

namespace millrace {
namespace {

std::vector<float> counted(const Shape& shape) {
  std::vector<float> values(static_cast<size_t>(shape.numel()));
  std::iota(values.begin(), values.end(), 1.0f);
  return values;
}

auto fetch_from(const std::vector<NamedTensor>& tensors) {
  return [&tensors](const std::string& name) {
    for (const NamedTensor& t : tensors)
      if (t.name == name) return t;
    ADD_FAILURE() << "asked for " << name;
    return NamedTensor{};
  };
}

TEST(ExternalWeights, SplitAndTransposedAsHuggingFaceStoresThem) {
  // [in=2, out=3] split 2 + 1, each part stored [out, in].
  Parameter p{.name = "qkv",
              .shape = {2, 3},
              .external = {"q", "k"},
              .part_widths = {2, 1},
              .transposed = true};
  const auto tensors = to_external(p, {1, 2, 3, 4, 5, 6});
  ASSERT_EQ(tensors.size(), 2u);
  EXPECT_EQ(tensors[0].name, "q");
  EXPECT_EQ(tensors[0].shape, (std::vector<int64_t>{2, 2}));
  EXPECT_EQ(tensors[0].values, (std::vector<float>{1, 4, 2, 5}));
  EXPECT_EQ(tensors[1].name, "k");
  EXPECT_EQ(tensors[1].shape, (std::vector<int64_t>{1, 2}));
  EXPECT_EQ(tensors[1].values, (std::vector<float>{3, 6}));
}

TEST(ExternalWeights, EveryLayoutComesBack) {
  for (const Shape& shape : {Shape{7}, Shape{1, 1}, Shape{5, 9}, Shape{4, 12}})
    for (bool transposed : {false, true})
      for (int parts : {1, 2, 3}) {
        if (shape.last() < parts) continue;
        Parameter p{.name = "p",
                    .shape = shape,
                    .external = {},
                    .part_widths = {},
                    .transposed = transposed};
        int64_t left = shape.last();
        for (int i = 0; i < parts; ++i) {
          p.external.push_back("part" + std::to_string(i));
          const int64_t width = i + 1 == parts ? left : 1;
          left -= width;
          if (parts > 1) p.part_widths.push_back(width);
        }
        const auto values = counted(shape);
        const auto tensors = to_external(p, values);
        ASSERT_EQ(tensors.size(), static_cast<size_t>(parts));
        size_t elements = 0;
        for (const NamedTensor& t : tensors) {
          int64_t size = 1;
          for (int64_t d : t.shape) size *= d;
          EXPECT_EQ(static_cast<size_t>(size), t.values.size());
          elements += t.values.size();
        }
        EXPECT_EQ(elements, values.size());
        EXPECT_EQ(from_external(p, fetch_from(tensors)), values);
      }
}

TEST(ExternalWeights, AnotherShapeIsRefusedByName) {
  const Parameter p{
      .name = "w", .shape = {2, 3}, .external = {"theirs"}, .part_widths = {}, .transposed = true};
  for (const std::vector<int64_t>& shape :
       {std::vector<int64_t>{2, 3}, {6}, {3, 2, 1}, {1, 1, 1, 1, 1, 1, 3, 2}}) {
    try {
      from_external(p, [&](const std::string& name) {
        return NamedTensor{name, shape, std::vector<float>(6)};
      });
      FAIL() << "shape of rank " << shape.size() << " was taken";
    } catch (const Error& e) {
      EXPECT_EQ(e.fields().where, "theirs");
      EXPECT_EQ(e.fields().expected, "[3,2]");
    }
  }
}

TEST(InitialValues, FollowTheTableAndTheSeed) {
  Parameter p{.name = "w", .shape = {200, 50}, .init_std = 0.02, .external = {}, .part_widths = {}};
  auto values_of = [&](size_t index, uint64_t seed) {
    std::vector<float> values(10000);
    // In pieces, as threads draw them.
    for (const auto& [begin, end] : {std::pair{4001, 10000}, {0, 17}, {17, 4001}})
      initial_values(
          p, index, seed, begin,
          std::span(values).subspan(static_cast<size_t>(begin), static_cast<size_t>(end - begin)));
    return values;
  };
  const auto one = values_of(3, 7);
  std::vector<float> whole(one.size());
  initial_values(p, 3, 7, 0, whole);
  EXPECT_EQ(one, whole);
  EXPECT_NE(one, values_of(4, 7));
  EXPECT_NE(one, values_of(3, 8));
  double sum = 0, squares = 0;
  for (float v : one) {
    sum += v;
    squares += static_cast<double>(v) * v;
  }
  const auto n = static_cast<double>(one.size());
  EXPECT_NEAR(sum / n, 0, 5 * 0.02 / std::sqrt(n));  // five standard errors
  EXPECT_NEAR(std::sqrt(squares / n), 0.02, 5 * 0.02 / std::sqrt(2 * n));
  p.init = Parameter::Init::ones;
  EXPECT_EQ(values_of(0, 7), std::vector<float>(10000, 1.0f));
  p.init = Parameter::Init::zeros;
  EXPECT_EQ(values_of(0, 7), std::vector<float>(10000, 0.0f));
}

// A model with its session, small enough to make in a moment.
struct Loaded {
  Settings settings;
  std::unique_ptr<Model> model = make_model("gpt");
  Schema schema;
  std::unique_ptr<Backend> backend = cpu::make_backend(cpu::Isa::avx2);
  std::unique_ptr<Plan> plan;
  std::unique_ptr<Session> session;

  explicit Loaded(const std::string& model_keys, uint64_t seed) {
    cpu::gemm_set_measuring(false);
    settings.declare(schema);
    model->declare(schema);
    schema.load_text("model: {" + model_keys + "}\n", "test.yaml");
    schema.finish();
    model->resolve(schema, 11, {6, 6});
    plan = std::make_unique<Plan>(make_plan(build_eval_graph(*model, {1, 6}), {}, *backend));
    session = std::make_unique<Session>(*backend, std::vector<const Plan*>{plan.get()});
    initialize(*session, *model, seed);
    cpu::gemm_set_measuring(true);
  }
};

const char* const kGpt2 = "d_model: 8, num_layers: 2, num_heads: 2";
const char* const kLlama =
    "d_model: 8, num_layers: 2, num_heads: 4, num_kv_heads: 2, d_ff: 12, positions: rotary, norm: "
    "rms_norm, activation: swiglu, bias: false, tied_embeddings: false";

// The files of a checkpoint, without the commit around them.
void write_model(const fs::path& folder, const Loaded& loaded) {
  CheckpointContent content;
  content.tensors = state_tensors(*loaded.session, *loaded.plan);
  content.texts["config.json"] = loaded.model->external_config();
  std::map<std::string, FileDigest> digests;
  create_folders(folder);
  write_checkpoint_files(folder, content, *loaded.model, &digests);
  for (const auto& [name, digest] : digests)
    EXPECT_EQ(digest, digest_of_file(folder / name)) << name;
}

fs::path fresh_folder(const std::string& name) {
  const fs::path folder = fs::path(::testing::TempDir()) / ("weights_test_" + name);
  fs::remove_all(folder);
  return folder;
}

TEST(SavedModel, ComesBackBitForBit) {
  for (const char* keys : {kGpt2, kLlama}) {
    SCOPED_TRACE(keys);
    const fs::path folder = fresh_folder("round_trip");
    Loaded saved(keys, 1), other(keys, 2);
    write_model(folder, saved);
    EXPECT_EQ(read_file(folder / "config.json"), saved.model->external_config());
    bool differed = false;
    for (const Parameter& p : saved.model->parameters())
      differed =
          differed || saved.session->read<float>(p.name) != other.session->read<float>(p.name);
    EXPECT_TRUE(differed) << "the seeds gave the same weights: nothing is shown";
    load_model(folder, *other.session, *other.model);
    for (const Parameter& p : saved.model->parameters())
      EXPECT_EQ(saved.session->read<float>(p.name), other.session->read<float>(p.name)) << p.name;
    fs::remove_all(folder);
  }
}

TEST(SavedModel, HasTheNamesAndShapesOfTheEcosystem) {
  const fs::path folder = fresh_folder("names");
  Loaded llama(kLlama, 1);
  write_model(folder, llama);
  const SafetensorsFile file(folder / "model.safetensors");
  EXPECT_EQ(file.metadata().at("format"), "pt");
  const std::pair<const char*, std::vector<int64_t>> expected[] = {
      {"model.embed_tokens.weight", {11, 8}},
      {"lm_head.weight", {11, 8}},
      {"model.layers.1.self_attn.q_proj.weight", {8, 8}},
      {"model.layers.1.self_attn.k_proj.weight", {4, 8}},
      {"model.layers.1.mlp.up_proj.weight", {12, 8}},
      {"model.layers.1.mlp.down_proj.weight", {8, 12}},
      {"model.norm.weight", {8}}};
  for (const auto& [name, shape] : expected) {
    const auto* entry = file.find(name);
    ASSERT_TRUE(entry) << name;
    EXPECT_EQ(entry->shape, shape) << name;
    EXPECT_EQ(entry->dtype, "F32");
  }
  // k_proj [out, in] is columns 8..12 of our qkv [in, out].
  const auto qkv = llama.session->read<float>("layers.1.attention.qkv.weight");
  const auto k = file.to_f32(*file.find("model.layers.1.self_attn.k_proj.weight"));
  for (size_t out = 0; out < 4; ++out)
    for (size_t in = 0; in < 8; ++in) EXPECT_EQ(k[out * 8 + in], qkv[in * 16 + 8 + out]);
  fs::remove_all(folder);
}

TEST(SavedModel, OfAnotherModelIsRefusedWithTheTensorNamed) {
  const fs::path folder = fresh_folder("other");
  Loaded small(kGpt2, 1);
  write_model(folder, small);
  auto message = [&](const char* keys) -> std::string {
    Loaded into(keys, 1);
    try {
      load_model(folder, *into.session, *into.model);
    } catch (const Error& e) {
      return e.what();
    }
    return "nothing was refused";
  };
  EXPECT_NE(message("d_model: 16, num_layers: 2, num_heads: 2").find("transformer.wte.weight"),
            std::string::npos);
  EXPECT_NE(message("d_model: 8, num_layers: 3, num_heads: 2")
                .find("transformer.h.2.ln_1.weight is missing"),
            std::string::npos);
  EXPECT_NE(message(kLlama).find("model.embed_tokens.weight is missing"), std::string::npos);
  fs::remove_all(folder);
}

// As the ecosystem stores models: without a head, in several files, in 16 bits.
TEST(SavedModel, BareModelInShardsOf16Bits) {
  const fs::path folder = fresh_folder("shards");
  Loaded saved(kGpt2, 1), other(kGpt2, 2);
  create_folders(folder);
  std::string map;
  int count = 0;
  for (const Parameter& p : saved.model->parameters()) {
    auto values = saved.session->read<float>(p.name);
    std::vector<uint16_t> bits;
    for (float& v : values) {
      bits.push_back(static_cast<uint16_t>(std::bit_cast<uint32_t>(v) >> 16));
      v = std::bit_cast<float>(static_cast<uint32_t>(bits.back()) << 16);
    }
    saved.session->write<float>(p.name, values);
    ASSERT_EQ(p.external.size(), 1u);
    const std::string name = p.external[0].substr(std::string("transformer.").size()),
                      file = fmt::format("part-{}.safetensors", count++);
    const TensorToWrite tensor{name, "BF16", std::vector<int64_t>(p.shape.begin(), p.shape.end()),
                               std::as_bytes(std::span(bits))};
    OutputFile written(folder / file, OutputFile::Mode::truncate);
    write_safetensors(written, std::span(&tensor, 1), {});
    map += fmt::format("{}\"{}\": \"{}\"", map.empty() ? "" : ", ", name, file);
  }
  write_file(folder / "model.safetensors.index.json", "{\"weight_map\": {" + map + "}}");
  check_weights(folder, *other.model);
  load_model(folder, *other.session, *other.model);
  for (const Parameter& p : saved.model->parameters())
    EXPECT_EQ(saved.session->read<float>(p.name), other.session->read<float>(p.name)) << p.name;
  EXPECT_THROW(check_weights(folder, *Loaded(kLlama, 1).model), Error);
  EXPECT_THROW(check_weights(folder, *Loaded("d_model: 8, num_layers: 3, num_heads: 2", 1).model),
               Error);
  EXPECT_THROW(check_weights(folder, *Loaded("d_model: 16, num_layers: 2, num_heads: 2", 1).model),
               Error);
  fs::remove_all(folder);
}

}  // namespace
}  // namespace millrace
