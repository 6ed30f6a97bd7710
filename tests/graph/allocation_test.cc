// Nothing is allocated inside a step: operator new is counted while plans run.
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <new>

#include "cpu/cpu_backend.h"
#include "cpu/gemm.h"
#include "cpu/machine.h"
#include "cpu/parallel.h"
#include "data/batches.h"
#include "tests/graph/tiny_model.h"

namespace {
std::atomic<bool> counting{false};
std::atomic<int64_t> allocations{0};

void* allocate(std::size_t size) {
  if (counting.load(std::memory_order_relaxed)) allocations.fetch_add(1);
  if (void* p = std::malloc(size ? size : 1)) return p;
  throw std::bad_alloc();
}
}  // namespace

void* operator new(std::size_t size) { return allocate(size); }
void* operator new[](std::size_t size) { return allocate(size); }
void operator delete(void* p) noexcept { std::free(p); }
void operator delete[](void* p) noexcept { std::free(p); }
void operator delete(void* p, std::size_t) noexcept { std::free(p); }
void operator delete[](void* p, std::size_t) noexcept { std::free(p); }

namespace millrace {
namespace {

TEST(Allocation, NoneInsideAStep) {
  for (const char* keys :
       {kGpt2Keys, kLlamaKeys, "d_model: 24, num_layers: 2, num_heads: 2, dropout: 0.1"}) {
    SCOPED_TRACE(keys);
    const TinyModel tiny(keys);
    cpu::gemm_set_measuring(
        false);  // oneDNN's matmul primitive, where it wins, allocates a few words
    const auto backend = cpu::make_backend(cpu::best_isa());
    const Plan plan = make_plan(tiny.step_graph(), {}, *backend);
    Session session(*backend, {&plan});
    train_steps(session, 0, tiny, 2);  // everything that is set up on first use is set up
    Ledger ledger;
    session.run(0, &ledger);
    allocations = 0;
    counting = true;
    for (int i = 0; i < 5; ++i) session.run(0, &ledger);
    counting = false;
    cpu::gemm_set_measuring(true);
    EXPECT_EQ(allocations, 0);
  }
}

// Paths of 40 to 100 points, 1,024 and more of them to a batch: in buckets, and packed.
TEST(Allocation, NoneInACollateOfTrajectories) {
  const fs::path folder =
      fs::path(testing::TempDir()) / fmt::format("millrace-collate-{}", getpid());
  create_folders(folder);
  setenv("MILLRACE_CACHE", (folder / "cache").c_str(), 1);
  std::string text;
  for (int path = 0; path < 2300; ++path)
    for (int t = 0; t < 40 + path % 61; ++t)
      text += fmt::format("{} {} {} {} {}\n", t, path, t * t, t, path % 3);
  write_file(folder / "paths.txt", text);
  DataObserver silent;
  DataOptions o;
  o.train = {(folder / "paths.txt").string()};
  o.format = "trajectories";
  o.validation_fraction = 0;
  o.class_column = {"5", 3};
  const Dataset data = open_dataset(o, silent);
  for (const std::string batching : {"buckets", "packing"}) {
    BatchOptions options;
    options.batching = batching;
    options.batch_size = 1024;
    options.seed = 3;
    options.states = {{8, 12}, 100, 1000, true, false};
    const auto batches = make_batches(data, SplitName::train, options, silent);
    Batch batch;
    auto epoch = [&](int64_t number) {
      int64_t most = 0;
      for (int64_t i = 0; i < batches->batches_per_epoch(); ++i) {
        batches->fill(number * batches->positions_per_epoch() + i * batches->stride(), batch);
        most = std::max(most, batch.scored / 12);
      }
      return most;
    };
    epoch(0);  // room for the largest batch, and every block of the file read once
    allocations = 0;
    counting = true;
    const int64_t most = epoch(1);
    counting = false;
    EXPECT_EQ(allocations, 0) << batching;
    EXPECT_GE(most, 1024) << batching;
  }
  unsetenv("MILLRACE_CACHE");
  fs::remove_all(folder);
}

TEST(Allocation, IsSeenByTheCounter) {  // or the test above could not fail
  allocations = 0;
  counting = true;
  auto* p = new int(3);
  counting = false;
  delete p;
  EXPECT_EQ(allocations, 1);
}

}  // namespace
}  // namespace millrace
