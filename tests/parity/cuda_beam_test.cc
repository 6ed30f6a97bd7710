// Texts found on the CUDA device in every precision, against those the CPU finds in f32.
#include <gtest/gtest.h>

#include <cmath>

#include "cpu/cpu_backend.h"
#include "cpu/machine.h"
#include "tests/graph/tiny_model.h"
#include "tests/model/small_family.h"
#include "tests/parity/cuda_device.h"
#include "train/beam_search.h"

namespace millrace {
namespace {

constexpr int64_t kSource = 9, kLength = 11, kAtOnce = 5;
constexpr TargetTokens kTokens{.start = 1, .end = 2, .unknown = 0, .count = TinyModel::kVocabulary};

class CudaBeam : public testing::TestWithParam<std::string> {
 protected:
  static std::vector<BeamSource> sources() {
    std::vector<BeamSource> list(kAtOnce);
    RandomStream random(6, RandomUse::test);
    for (BeamSource& source : list)
      for (uint64_t n = 1 + random.below(kSource); n > 0; --n) {
        source.ids.push_back(static_cast<int32_t>(3 + random.below(TinyModel::kVocabulary - 3)));
        source.open.push_back(source.ids.back());
      }
    return list;
  }
  std::vector<Hypothesis> found(Backend& backend, Precision precision, int64_t beam) {
    PassOptions options;
    options.precision = precision;
    BeamSession own(*tiny_.model, {kAtOnce, kSource, kLength}, {.beam = beam}, options, backend);
    initialize(own.session(), *tiny_.model, 1);
    own.refresh();
    return own.beam().search(sources(), kTokens);
  }
  TinyModel tiny_{"num_layers: 2", {2, kLength, false, kSource}, GetParam()};
};

std::vector<std::string> families() {
  if (!test_device().backend) return {};
  return families_that([](const Model& m) { return !m.takes().states; });
}
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(CudaBeam);
INSTANTIATE_TEST_SUITE_P(Model, CudaBeam, testing::ValuesIn(families()),
                         [](const auto& tested) { return tested.param; });

TEST_P(CudaBeam, FindsTextsAsLikelyAsTheCpuDoes) {
  const auto cpu = cpu::make_backend(cpu::best_isa());
  for (const int64_t beam : {1, 4}) {
    const auto truth = found(*cpu, Precision::fp32, beam);
    // Scores are means of logarithms, near -3.
    const std::pair<Precision, double> bounds[] = {{Precision::fp32, 1e-4},
                                                   {Precision::tf32, 5e-3},
                                                   {Precision::bf16, 5e-2},
                                                   {Precision::fp16, 1e-2}};
    for (const auto& [precision, bound] : bounds) {
      SCOPED_TRACE(precision_name(precision));
      const auto here = found(*test_device().backend, precision, beam);
      ASSERT_EQ(here.size(), truth.size());
      for (size_t i = 0; i < here.size(); ++i) {
        EXPECT_NEAR(here[i].score, truth[i].score, bound) << "beam " << beam << ", source " << i;
        if (precision == Precision::fp32) {
          EXPECT_EQ(here[i].tokens, truth[i].tokens);
        }
      }
    }
  }
}

}  // namespace
}  // namespace millrace
