// Reference plans: the text of a training step for a few tiny models, kept in plans/. A change of
// any pass, of the memory plan or of a kernel choice shows here as a difference that someone has
// looked at:
//   MILLRACE_UPDATE_PLANS=1 millrace_suite_tests --gtest_filter='PlanText*'   writes them anew
#include <gtest/gtest.h>

#include <cstdlib>
#include <sstream>

#include "core/file.h"
#include "cpu/cpu_backend.h"
#include "cpu/gemm.h"
#include "tests/graph/tiny_model.h"

namespace millrace {
namespace {

struct PlanTextCase {
  const char* name;
  std::string keys;
  bool recompute = false;
};
const PlanTextCase kPlanTextCases[] = {{"gpt2", kGpt2Keys},
                                       {"llama", kLlamaKeys},
                                       {"dropout", std::string(kGpt2Keys) + ", dropout: 0.1"},
                                       {"recompute", kGpt2Keys, true}};

// Without measured choices and on the lowest instruction set a plan is the same on every machine.
Plan step_plan(const PlanTextCase& c, BatchShape shape = {2, 12}) {
  cpu::gemm_set_measuring(false);
  TinyModel tiny(c.keys, shape);
  if (c.recompute) tiny.settings.memory_limit = 1;
  const auto backend = cpu::make_backend(cpu::Isa::avx2);
  Plan plan = make_programs(*tiny.model, tiny.settings, tiny.shape, *backend).step();
  cpu::gemm_set_measuring(true);
  return plan;
}

class PlanText : public testing::TestWithParam<PlanTextCase> {};
INSTANTIATE_TEST_SUITE_P(Model, PlanText, testing::ValuesIn(kPlanTextCases),
                         [](const auto& test) { return std::string(test.param.name); });

TEST_P(PlanText, IsTheReference) {
  const fs::path path = fs::path(MILLRACE_SOURCE_DIR) / "tests" / "graph" / "plans" /
                        (std::string(GetParam().name) + ".txt");
  const std::string got = step_plan(GetParam()).text();
  const std::string want = fs::exists(path) ? read_file(path) : "";
  if (got == want) return;
  // Written anew on request; this time it still fails, and says what changed.
  const char* update = std::getenv("MILLRACE_UPDATE_PLANS");
  if (update && std::string_view(update) == "1") write_file(path, got);
  std::istringstream got_lines(got), want_lines(want);
  std::string g, w;
  int line = 1;
  while (true) {
    const bool more_got = static_cast<bool>(std::getline(got_lines, g)),
               more_want = static_cast<bool>(std::getline(want_lines, w));
    if (!more_got) g = "(end)";
    if (!more_want) w = "(end)";
    if (g != w || (!more_got && !more_want)) break;
    ++line;
  }
  FAIL()
      << "the plan changed, first at line " << line << "\n  was: " << w << "\n  is:  " << g
      << "\nIf that is what you wanted: MILLRACE_UPDATE_PLANS=1 with --gtest_filter='*PlanText*' "
         "writes the files anew; look at the difference before you commit it.";
}

TEST_P(PlanText, HashIsThatOfTheTextAndStable) {
  const Plan one = step_plan(GetParam()), two = step_plan(GetParam()),
             larger = step_plan(GetParam(), {3, 12}), longer = step_plan(GetParam(), {2, 13});
  EXPECT_EQ(one.text(), two.text());
  EXPECT_EQ(one.hash(), two.hash());
  EXPECT_EQ(one.hash().size(), 32u);
  EXPECT_EQ(one.hash().find_first_not_of("0123456789abcdef"), std::string::npos);
  EXPECT_NE(one.hash(), larger.hash());
  EXPECT_NE(one.hash(), longer.hash());
}

TEST(PlanHash, DiffersBetweenModelsAndPasses) {
  std::map<std::string, std::string> seen;
  for (const PlanTextCase& c : kPlanTextCases)
    EXPECT_TRUE(seen.emplace(step_plan(c).hash(), c.name).second)
        << c.name << " has the plan of " << seen[step_plan(c).hash()];
}

TEST(PlanTextForm, NamesEveryNodeWithKernelAndPlace) {
  const Plan plan = step_plan(kPlanTextCases[0]);
  const std::string text = plan.text();
  EXPECT_TRUE(text.starts_with("plan: "));
  int64_t lines = std::count(text.begin(), text.end(), '\n');
  EXPECT_EQ(lines, 1 + plan.graph.size() +
                       static_cast<int64_t>(plan.graph.outputs.size() + plan.graph.updates.size()));
  for (const char* part : {"layers.1.attention", "output loss", "update embedding.weight",
                           "by gemm [packed]", "# backward "})
    EXPECT_NE(text.find(part), std::string::npos) << part;
  EXPECT_EQ(text.find("0x7f"), std::string::npos) << "an address in the text";
}

}  // namespace
}  // namespace millrace
