// A device that fails says at what. In a process of its own: nothing can be done on the device
// afterwards.
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>

#include "graph/builder.h"
#include "graph/plan.h"
#include "tests/parity/cuda_device.h"

namespace millrace {
namespace {

class CudaFaultDeathTest : public testing::TestWithParam<bool> {};
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(CudaFaultDeathTest);
const bool kCapture[] = {false, true};
INSTANTIATE_TEST_SUITE_P(Step, CudaFaultDeathTest,
                         testing::ValuesIn(kCapture, kCapture + (test_device().backend ? 2 : 0)),
                         [](const auto& test) { return test.param ? "captured" : "plain"; });

// The softmax between two other nodes writes where there is no memory. Prints what is said of it.
[[noreturn]] void fail_in_softmax(bool capture) {
  const auto backend = open_cuda(0, {.capture = capture});
  Builder b;
  const Value x = b.input("x", {{64, 64}, DType::f32});
  const Value scaled = b.scale(x, 2);
  b.output("kept", scaled);  // and therefore not overwritten by the softmax
  b.output("y", b.reduce_to(b.op("softmax", {scaled}), {64}));
  PassOptions off;
  for (std::string_view name : pass_names()) off.off.insert(std::string(name));
  const Plan plan = make_plan(b.finish(), off, *backend);
  const auto arena = backend->allocate(plan.state_bytes + plan.scratch_bytes);
  const auto load = [&](bool good) {
    std::vector<std::byte*> place;
    for (const Buffer& buffer : plan.buffers)
      place.push_back(arena->data() + buffer.offset + (buffer.in_state ? 0 : plan.state_bytes));
    for (NodeId id = 0; id < plan.graph.size() && !good; ++id)
      if (plan.graph[id].op->name == "softmax")
        place[static_cast<size_t>(plan.buffer_of[static_cast<size_t>(id)][0])] =
            reinterpret_cast<std::byte*>(0x100);
    return backend->load(plan, place);
  };
  std::vector<std::byte> out(16);
  const auto good = load(true), bad = load(false);
  good->run(nullptr, {});
  backend->copy_out(out, arena->data());
  std::fprintf(stderr, "before: %d\n", backend->failed());
  try {
    bad->run(nullptr, {});
    backend->copy_out(out, arena->data());
  } catch (const Error& error) {
    std::fprintf(stderr, "%s\nafter: %d\n", error.what(), backend->failed());
    std::_Exit(1);
  }
  std::_Exit(0);
}

TEST_P(CudaFaultDeathTest, EndsWithAnErrorThatNamesTheOpWhereItCan) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(fail_in_softmax(GetParam()), testing::ExitedWithCode(1),
              GetParam() ? "before: 0\n(.|\n)*illegal memory access(.|\n)*after: 1"
                         : "before: 0\n(.|\n)*illegal memory access(.|\n)*: softmax by .*f32.64,64."
                           "(.|\n)*after: 1");
}

}  // namespace
}  // namespace millrace
