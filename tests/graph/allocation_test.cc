// Nothing is allocated inside a step: operator new is counted while plans run.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <new>

#include "cpu/cpu_backend.h"
#include "cpu/gemm.h"
#include "cpu/machine.h"
#include "cpu/parallel.h"
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
    cpu::gemm_set_measuring(false);  // oneDNN's matmul primitive, where it wins, allocates a few words
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
