// All that an update changes is in a checkpoint, and comes back out of it.
#include "train/checkpoint.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "core/rng.h"
#include "cpu/cpu_backend.h"
#include "cpu/machine.h"
#include "tests/graph/tiny_model.h"

namespace millrace {
namespace {

// fp16 has state that belongs to no parameter: the scale of its loss, and how long that has held.
TEST(Checkpoint, HoldsWhatBelongsToNoParameter) {
  TinyModel tiny(kGpt2Keys);
  tiny.settings.precision = "fp16";
  tiny.settings.ema_decay = 0.9;
  const auto backend = cpu::make_backend(cpu::best_isa());
  const Plan plan = make_plan(tiny.step_graph(), {}, *backend);
  Session before(*backend, {&plan}), after(*backend, {&plan});
  const auto leaves = state_leaves(plan);
  EXPECT_EQ(std::ranges::count(leaves, kLossScaling), 1);
  for (const std::string& leaf : leaves) {
    RandomStream random(3, RandomUse::test, std::hash<std::string>()(leaf));
    std::vector<float> values(static_cast<size_t>(before.type(leaf).numel()));
    for (float& x : values) x = static_cast<float>(random.normal());
    before.write<float>(leaf, values);
  }

  const fs::path folder =
      fs::temp_directory_path() / fmt::format("millrace_checkpoint_{}", getpid());
  fs::create_directories(folder);
  std::map<std::string, FileDigest> digests;
  write_checkpoint_files(folder, {state_tensors(before, plan), {}, {}}, *tiny.model, &digests);
  load_checkpoint_tensors(folder, plan, after, *tiny.model);
  for (const std::string& leaf : leaves)
    EXPECT_EQ(before.read<float>(leaf), after.read<float>(leaf)) << leaf;
  fs::remove_all(folder);
}

}  // namespace
}  // namespace millrace
