// Whole steps on the CPU: threads change no bit, and products that round their operands to bf16,
// where the CPU has them, train as those in f32 do.
#include <gtest/gtest.h>

#include "cpu/cpu_backend.h"
#include "cpu/gemm.h"
#include "cpu/machine.h"
#include "cpu/parallel.h"
#include "tests/parity/model_cases.h"

namespace millrace {
namespace {

class CpuModel : public ModelParity {
 protected:
  void SetUp() override { cpu::gemm_set_measuring(false); }
  void TearDown() override {
    cpu::gemm_set_measuring(true);
    cpu::set_threads(0);
  }
  Trained train_on(int threads, Precision precision) {
    cpu::set_threads(threads);
    return train(*backend_, precision);
  }
  std::unique_ptr<Backend> backend_ = cpu::make_backend(cpu::best_isa());
};
INSTANTIATE_TEST_SUITE_P(Model, CpuModel, testing::ValuesIn(kModelCases), model_case_name);

TEST_P(CpuModel, ThreadsDoNotChangeABit) {
  for (const Precision precision : {Precision::fp32, Precision::bf16}) {
    if (!backend_->computes(precision)) continue;
    SCOPED_TRACE(precision_name(precision));
    const Trained two = train_on(2, precision);
    EXPECT_TRUE(two == train_on(1, precision)) << "other bits on one thread";
    EXPECT_TRUE(two == train_on(3, precision)) << "other bits on three threads";
  }
}

TEST_P(CpuModel, TrainsInBf16AsInF32) {
  EXPECT_FALSE(backend_->computes(Precision::fp16));
  EXPECT_FALSE(backend_->computes(Precision::tf32));
  ASSERT_EQ(backend_->computes(Precision::bf16), cpu::multiplies_bf16());
  if (!cpu::multiplies_bf16())
    GTEST_SKIP() << "no model was trained in bf16: this CPU has no such products";
  const Trained truth = train_on(2, Precision::fp32), here = train_on(2, Precision::bf16);
  expect_near(here, truth, 2e-2);
  EXPECT_FALSE(here == truth) << "nothing was rounded";
}

}  // namespace
}  // namespace millrace
