// A sum over millions of numbers, where adding them one by one in single precision goes wrong. The
// generated tests allow what the plain loop loses, which here would be everything.
#include <gtest/gtest.h>

#include "cpu/cpu_backend.h"
#include "cpu/machine.h"
#include "exec/session.h"
#include "graph/builder.h"

namespace millrace {
namespace {

TEST(WholeSum, OfMillionsIsRight) {
  constexpr int64_t kCount = 4'000'000;
  Builder b;
  b.output("sum", b.reduce_to(b.parameter("x", {kCount}), {}));
  const auto backend = cpu::make_backend(cpu::best_isa());
  const Plan plan = make_plan(b.finish(), {}, *backend);
  Session session(*backend, {&plan});
  session.write<float>("x", std::vector<float>(kCount, 0.01f));
  session.run(0);
  const double sum = kCount * static_cast<double>(0.01f);
  EXPECT_NEAR(session.scalar_output(0, "sum"), sum, 1e-6 * sum);
}

}  // namespace
}  // namespace millrace
