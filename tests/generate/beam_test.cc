// Beam search against the slow way: every hypothesis of every source or prompt alone, from its
// first token on, with all candidates sorted.
#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "cpu/cpu_backend.h"
#include "cpu/gemm.h"
#include "cpu/machine.h"
#include "tests/graph/tiny_model.h"
#include "tests/model/small_family.h"
#include "tests/parity/cuda_device.h"
#include "train/beam_search.h"
#include "train/generate.h"

namespace millrace {
namespace {

// Behind the longest prompts there is room for fewer tokens than kLength.
constexpr int64_t kSource = 6, kLength = 7, kPositions = kSource + kLength - 3;
constexpr TargetTokens kTokens{.start = 1, .end = 2, .unknown = 0, .count = 12};

struct Case {
  std::string family;
  bool cuda;
};

class BeamTest : public testing::TestWithParam<Case> {
 protected:
  void SetUp() override { cpu::gemm_set_measuring(false); }
  void TearDown() override { cpu::gemm_set_measuring(true); }

  // Sharper than at first, so that hypotheses differ.
  static void write_weights(Session& session, const Model& model) {
    initialize(session, model, 1);
    for (const Parameter& p : model.parameters()) {
      auto values = session.read<float>(p.name);
      for (float& v : values) v *= p.init == Parameter::Init::normal ? 8.0f : 1.0f;
      session.write<float>(p.name, values);
    }
  }
  static std::vector<std::vector<int32_t>> sources(size_t count) {
    std::vector<std::vector<int32_t>> list(count);
    RandomStream random(4, RandomUse::test);
    for (auto& source : list)
      for (uint64_t i = 1 + random.below(kSource); i > 0; --i)
        source.push_back(static_cast<int32_t>(random.below(TinyModel::kVocabulary)));
    return list;
  }
  std::vector<Hypothesis> found(const std::vector<std::vector<int32_t>>& list, int64_t at_once,
                                const BeamOptions& options) {
    BeamSession own(*tiny.model, {at_once, kSource, kLength}, options, {}, *backend);
    write_weights(own.session(), *tiny.model);
    own.refresh();
    std::vector<Hypothesis> all;
    for (size_t i = 0; i < list.size(); i += static_cast<size_t>(at_once)) {
      const size_t count = std::min(static_cast<size_t>(at_once), list.size() - i);
      std::vector<BeamSource> batch;
      for (size_t k = i; k < i + count; ++k) batch.push_back({list[k], list[k]});
      for (Hypothesis& h : own.beam().search(batch, kTokens)) all.push_back(std::move(h));
    }
    return all;
  }

  const bool pairs = make_model(GetParam().family)->takes().pairs;
  TinyModel tiny{"num_layers: 2, d_model: 32, num_heads: 4",
                 {2, pairs ? kLength : kPositions, false, kSource},
                 GetParam().family};
  std::unique_ptr<Backend> backend =
      GetParam().cuda ? open_cuda(0, {}) : cpu::make_backend(cpu::best_isa());
};

class SlowBeam {
 public:
  SlowBeam(const Model& model, Backend& backend)
      : pairs_(model.takes().pairs),
        positions_(model.max_lengths().target),
        plans_(make_decode_plans(model, positions_, {}, backend)),
        session_(backend, {&plans_.prefill, &plans_.decode}) {}
  Session& session() { return session_; }

  Hypothesis search(std::vector<int32_t> source, const BeamOptions& o) {
    const auto length = static_cast<int32_t>(source.size());
    if (pairs_) {
      source.resize(kSource);
      session_.write<int32_t>("source", source);
      session_.write<int32_t>("source_lengths", std::span(&length, 1));
      session_.run(0);
    }
    const std::vector<int32_t> before = pairs_ ? std::vector{kTokens.start} : source;
    const int64_t most = std::min(kLength, positions_ - std::ssize(before) + 1);
    const auto K = static_cast<size_t>(o.beam);
    std::vector<Hypothesis> live(1), done;
    auto finish = [&](Hypothesis h, size_t tokens) {
      h.score /= std::pow(static_cast<double>(tokens), o.length_penalty);
      done.push_back(h);
    };
    for (int64_t step = 0; step < most && done.size() < K && !live.empty(); ++step) {
      std::vector<Hypothesis> grown;
      for (const Hypothesis& h : live) {
        const auto logs = log_probabilities(before, h.tokens);
        for (int32_t v = 0; v < kTokens.count; ++v) {
          Hypothesis next = h;
          next.tokens.push_back(v);
          next.score += logs[static_cast<size_t>(v)];
          if (v == kTokens.end && step < o.min_length) continue;
          if (!repeats(next.tokens, o.no_repeat_ngram)) grown.push_back(next);
        }
      }
      std::stable_sort(grown.begin(), grown.end(),
                       [](const Hypothesis& a, const Hypothesis& b) { return a.score > b.score; });
      live.clear();
      for (size_t i = 0; i < grown.size() && i < 2 * K && live.size() < K; ++i) {
        if (grown[i].tokens.back() != kTokens.end) {
          live.push_back(grown[i]);
        } else if (i < K) {
          Hypothesis h = grown[i];
          h.tokens.pop_back();
          finish(h, h.tokens.size() + 1);
        }
      }
    }
    if (done.size() < K)
      for (const Hypothesis& h : live) finish(h, h.tokens.size());
    return *std::max_element(done.begin(), done.end(),
                             [](const auto& a, const auto& b) { return a.score < b.score; });
  }

