// Microbenchmarks generated from the op cards: every kernel that accepts a card's benchmark sizes,
// with GFLOP/s and GB/s from the card's own cost. Run one op: bench/micro --benchmark_filter=matmul
#include <benchmark/benchmark.h>
#include <sys/mman.h>

#include <cstdlib>
#include <cstring>
#include <utility>

#include "core/rng.h"
#include "cpu/kernel.h"
#include "cpu/machine.h"

namespace millrace {
namespace {

struct Problem {
  OpCase op_case;
  std::vector<TensorType> in, out;
  OpSite site() const { return {op_case.attrs, in, out}; }
};

std::vector<float> fill(const CaseInput& input, uint64_t stream) {
  RandomStream random(1, RandomUse::test, stream);
  std::vector<float> values(static_cast<size_t>(input.type.numel()));
  for (float& v : values) {
    if (input.fill == CaseInput::Fill::index) {
      const auto id = static_cast<int32_t>(random.below(static_cast<uint64_t>(input.value)));
      v = std::bit_cast<float>(id);
    } else if (input.fill == CaseInput::Fill::constant) {
      v = static_cast<float>(input.value);
    } else {
      const double x =
          random.uniform() * 2 - 1;  // bounded and quick: these are timings, not values
      v = static_cast<float>(input.fill == CaseInput::Fill::positive ? 0.3 + std::abs(x) : x);
    }
  }
  return values;
}

// Huge pages, as the arena of a run has them: with small ones the address tables are measured too.
class Buffer {
 public:
  explicit Buffer(size_t floats) : bytes_((floats * 4 + kPage) / kPage * kPage) {
    data_ = static_cast<float*>(std::aligned_alloc(kPage, bytes_));
    madvise(data_, bytes_, MADV_HUGEPAGE);
    std::memset(data_, 0, bytes_);
  }
  explicit Buffer(const std::vector<float>& values) : Buffer(values.size()) {
    std::copy(values.begin(), values.end(), data_);
  }
  Buffer(Buffer&& other) noexcept
      : bytes_(other.bytes_), data_(std::exchange(other.data_, nullptr)) {}
  ~Buffer() { std::free(data_); }
  float* data() { return data_; }

 private:
  static constexpr size_t kPage = 2 << 20;
  size_t bytes_;
  float* data_;
};

void run(benchmark::State& state, const OpCard& card, const cpu::Kernel& kernel,
         const Problem& problem) {
  std::vector<Buffer> in, out;
  for (size_t i = 0; i < problem.in.size(); ++i) in.emplace_back(fill(problem.op_case.in[i], i));
  for (const TensorType& t : problem.out) out.emplace_back(static_cast<size_t>(t.numel()));
  std::vector<const void*> in_data;
  std::vector<void*> out_data;
  for (auto& v : in) in_data.push_back(v.data());
  for (auto& v : out) out_data.push_back(v.data());
  Buffer workspace(static_cast<size_t>(
      kernel.workspace_bytes ? kernel.workspace_bytes(problem.site()) / 4 + 16 : 0));
  const auto prepared = kernel.prepare ? kernel.prepare(problem.site()) : nullptr;
  const cpu::Call call{problem.site(), in_data, out_data, workspace.data(), prepared.get()};
  for (auto _ : state) kernel.run(call);
  const Cost cost = card.cost ? card.cost(problem.site()) : Cost{0, traffic(problem.site())};
  state.counters["GFLOP/s"] =
      benchmark::Counter(cost.flops * 1e-9, benchmark::Counter::kIsIterationInvariantRate);
  state.counters["GB/s"] =
      benchmark::Counter(cost.bytes * 1e-9, benchmark::Counter::kIsIterationInvariantRate);
}

void register_all() {
  for (const OpCard* card : all_op_cards()) {
    if (!card->benchmarks) continue;
    for (const OpCase& c : card->benchmarks()) {
      auto problem = std::make_shared<Problem>(Problem{c, {}, {}});
      for (const CaseInput& i : c.in) problem->in.push_back(i.type);
      const std::string fault = card->infer(c.attrs, problem->in, problem->out);
      MR_CHECK(fault.empty(), "{}: {}", card->name, fault);
      std::string shapes;
      for (size_t i = 0; i < std::min<size_t>(2, problem->in.size()); ++i)
        shapes += problem->in[i].shape.str();
      for (const cpu::Kernel& kernel : cpu::kernels_of(card->name, cpu::best_isa())) {
        if (kernel.decline && !kernel.decline(problem->site()).empty()) continue;
        const std::string name =
            fmt::format("{}/{}/{}/{}", card->name, kernel.name, shapes, c.attrs.str());
        benchmark::RegisterBenchmark(name.c_str(),
                                     [card, &kernel, problem](benchmark::State& state) {
                                       run(state, *card, kernel, *problem);
                                     })
            ->UseRealTime()
            ->Unit(benchmark::kMicrosecond);
      }
    }
  }
}

}  // namespace
}  // namespace millrace

int main(int argc, char** argv) {
  millrace::register_all();
  benchmark::Initialize(&argc, argv);
  benchmark::RunSpecifiedBenchmarks();
}
