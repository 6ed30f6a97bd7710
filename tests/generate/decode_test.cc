// Generation over a key/value cache: token by token, by chunks and all at once give the logits that
// the float64 reference gives without a cache plan; generate() walks the cache as it says.
//
// Tolerance of logits against float64: 8 eps sqrt(2 L n) of the largest logit, n the longest sum of
// a layer (its MLP's width or the number of tokens): rounding errors of 2 L sums one after another
// add up like a random walk, and 8 is the margin the op tests have.
#include <gtest/gtest.h>

#include <cmath>

#include "cpu/gemm.h"
#include "cpu/machine.h"
#include "cpu/parallel.h"
#include "exec/reference.h"
#include "tests/graph/poisoned_backend.h"
#include "tests/graph/tiny_model.h"
#include "train/generate.h"

namespace millrace {
namespace {

constexpr int64_t kDecodedLength = 23, kLayers = 2;

struct Shapes {
  const char* name;
  const char* keys;
  int64_t longest_sum;
};
const Shapes kShapes[] = {
    {"gpt2", kGpt2Keys, 96},
    {"llama", kLlamaKeys, 40},
    {"one_kv_head",
     "d_model: 24, num_layers: 2, num_heads: 6, num_kv_heads: 1, positions: rotary, bias: false",
     96},
    {"learned_grouped",
     "d_model: 48, num_layers: 2, num_heads: 4, num_kv_heads: 2, norm: rms_norm, d_ff: 64", 64},
};

// Ten times the usual width: attention that is far from uniform.
std::vector<float> wide_values(const Parameter& p, size_t index) {
  std::vector<float> values(static_cast<size_t>(p.shape.numel()));
  initial_values(p, index, 3, 0, values);
  if (p.init == Parameter::Init::normal)
    for (float& v : values) v *= 10;
  return values;
}

std::vector<int32_t> random_tokens(int64_t count) {
  RandomStream random(4, RandomUse::test);
  std::vector<int32_t> tokens;
  for (int64_t i = 0; i < count; ++i)
    tokens.push_back(static_cast<int32_t>(random.below(TinyModel::kVocabulary)));
  return tokens;
}

class Decode : public testing::TestWithParam<Shapes> {
 protected:
  void SetUp() override { cpu::gemm_set_measuring(false); }
  void TearDown() override {
    cpu::gemm_set_measuring(true);
    cpu::set_threads(0);
  }

  void write_weights(Session& session) const {
    size_t index = 0;
    for (const Parameter& p : tiny.model->parameters())
      session.write<float>(p.name, wide_values(p, index++));
  }
  // Runs `count` tokens from `from` on through plan `plan` of length T; logits behind row `row`.
  static std::vector<float> run(Session& session, size_t plan, int64_t T, int64_t position,
                                std::vector<int32_t> tokens, int32_t row) {
    tokens.resize(static_cast<size_t>(T), 0);
    const auto at = static_cast<int32_t>(position);
    session.write<int32_t>(prompt_leaf(T), tokens);
    session.write<int32_t>("position", std::span(&at, 1));
    session.write<int32_t>("prompt_row", std::span(&row, 1));
    session.run(plan);
    return session.output(plan, "logits");
  }

