// What generated cases do not reach: NaN.
#include <gtest/gtest.h>

#include <cmath>

#include "cpu/cpu_backend.h"
#include "cpu/machine.h"
#include "exec/session.h"
#include "graph/builder.h"

namespace millrace {
namespace {

TEST(TopK, NotANumberComesFirst) {
  constexpr int64_t kWidth = 200;
  Builder b;
  const auto best = b.op_all("top_k", {b.parameter("x", {1, kWidth})}, {{"k", 4}});
  b.output("values", best[0]);
  b.output("places", best[1]);
  const auto backend = cpu::make_backend(cpu::best_isa());
  const Plan plan = make_plan(b.finish(), {}, *backend);
  Session session(*backend, {&plan});
  std::vector<float> x(kWidth);
  for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i % 7);
  x[150] = x[90] = NAN;
  session.write<float>("x", x);
  session.run(0);
  EXPECT_EQ(session.integer_output(0, "places"), (std::vector<int32_t>{90, 150, 6, 13}));
  const std::vector<float> values = session.output(0, "values");
  EXPECT_TRUE(std::isnan(values[0]) && std::isnan(values[1]));
  EXPECT_EQ(values[2], 6);
}

}  // namespace
}  // namespace millrace
