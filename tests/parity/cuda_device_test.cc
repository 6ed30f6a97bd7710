// Whether the parity tests run at all. Without a GPU they cannot, and this one test is skipped in
// their place; with a GPU, a backend that does not open it is a failure and no reason to skip.
#include "tests/parity/cuda_device.h"

#include "core/file.h"

namespace millrace {
namespace {

TEST(CudaDevice, IsUsed) {
  const TestDevice& device = test_device();
  if (!device.backend) {
    const bool gpu = fs::exists("/proc/driver/nvidia/gpus") || fs::exists("/dev/nvidia0");
    ASSERT_FALSE(gpu && has_cuda_library()) << device.reason;
    GTEST_SKIP() << "no op and no model was compared on CUDA: " << device.reason;
  }
  EXPECT_FALSE(device.backend->on_host());
  EXPECT_GT(device.backend->memory_bytes(), 0);
  for (const Precision p : {Precision::fp32, Precision::tf32, Precision::bf16, Precision::fp16})
    EXPECT_TRUE(device.backend->computes(p)) << precision_name(p);
  // Of its memory, where the driver tells, the context is counted and an arena too.
  const auto before = device.backend->vitals();
  if (!before || !before->bytes) return;
  EXPECT_GT(*before->bytes, 32 << 20);
  const auto arena = device.backend->allocate(64 << 20);
  const auto after = device.backend->vitals();
  ASSERT_TRUE(after && after->bytes);
  EXPECT_GE(*after->bytes - *before->bytes, arena->bytes());
}

}  // namespace
}  // namespace millrace
