// Beam search against the slow way: every hypothesis of every source alone, from its first token
// on, with all candidates sorted.
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

constexpr int64_t kSource = 6, kLength = 7;
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

  TinyModel tiny{
      "num_layers: 2, d_model: 32, num_heads: 4", {2, kLength, false, kSource}, GetParam().family};
  std::unique_ptr<Backend> backend =
      GetParam().cuda ? open_cuda(0, {}) : cpu::make_backend(cpu::best_isa());
};

class SlowBeam {
 public:
  SlowBeam(const Model& model, Backend& backend)
      : plans_(make_decode_plans(model, kLength, {}, backend)),
        session_(backend, {&plans_.prefill, &plans_.decode}) {}
  Session& session() { return session_; }

  Hypothesis search(std::vector<int32_t> source, const BeamOptions& o) {
    const auto length = static_cast<int32_t>(source.size());
    source.resize(kSource);
    session_.write<int32_t>("source", source);
    session_.write<int32_t>("source_lengths", std::span(&length, 1));
    session_.run(0);
    const auto K = static_cast<size_t>(o.beam);
    std::vector<Hypothesis> live(1), done;
    auto finish = [&](Hypothesis h, size_t tokens) {
      h.score /= std::pow(static_cast<double>(tokens), o.length_penalty);
      done.push_back(h);
    };
    for (int64_t step = 0; step < kLength && done.size() < K && !live.empty(); ++step) {
      std::vector<Hypothesis> grown;
      for (const Hypothesis& h : live) {
        const auto logs = log_probabilities(h.tokens);
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
  std::vector<double> log_probabilities(const std::vector<int32_t>& tokens) {
    for (size_t i = 0; i <= tokens.size(); ++i) {
      const int32_t token = i == 0 ? kTokens.start : tokens[i - 1], zero = 0;
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

  DecodePlans plans_;
  Session session_;
};

std::vector<Case> cases() {
  std::vector<Case> list;
  for (const std::string& family :
       families_that([](const Model& m) { return m.takes().pairs && m.can_draw(); })) {
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
  const DecodePlans plans = make_decode_plans(*tiny.model, kLength, {}, *backend);
  Session session(*backend, {&plans.prefill, &plans.decode});
  write_weights(session, *tiny.model);
  const auto list = sources(5);
  const auto ours = found(list, 5, {.beam = 1});
  for (size_t i = 0; i < list.size(); ++i) {
    auto greedy = generate(session, {0, 1, kLength, kSource, kTokens.start}, kTokens.count, list[i],
                           {.max_tokens = kLength, .temperature = 0},
                           [](int32_t token) { return token != kTokens.end; })
                      .tokens;
    if (!greedy.empty() && greedy.back() == kTokens.end) greedy.pop_back();
    EXPECT_EQ(ours[i].tokens, greedy);
  }
}

// Words are copied, also such as the vocabulary lacks: the score is what the loss says of the same
// target.
TEST(CopyingBeam, AHypothesisHasTheScoreOfTheLoss) {
  constexpr int64_t V = TinyModel::kVocabulary;
  TinyModel tiny{"emb_dim: 8, hidden_dim: 6, num_layers: 1",
                 {2, kLength, false, kSource},
                 "pointer_generator"};
  const auto backend = cpu::make_backend(cpu::best_isa());
  const Plan plan =
      make_plan(build_eval_graph(*tiny.model, {1, kLength, false, kSource}), {}, *backend);
  Session loss(*backend, {&plan});
  initialize(loss, *tiny.model, 1);
  std::vector<BeamSource> sources;
  RandomStream random(6, RandomUse::test);
  for (size_t i = 0; i < 7; ++i) {
    BeamSource& source = sources.emplace_back();
    for (uint64_t n = 1 + random.below(kSource); n > 0; --n) {
      source.open.push_back(static_cast<int32_t>(3 + random.below(V)));  // the last three are rare
      source.ids.push_back(source.open.back() < V ? source.open.back() : 0);
    }
  }
  int64_t rare = 0;
  for (const int64_t width : {1, 3, 4}) {
    BeamSession own(*tiny.model, {3, kSource, kLength}, {.beam = width, .length_penalty = 0}, {},
                    *backend);
    initialize(own.session(), *tiny.model, 1);
    own.refresh();
    const TargetTokens target{.start = 1, .end = 2, .unknown = 0, .count = V};
    for (size_t first = 0; first < sources.size(); first += 3) {
      const size_t count = std::min<size_t>(3, sources.size() - first);
      const auto found = own.beam().search(std::span(sources).subspan(first, count), target);
      for (size_t i = 0; i < count; ++i) {
        const BeamSource& source = sources[first + i];
        std::vector<int32_t> tokens{target.start}, targets = found[i].tokens;
        for (const int32_t word : targets) {
          rare += word >= V ? 1 : 0;
          tokens.push_back(word < V ? word : 0);
        }
        if (targets.size() < kLength) targets.push_back(target.end);
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
        EXPECT_NEAR(found[i].score, -loss.scalar_output(0, "loss"), 1e-4)
            << "beam " << width << ", source " << first + i;
      }
    }
  }
  EXPECT_GT(rare, 5) << "a test without rare words";
}

}  // namespace
}  // namespace millrace