 private:
  static bool repeats(const std::vector<int32_t>& tokens, int64_t n) {
    if (n < 1 || tokens.back() == kTokens.end) return false;
    for (size_t i = 0; i + static_cast<size_t>(n) < tokens.size(); ++i)
      if (std::equal(tokens.end() - n, tokens.end(), tokens.begin() + static_cast<long>(i)))
        return true;
    return false;
  }
  std::vector<double> log_probabilities(std::vector<int32_t> tokens,
                                        const std::vector<int32_t>& behind) {
    tokens.insert(tokens.end(), behind.begin(), behind.end());
    for (size_t i = 0; i < tokens.size(); ++i) {
      const int32_t token = tokens[i], zero = 0;
      const auto position = static_cast<int32_t>(i);
      session_.write<int32_t>(prompt_leaf(1), std::span(&token, 1));
      session_.write<int32_t>("position", std::span(&position, 1));
      session_.write<int32_t>("prompt_row", std::span(&zero, 1));
      session_.run(1);
    }
    const auto logits = session_.output(1, "logits");
    double sum = 0;
    for (const float x : logits) sum += std::exp(static_cast<double>(x));
    std::vector<double> logs;
    for (const float x : logits) logs.push_back(x - std::log(sum));
    return logs;
  }

  bool pairs_;
  int64_t positions_;
  DecodePlans plans_;
  Session session_;
};

std::vector<Case> cases() {
  std::vector<Case> list;
  for (const std::string& family :
       families_that([](const Model& m) { return m.logits_are_all(); })) {
    list.push_back({family, false});
    if (test_device().backend) list.push_back({family, true});  // CudaDevice.IsUsed says if not
  }
  return list;
}
INSTANTIATE_TEST_SUITE_P(Model, BeamTest, testing::ValuesIn(cases()), [](const auto& tested) {
  return tested.param.family + (tested.param.cuda ? "_cuda" : "");
});

TEST_P(BeamTest, FindsWhatTheSlowWayFinds) {
  SlowBeam slow(*tiny.model, *backend);
  write_weights(slow.session(), *tiny.model);
  const auto list = sources(7);
  const BeamOptions ways[] = {{.beam = 1},
                              {.beam = 3},
                              {.beam = 4, .length_penalty = 0},
                              {.beam = 4, .length_penalty = 2, .min_length = 3},
                              {.beam = 3, .no_repeat_ngram = 1},
                              {.beam = 5, .no_repeat_ngram = 2, .min_length = 7}};
  std::set<std::vector<int32_t>> different;
  for (const BeamOptions& way : ways) {
    const auto ours = found(list, 3, way);
    ASSERT_EQ(ours.size(), list.size());
    for (size_t i = 0; i < list.size(); ++i) {
      const Hypothesis wanted = slow.search(list[i], way);
      EXPECT_EQ(ours[i].tokens, wanted.tokens) << "beam " << way.beam << ", source " << i;
      EXPECT_NEAR(ours[i].score, wanted.score, 1e-4);
      different.insert(wanted.tokens);
    }
  }
  EXPECT_GT(different.size(), 10u) << "a test in which all is the same";
}

TEST_P(BeamTest, ABeamOfOneIsGreedy) {
  const int64_t positions = tiny.model->max_lengths().target;
  const DecodePlans plans = make_decode_plans(*tiny.model, positions, {}, *backend);
  Session session(*backend, {&plans.prefill, &plans.decode});
  write_weights(session, *tiny.model);
  const auto list = sources(5);
  const auto ours = found(list, 5, {.beam = 1});
  for (size_t i = 0; i < list.size(); ++i) {
    const int64_t prompt = pairs ? 1 : std::ssize(list[i]);
    auto greedy =
        generate(session, {0, 1, positions, pairs ? kSource : 0, kTokens.start}, kTokens.count,
                 list[i],
                 {.max_tokens = std::min(kLength, positions - prompt + 1), .temperature = 0},
                 [](int32_t token) { return token != kTokens.end; })
            .tokens;
    if (!pairs) greedy.erase(greedy.begin(), greedy.begin() + prompt);
    if (!greedy.empty() && greedy.back() == kTokens.end) greedy.pop_back();
    EXPECT_EQ(ours[i].tokens, greedy);
  }
}

// Prompts of several chunks, of one token and longer than the model's positions stand in a batch:
// each gives what it gives alone.
TEST(PromptBeam, PromptsOfAnyLengthGiveWhatTheyGiveAlone) {
  constexpr int64_t kMost = 150, kNew = 9;
  TinyModel tiny{kLlamaKeys, {1, kMost}};
  const auto backend = cpu::make_backend(cpu::best_isa());
  std::vector<BeamSource> prompts;
  RandomStream random(5, RandomUse::test);
  for (const int64_t length : {66, 1, 64, 65, 130, 2, 148, 150, 151, 333})
    for (int64_t i = 0; i < length; ++i) {
      if (i == 0) prompts.emplace_back();
      prompts.back().ids.push_back(static_cast<int32_t>(random.below(TinyModel::kVocabulary)));
    }
  const TargetTokens target{.start = -1, .end = 2, .count = TinyModel::kVocabulary};
  std::set<std::vector<int32_t>> different;
  for (const int64_t width : {1, 3}) {
    auto found = [&](int64_t at_once) {
      BeamSession own(*tiny.model, {at_once, kMost, kNew}, {.beam = width}, {}, *backend);
      initialize(own.session(), *tiny.model, 1);
      own.refresh();
      std::vector<Hypothesis> all;
      for (size_t i = 0; i < prompts.size(); i += static_cast<size_t>(at_once)) {
        const size_t count = std::min(static_cast<size_t>(at_once), prompts.size() - i);
        for (Hypothesis& h : own.beam().search(std::span(prompts).subspan(i, count), target))
          all.push_back(std::move(h));
      }
      return all;
    };
    const auto together = found(4), alone = found(1);
    const DecodePlans plans = make_decode_plans(*tiny.model, kMost, {}, *backend);
    Session session(*backend, {&plans.prefill, &plans.decode});
    initialize(session, *tiny.model, 1);
    for (size_t i = 0; i < prompts.size(); ++i) {
      SCOPED_TRACE(fmt::format("beam {}, prompt of {}", width, prompts[i].ids.size()));
      EXPECT_EQ(together[i].tokens, alone[i].tokens);
      EXPECT_NEAR(together[i].score, alone[i].score, 1e-5);
      different.insert(alone[i].tokens);
      if (width > 1) continue;
      const int64_t length = std::ssize(prompts[i].ids), kept = prompt_kept(length, kMost);
      auto greedy = generate(session, {0, 1, kMost}, target.count, prompts[i].ids,
                             {.max_tokens = std::min(kNew, kMost - kept + 1), .temperature = 0},
                             [](int32_t token) { return token != 2; })
                        .tokens;
      greedy.erase(greedy.begin(), greedy.begin() + length);
      if (!greedy.empty() && greedy.back() == target.end) greedy.pop_back();
      EXPECT_EQ(alone[i].tokens, greedy);
    }
  }
  EXPECT_GT(different.size(), 6u) << "a test in which all is the same";
}

class CopyingBeam : public testing::Test {
 protected:
  static constexpr int64_t V = TinyModel::kVocabulary;
  static constexpr TargetTokens kTarget{.start = 1, .end = 2, .unknown = 0, .count = V};

