// Memory of a device that is not the host's: what context and libraries take beside the arena is
// measured, counts against a limit, and stands in what `plan` and `train` say.
#include <gtest/gtest.h>

#include "cli/memory_report.h"
#include "cpu/gemm.h"
#include "cpu/machine.h"
#include "doctor/fit.h"
#include "tests/graph/poisoned_backend.h"
#include "tests/graph/tiny_model.h"
#include "train/trainer.h"

namespace millrace {
namespace {

constexpr int64_t kContext = 10 << 20;

// The CPU as a device: its arenas are counted while they live, and a context beside them.
class CountingBackend : public PoisonedBackend {
 public:
  CountingBackend() : PoisonedBackend(cpu::best_isa()) {}
  std::optional<int64_t> overhead;
  int64_t graph = 0;
  bool tells = true;

  bool on_host() const override { return false; }
  std::optional<int64_t> overhead_bytes(Precision, int64_t graphs) const override {
    return overhead ? std::optional(*overhead + graphs * graph) : std::nullopt;
  }
  std::optional<DeviceVitals> vitals() const override {
    DeviceVitals vitals;
    if (tells) vitals.bytes = kContext + taken_;
    return vitals;
  }
  std::unique_ptr<Arena> allocate(int64_t bytes) override {
    return std::make_unique<Counted>(bytes, taken_);
  }

 private:
  class Counted : public PoisonedArena {
   public:
    Counted(int64_t bytes, int64_t& taken) : PoisonedArena(bytes), taken_(taken) {
      taken_ += bytes;
    }
    ~Counted() override { taken_ -= bytes(); }

   private:
    int64_t& taken_;
  };
  int64_t taken_ = 0;
};

class DeviceMemory : public testing::Test {
 protected:
  void SetUp() override { cpu::gemm_set_measuring(false); }
  void TearDown() override { cpu::gemm_set_measuring(true); }
  CountingBackend backend_;
};

TEST_F(DeviceMemory, TheLimitHoldsForArenaAndOverheadTogether) {
  TinyModel tiny("d_model: 32, num_layers: 6, num_heads: 2", {4, 48});
  auto planned = [&] { return make_programs(*tiny.model, tiny.settings, tiny.shape, backend_); };
  const int64_t arena = planned().total_bytes();
  EXPECT_EQ(planned().needed_bytes(), arena) << "nothing is known beside the arena";
  tiny.settings.memory_limit = arena;
  EXPECT_EQ(planned().passes.recompute, Recompute{});

  backend_.overhead = kContext;
  const Programs lean = planned();
  EXPECT_GT(lean.needed_bytes(), tiny.settings.memory_limit) << "no plan is so small";
  tiny.settings.memory_limit = arena + kContext - 1;
  const Programs less = planned();
  EXPECT_LE(less.needed_bytes(), tiny.settings.memory_limit);
  EXPECT_EQ(less.needed_bytes(), less.total_bytes() + kContext);
  EXPECT_NE(less.passes.recompute, Recompute{});
  tiny.settings.memory_limit = arena + kContext;
  EXPECT_EQ(planned().passes.recompute, Recompute{});
  EXPECT_EQ(planned().needed_bytes(), arena + kContext);

  const auto parts = contributors(planned());
  EXPECT_TRUE(std::any_of(parts.begin(), parts.end(), [](const Contributor& c) {
    return c.what == "context and libraries" && c.bytes == kContext;
  }));
}

TEST_F(DeviceMemory, EveryShapeIsCaptured) {
  TinyModel tiny(kGpt2Keys, {2, 48});
  backend_.overhead = kContext;
  backend_.graph = 1000;
  auto beside = [&](int64_t max_steps, int64_t grad_accum) {
    tiny.settings.max_steps = max_steps;
    tiny.settings.grad_accum = grad_accum;
    const ProgramShapes shapes({{2, 48}, {2, 32}, {2, 16}}, {{2, 48}});
    return *make_programs(*tiny.model, tiny.settings, shapes, backend_).overhead - kContext;
  };
  EXPECT_EQ(beside(0, 1), 7000);  // three shapes, each as it is and timed, and validation
  EXPECT_EQ(beside(100, 1), 7000);
  EXPECT_EQ(beside(100, 4), 13000);
  EXPECT_EQ(beside(0, 4), 13000);
  EXPECT_EQ(beside(2, 1), 3000) << "no more than there are updates";
}

TEST_F(DeviceMemory, IsReadWhileTheArenaIsThere) {
  std::string text;
  while (text.size() < 2000) text += "abcdefghijklmnopqrstuvwxyz";
  std::shared_ptr<const Tokenizer> tokenizer = make_char_tokenizer(text, {"text"});
  std::vector<int32_t> tokens;
  tokenizer->encode(text, {"text"}, tokens);
  TinyModel tiny(kGpt2Keys);
  tiny.settings.max_steps = 2;
  tiny.settings.sample_length = 0;
  DataObserver silent;
  const TrainingData data = make_training_data(dataset_in_memory(tokenizer, tokens, tokens),
                                               tiny.settings, tiny.model->takes(), silent);
  const Programs programs = make_programs(*tiny.model, tiny.settings, data.shapes(), backend_);
  auto device_bytes = [&] {
    TrainObserver nobody;
    return train(*tiny.model, tiny.settings, data, backend_, programs, nullptr, nobody)
        .device_bytes;
  };
  EXPECT_EQ(device_bytes(), programs.total_bytes() + kContext);
  backend_.tells = false;
  EXPECT_EQ(device_bytes(), std::nullopt);
}

TEST_F(DeviceMemory, IsToldAsFarAsItIsKnown) {
  TinyModel tiny(kGpt2Keys);
  auto predicted = [&] {
    return predicted_peak_bytes(make_programs(*tiny.model, tiny.settings, tiny.shape, backend_),
                                *tiny.model, backend_);
  };
  EXPECT_EQ(predicted(), std::nullopt);
  EXPECT_EQ(predicted_text(predicted(), backend_),
            "; context and libraries not measured yet on this machine");
  backend_.overhead = kContext;
  EXPECT_EQ(
      predicted(),
      make_programs(*tiny.model, tiny.settings, tiny.shape, backend_).total_bytes() + kContext);

  constexpr int64_t kMiB = 1 << 20;
  EXPECT_EQ(predicted_text(600 * kMiB, backend_), "; with context and libraries about 600 MiB");
  EXPECT_EQ(measured_text(600 * kMiB, 606 * kMiB, backend_),
            "; device peak 600 MiB (predicted 606 MiB, +1.0 %)");
  EXPECT_EQ(measured_text(600 * kMiB, std::nullopt, backend_), "; device peak 600 MiB");
  EXPECT_EQ(measured_text(std::nullopt, 606 * kMiB, backend_), "");

  const auto host = cpu::make_backend(cpu::best_isa());
  EXPECT_EQ(predicted_text(600 * kMiB, *host), "; whole process about 600 MiB");
  EXPECT_EQ(measured_text(600 * kMiB, 606 * kMiB, *host),
            "; process peak 600 MiB (predicted 606 MiB, +1.0 %)");
}

}  // namespace
}  // namespace millrace