  TinyModel tiny{GetParam().keys, {1, kDecodedLength}};
};

INSTANTIATE_TEST_SUITE_P(Tiny, Decode, testing::ValuesIn(kShapes),
                         [](const auto& tested) { return std::string(tested.param.name); });

TEST_P(Decode, EveryWayThroughTheCacheGivesTheSameLogits) {
  const auto tokens = random_tokens(kDecodedLength);
  // The truth: all tokens at once, plain loops in double.
  std::vector<std::vector<double>> truth;
  double largest = 0;
  {
    const Graph graph = build_decode_graph(*tiny.model, {1, kDecodedLength}, kDecodedLength);
    Reference<double> reference(graph);
    size_t index = 0;
    for (const Parameter& p : tiny.model->parameters()) {
      const auto values = wide_values(p, index++);
      reference.values(p.name).assign(values.begin(), values.end());
    }
    reference.ids(prompt_leaf(kDecodedLength)) = tokens;
    reference.ids("position") = {0};
    for (int32_t row = 0; row < kDecodedLength; ++row) {
      reference.ids("prompt_row") = {row};
      reference.run();
      truth.push_back(reference.value(graph.outputs.at("logits")));
      for (double x : truth.back()) largest = std::max(largest, std::fabs(x));
    }
  }
  const double tolerance =
      8 * std::numeric_limits<float>::epsilon() * largest *
      std::sqrt(2.0 * kLayers *
                static_cast<double>(std::max(GetParam().longest_sum, kDecodedLength)));

  for (const cpu::Isa isa : {cpu::Isa::avx2, cpu::Isa::avx512}) {
    if (!cpu::supports(isa)) continue;
    // Chunks of 5 and 16 do not divide 23: the last one is filled up, and over the cache's end.
    for (int64_t T : {int64_t{1}, int64_t{5}, int64_t{16}, kDecodedLength}) {
      SCOPED_TRACE(fmt::format("{} T={}", cpu::isa_name(isa), T));
      PoisonedBackend backend(isa);  // rows of the cache that nobody wrote are NaN
      const Plan plan =
          make_plan(build_decode_graph(*tiny.model, {1, T}, kDecodedLength), {}, backend);
      Session session(backend, {&plan});
      write_weights(session);
      for (int64_t from = 0; from < kDecodedLength; from += T) {
        const int64_t count = std::min(T, kDecodedLength - from);
        const std::vector<int32_t> part(tokens.begin() + from, tokens.begin() + from + count);
        for (int64_t row = 0; row < count; ++row) {
          const auto logits = run(session, 0, T, from, part, static_cast<int32_t>(row));
          const auto& wanted = truth[static_cast<size_t>(from + row)];
          ASSERT_EQ(logits.size(), wanted.size());
          for (size_t v = 0; v < wanted.size(); ++v)
            ASSERT_TRUE(std::fabs(static_cast<double>(logits[v]) - wanted[v]) <= tolerance)
                << "token " << from + row << " logit " << v << ": " << logits[v] << " against "
                << wanted[v] << ", tolerance " << tolerance;
        }
      }
      EXPECT_TRUE(backend.state().fence_intact()) << "wrote behind the state";
      EXPECT_TRUE(backend.scratch().fence_intact()) << "wrote behind the scratch arena";
    }
  }
}

// What generate() promises, by the slow way: the window anew, token by token, for every draw.
TEST_P(Decode, GenerateKeepsTheNewerHalfWhenTheCacheIsFull) {
  const auto backend = cpu::make_backend(cpu::best_isa());
  for (const int64_t capacity : {int64_t{1}, int64_t{7}, int64_t{12}, kDecodedLength})
    for (const int64_t prompt_size : {1, 2, 5, 20, 40}) {
      SCOPED_TRACE(fmt::format("capacity {}, prompt {}", capacity, prompt_size));
      const DecodePlans plans = make_decode_plans(*tiny.model, capacity, {}, *backend);
      Session session(*backend, {&plans.prefill, &plans.decode});
      write_weights(session);
      const auto prompt = random_tokens(prompt_size);
      const GenerateOptions options{.max_tokens = 20, .temperature = 0};
      std::vector<int32_t> seen;
      const Generated g = generate(session, {0, 1, capacity}, TinyModel::kVocabulary, prompt,
                                   options, [&](int32_t token) {
                                     seen.push_back(token);
                                     return true;
                                   });
      std::vector<int32_t> all = prompt, window = prompt;
      int64_t again = 0;
      for (int64_t i = 0; i < options.max_tokens; ++i) {
        if (std::ssize(window) > capacity) {
          window.erase(window.begin(), window.end() - std::max<int64_t>(1, capacity / 2));
          ++again;
        }
        std::vector<float> logits;
        for (int64_t t = 0; t < std::ssize(window); ++t)
          logits = run(session, 1, 1, t, {window[static_cast<size_t>(t)]}, 0);
        const auto best =
            static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
        window.push_back(best);
        all.push_back(best);
      }
      EXPECT_EQ(g.tokens, all);
      EXPECT_EQ(seen, std::vector<int32_t>(all.end() - options.max_tokens, all.end()));
      // Every token was put in at least once; more when the window was put in anew.
      const int64_t once = prompt_size + options.max_tokens - 1;
      EXPECT_EQ(again > 0, capacity < once);
      if (capacity >= once) {
        EXPECT_EQ(g.decoded + g.prefilled, once);
      }
    }
}

TEST_P(Decode, TheSeedDecidesAndThreadsDoNot) {
  const auto backend = cpu::make_backend(cpu::best_isa());
  const DecodePlans plans = make_decode_plans(*tiny.model, kDecodedLength, {}, *backend);
  Session session(*backend, {&plans.prefill, &plans.decode});
  write_weights(session);
  auto text = [&](uint64_t seed, int threads) {
    cpu::set_threads(threads);
    return generate(session, {0, 1, kDecodedLength}, TinyModel::kVocabulary, random_tokens(9),
                    {.max_tokens = 40, .temperature = 1.5, .top_k = 20, .top_p = 0.9, .seed = seed})
        .tokens;
  };
  const auto one = text(1, 2);
  EXPECT_EQ(one.size(), 49u);
  EXPECT_EQ(one, text(1, 1));
  EXPECT_EQ(one, text(1, 3));
  EXPECT_NE(one, text(2, 2));
}

TEST_P(Decode, StopsWhenAskedAndDrawsAllowedTokensOnly) {
  const auto backend = cpu::make_backend(cpu::best_isa());
  const DecodePlans plans = make_decode_plans(*tiny.model, kDecodedLength, {}, *backend);
  Session session(*backend, {&plans.prefill, &plans.decode});
  write_weights(session);
  int64_t calls = 0;
  const Generated g = generate(session, {0, 1, kDecodedLength}, 4, {1, 2, 3},
                               {.max_tokens = 100, .temperature = 5}, [&](int32_t token) {
                                 EXPECT_TRUE(token >= 0 && token < 4) << token;
                                 return ++calls < 60;
                               });
  EXPECT_EQ(calls, 60);
  EXPECT_EQ(g.tokens.size(), 63u);
  EXPECT_EQ(generate(session, {0, 1, kDecodedLength}, 4, {1}, {.max_tokens = 0}).tokens,
            (std::vector<int32_t>{1}));
}

TEST_P(Decode, TheCacheIsAccountedAsWhatItIs) {
  const auto backend = cpu::make_backend(cpu::best_isa());
  const Programs programs = make_programs(*tiny.model, tiny.settings, tiny.shape, *backend);
  int64_t bytes = 0;
  for (const Node& n : programs.generation.decode.graph.nodes)
    if (n.leaf == Leaf::cache) bytes += aligned(n.out[0].bytes());
  EXPECT_EQ(std::count_if(programs.generation.decode.graph.nodes.begin(),
                          programs.generation.decode.graph.nodes.end(),
                          [](const Node& n) { return n.leaf == Leaf::cache; }),
            2 * kLayers);
  constexpr auto kCache = static_cast<size_t>(MemoryClass::cache);
  EXPECT_EQ(programs.generation.decode.at_peak[kCache], bytes);
  EXPECT_EQ(programs.generation.prefill.at_peak[kCache], bytes);
  EXPECT_EQ(programs.step().at_peak[kCache], 0);
  EXPECT_EQ(memory_class_name(MemoryClass::cache), "key/value cache");
}

TEST(DecodeFaults, LogitsThatAreNotFiniteAreAnError) {
  TinyModel tiny(kGpt2Keys, {1, 8});
  const auto backend = cpu::make_backend(cpu::best_isa());
  const DecodePlans plans = make_decode_plans(*tiny.model, 8, {}, *backend);
  Session session(*backend, {&plans.prefill, &plans.decode});
  initialize(session, *tiny.model, 1);
  session.write<float>("norm.weight", std::vector<float>(24, NAN));
  EXPECT_THROW(generate(session, {0, 1, 8}, TinyModel::kVocabulary, {1}, {.max_tokens = 1}), Error);
}

}  // namespace
}  // namespace millrace