  CopyingBeam() {
    RandomStream random(6, RandomUse::test);
    for (size_t i = 0; i < 7; ++i) {
      BeamSource& source = sources.emplace_back();
      for (uint64_t n = 1 + random.below(kSource); n > 0; --n) {
        // The last three are rare.
        source.open.push_back(static_cast<int32_t>(3 + random.below(static_cast<uint64_t>(V))));
        source.ids.push_back(source.open.back() < V ? source.open.back() : kTarget.unknown);
      }
    }
  }
  std::vector<Hypothesis> found(const BeamOptions& options) {
    BeamSession own(*tiny.model, {3, kSource, kLength}, options, {}, *backend);
    initialize(own.session(), *tiny.model, 1);
    own.refresh();
    std::vector<Hypothesis> all;
    for (size_t first = 0; first < sources.size(); first += 3) {
      const size_t count = std::min<size_t>(3, sources.size() - first);
      for (Hypothesis& h : own.beam().search(std::span(sources).subspan(first, count), kTarget))
        all.push_back(std::move(h));
    }
    return all;
  }

  TinyModel tiny{"emb_dim: 8, hidden_dim: 6, num_layers: 1",
                 {2, kLength, false, kSource},
                 "pointer_generator"};
  std::unique_ptr<Backend> backend = cpu::make_backend(cpu::best_isa());
  std::vector<BeamSource> sources;
};

// What a model may copy it does not call unknown; all else may come.
TEST_F(CopyingBeam, NeitherSearchNorDrawWritesTheUnknownWord) {
  const DecodePlans plans = make_decode_plans(*tiny.model, kLength, {}, *backend);
  Session session(*backend, {&plans.prefill, &plans.decode});
  initialize(session, *tiny.model, 1);
  const GeneratePlans places{0, 1, kLength, kSource, kTarget.start, kTarget.unknown};
  const auto searched = found({.beam = V});
  std::set<int32_t> written;
  for (size_t i = 0; i < sources.size(); ++i) {
    for (uint64_t seed = 0; seed < 100; ++seed)
      for (const int32_t token :
           generate(session, places, V, sources[i].ids,
                    {.max_tokens = kLength, .temperature = 3, .seed = seed}, {}, sources[i].open)
               .tokens)
        written.insert(token);
    for (const int32_t token : searched[i].tokens) written.insert(token);
  }
  std::set<int32_t> all;
  for (int32_t word = 0; word < V; ++word)
    if (word != kTarget.unknown) all.insert(word);
  for (const BeamSource& source : sources) all.insert(source.open.begin(), source.open.end());
  EXPECT_EQ(written, all);
}

TEST_F(CopyingBeam, DrawingTheLikeliestIsABeamOfOne) {
  const DecodePlans plans = make_decode_plans(*tiny.model, kLength, {}, *backend);
  Session session(*backend, {&plans.prefill, &plans.decode});
  initialize(session, *tiny.model, 1);
  const auto ours = found({.beam = 1});
  int64_t rare = 0;
  for (size_t i = 0; i < sources.size(); ++i) {
    auto greedy = generate(
                      session, {0, 1, kLength, kSource, kTarget.start, kTarget.unknown}, V,
                      sources[i].ids, {.max_tokens = kLength, .temperature = 0},
                      [](int32_t token) { return token != kTarget.end; }, sources[i].open)
                      .tokens;
    if (!greedy.empty() && greedy.back() == kTarget.end) greedy.pop_back();
    EXPECT_EQ(ours[i].tokens, greedy);
    rare += std::ranges::count_if(greedy, [](int32_t token) { return token >= V; });
  }
  EXPECT_GT(rare, 0) << "a test without rare words";
}

// Words are copied, also such as the vocabulary lacks: the score is what the loss says of the same
// target.
TEST_F(CopyingBeam, AHypothesisHasTheScoreOfTheLoss) {
  const Plan plan =
      make_plan(build_eval_graph(*tiny.model, {1, kLength, false, kSource}), {}, *backend);
  Session loss(*backend, {&plan});
  initialize(loss, *tiny.model, 1);
  int64_t rare = 0;
  for (const int64_t width : {1, 3, 4}) {
    const auto all = found({.beam = width, .length_penalty = 0});
    for (size_t i = 0; i < sources.size(); ++i) {
      const BeamSource& source = sources[i];
      std::vector<int32_t> tokens{kTarget.start}, targets = all[i].tokens;
      for (const int32_t word : targets) {
        rare += word >= V ? 1 : 0;
        tokens.push_back(word < V ? word : kTarget.unknown);
      }
      if (targets.size() < kLength) targets.push_back(kTarget.end);
      tokens.resize(kLength);
      targets.resize(kLength, -1);
      auto padded = [](std::vector<int32_t> ids, int32_t with) {
        ids.resize(kSource, with);
        return ids;
      };
      const auto length = static_cast<int32_t>(source.ids.size());
      const float one = 1;
      loss.write<int32_t>("tokens", tokens);
      loss.write<int32_t>("targets", targets);
      loss.write<int32_t>("source", padded(source.ids, 0));
      loss.write<int32_t>("source_open", padded(source.open, -1));
      loss.write<int32_t>("source_lengths", std::span(&length, 1));
      loss.write<float>("loss_scale", std::span(&one, 1));
      loss.run(0);
      EXPECT_NEAR(all[i].score, -loss.scalar_output(0, "loss"), 1e-4)
          << "beam " << width << ", source " << i;
    }
  }
  EXPECT_GT(rare, 5) << "a test without rare words";
}

}  // namespace
}  // namespace millrace
