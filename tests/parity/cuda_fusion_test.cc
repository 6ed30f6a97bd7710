// Whether what a plan puts behind a product really is inside its kernel: the kernels of the
// captured graph are counted, with the pass and without it.
#include "exec/session.h"
#include "graph/builder.h"
#include "tests/parity/cuda_device.h"

namespace millrace {
namespace {

using Tail = Value (*)(Builder&, Value);
struct FusionCase {
  const char* name;
  Tail tail;  // behind a product of 4096 x 512 x 512
};
constexpr int64_t kRows = 4096, kWidth = 512;
const FusionCase kFusions[] = {
    {"Bias", [](Builder& b, Value y) { return b.add(y, b.parameter("bias", {kWidth})); }},
    {"BiasGelu",
     [](Builder& b, Value y) {
       return b.apply(Function::gelu_tanh, b.add(y, b.parameter("bias", {kWidth})));
     }},
    {"Residual",
     [](Builder& b, Value y) {
       return b.add(y, b.parameter("residual", {kRows, kWidth}));
     }},
};

class CudaFusion : public testing::TestWithParam<FusionCase> {};
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(CudaFusion);
INSTANTIATE_TEST_SUITE_P(
    Product, CudaFusion,
    testing::ValuesIn(kFusions, kFusions + (test_device().backend ? std::size(kFusions) : 0)),
    [](const auto& test) { return test.param.name; });

int64_t kernels(const FusionCase& fusion, bool fused) {
  Backend& backend = *test_device().backend;
  Builder b;
  const Value x = b.parameter("x", {kRows, kWidth}), w = b.parameter("w", {kWidth, kWidth});
  b.output("y", fusion.tail(b, b.matmul(x, w)));
  PassOptions options;
  options.precision = Precision::bf16;
  if (!fused) options.off.insert("fuse_epilogue");
  const Plan plan = make_plan(b.finish(), options, backend);
  Session session(backend, {&plan});
  for (int i = 0; i < 3; ++i) session.run(0);  // the first one is launched plainly
  EXPECT_EQ(session.note(0), "");
  return session.kernels(0);
}

TEST_P(CudaFusion, LeavesAKernelOut) {
  const int64_t inside = kernels(GetParam(), true), behind = kernels(GetParam(), false);
  EXPECT_GT(inside, 0);
  EXPECT_LT(inside, behind);
}

}  // namespace
}  // namespace millrace
