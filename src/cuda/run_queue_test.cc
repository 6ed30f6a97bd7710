// Runs that are put off, on a CUDA runtime that is made up: memory is the host's, and a stream does
// nothing until somebody waits for it, so that bytes which are written too early or read too late
// give wrong numbers.
#include "cuda/run_queue.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <functional>

#include "core/rng.h"

namespace {

using Work = std::vector<std::function<void()>>;

struct MadeUpDevice {
  Work stream, captured;
  size_t done = 0;
  bool capturing = false, refuses = false;
  float milliseconds = 0;

  void put(std::function<void()> work) {
    (capturing ? captured : stream).push_back(std::move(work));
  }
  void run_until(size_t end) {
    for (; done < end; ++done) stream[done]();
  }
} device;

struct MadeUpEvent {
  size_t behind = 0;
  float milliseconds = 0;
};
MadeUpEvent& made_up(cudaEvent_t event) { return *reinterpret_cast<MadeUpEvent*>(event); }

}  // namespace

extern "C" {
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  *event = reinterpret_cast<cudaEvent_t>(new MadeUpEvent);
  return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  delete &made_up(event);
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t) {
  device.put([e = &made_up(event)] { e->milliseconds = device.milliseconds; });
  made_up(event).behind = device.stream.size();
  return cudaSuccess;
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  device.run_until(made_up(event).behind);
  return cudaSuccess;
}
cudaError_t cudaEventQuery(cudaEvent_t event) {
  return made_up(event).behind <= device.done ? cudaSuccess : cudaErrorNotReady;
}
cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t from, cudaEvent_t to) {
  *milliseconds = made_up(to).milliseconds - made_up(from).milliseconds;
  return cudaSuccess;
}
cudaError_t cudaMallocHost(void** memory, size_t bytes) {
  *memory = std::malloc(bytes);
  return cudaSuccess;
}
cudaError_t cudaFreeHost(void* memory) {
  std::free(memory);
  return cudaSuccess;
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind,
                            cudaStream_t) {
  device.put([=] { std::memcpy(to, from, bytes); });
  return cudaSuccess;
}
cudaError_t cudaGetLastError() { return cudaSuccess; }
const char* cudaGetErrorString(cudaError_t) { return "as planned"; }
cudaError_t cudaStreamBeginCapture(cudaStream_t, cudaStreamCaptureMode) {
  device.capturing = true;
  device.captured.clear();
  return cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t, cudaGraph_t* graph) {
  device.capturing = false;
  if (device.refuses) return cudaErrorUnknown;
  *graph = reinterpret_cast<cudaGraph_t>(new Work(device.captured));
  return cudaSuccess;
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* exec, cudaGraph_t graph, unsigned long long) {
  *exec = reinterpret_cast<cudaGraphExec_t>(new Work(*reinterpret_cast<Work*>(graph)));
  return cudaSuccess;
}
cudaError_t cudaGraphGetNodes(cudaGraph_t, cudaGraphNode_t*, size_t* count) {
  *count = 0;  // of kernels, that is
  return cudaSuccess;
}
cudaError_t cudaGraphNodeGetType(cudaGraphNode_t, cudaGraphNodeType*) { return cudaErrorUnknown; }
cudaError_t cudaGraphUpload(cudaGraphExec_t, cudaStream_t) { return cudaSuccess; }
cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  delete reinterpret_cast<Work*>(graph);
  return cudaSuccess;
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec) {
  delete reinterpret_cast<Work*>(exec);
  return cudaSuccess;
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t) {
  for (const auto& work : *reinterpret_cast<Work*>(exec)) device.put(work);
  return cudaSuccess;
}
cudaError_t cudaMemGetInfo(size_t* free, size_t* all) {
  *free = *all = 1;
  return cudaSuccess;
}
}

namespace millrace::cuda {

void check(cudaError_t status, const char* call) { MR_CHECK(status == cudaSuccess, "{}", call); }
NvmlDevice::NvmlDevice(const std::string&) {}
DeviceBytes::DeviceBytes(int64_t bytes) : data_(std::malloc(static_cast<size_t>(bytes))) {}
DeviceBytes::~DeviceBytes() { std::free(data_); }
Context::Context(int) : nvml_(""), choices_("") {}
Context::~Context() = default;
void launch_pass_on(const KeptNumbers& numbers, void* inputs, const void* next, int64_t bytes,
                    cudaStream_t) {
  device.put([=] {
    for (int i = 0; i < numbers.count; ++i) numbers.to[i] = *numbers.from[i];
    if (bytes > 0) std::memcpy(inputs, next, static_cast<size_t>(bytes));
  });
}

namespace {

struct Memory {
  static constexpr size_t kInputs = 16;
  float inputs[kInputs] = {}, ring[8 * kInputs] = {}, state = 0;
};

// Its update depends on its inputs and on all updates before: none may be missing, twice, or in
// another place.
class FakePlan : public Joinable {
 public:
  FakePlan(float factor, Memory& memory, RunQueue& queue)
      : factor_(factor), memory_(memory), queue_(queue) {}
  ~FakePlan() {
    queue_.forget(*this);
    device.run_until(device.stream.size());  // as whoever gives memory back waits for the device
  }
  float next(float state, float first, float fourth) const {
    return 0.5f * state + factor_ * first + fourth;
  }
  void run(Ledger& ledger, bool alone) {
    if (!alone) return queue_.put_off(*this, ledger);
    queue_.come_first();
    run_now(&ledger, {});
  }
  void launch_captured() override {
    device.put([this] {
      const float* in = memory_.inputs;
      loss = memory_.state = next(memory_.state, in[0], in[3]);
      norm = in[0];
      device.milliseconds += 1;
    });
  }
  void run_now(Ledger*, const std::function<void()>&) override {
    launch_captured();
    ++runs;
  }
  void account(Ledger&, int64_t, int64_t ns, std::span<int64_t> phase_ns) override {
    ++accounted;
    phase_ns[0] += ns;
  }
  void has_run(int64_t times, const std::string& text) override {
    runs += times;
    if (!text.empty()) note = text;
  }
  float loss = 0, norm = 0;
  int64_t accounted = 0, runs = 0;
  std::string note;

 private:
  float factor_;
  Memory& memory_;
  RunQueue& queue_;
};

// One plan whose runs are started in pairs.
struct Pairs {
  Context context{0};
  Memory memory;
  RunQueue queue{context, reinterpret_cast<std::byte*>(memory.inputs),
                 reinterpret_cast<std::byte*>(memory.ring), sizeof memory.inputs, 2};
  Ledger ledger;
  FakePlan plan{1, memory, queue};
  const std::byte* const loss[1] = {reinterpret_cast<std::byte*>(&plan.loss)};

  std::unique_ptr<Late> put_off() {
    plan.run(ledger, false);
    return queue.fetch(loss);
  }
};

// What a training does, in any order: inputs, some of which stay as they were, runs of two plans,
// some alone, numbers that are read late, and now and then a look at the state.
class RunQueueTest : public testing::TestWithParam<bool> {
 protected:
  void SetUp() override { device = {}; }
  void TearDown() override { device = {}; }
};

TEST_P(RunQueueTest, GivesWhatRunsGiveOneByOne) {
  const bool refuses = GetParam();
  int64_t in_graphs = 0;
  for (uint64_t seed = 0; seed < 200; ++seed) {
    SCOPED_TRACE(seed);
    device = {};
    device.refuses = refuses;
    RandomStream random(seed, RandomUse::test, 0);
    Context context(0);
    Memory memory;
    RunQueue queue(context, reinterpret_cast<std::byte*>(memory.inputs),
                   reinterpret_cast<std::byte*>(memory.ring), sizeof memory.inputs,
                   2 + random.below(6));
    ASSERT_EQ(context.queue, &queue);
    Ledger ledger;
    FakePlan one(1, memory, queue), other(3, memory, queue);
    struct Wanted {
      std::unique_ptr<Late> late;
      std::vector<float> values;
    };
    std::deque<Wanted> wanted;
    auto read = [&] {
      EXPECT_EQ(wanted.front().late->wait(), wanted.front().values);
      EXPECT_TRUE(wanted.front().late->is_there());
      wanted.pop_front();
    };
    std::array<int64_t, 3> phases{};
    float state = 0, fourth = 0;
    constexpr int64_t kRuns = 60;
    for (int64_t i = 0; i < kRuns; ++i) {
      const auto first = static_cast<float>(random.below(100));
      reinterpret_cast<float*>(queue.data())[0] = first;
      if (random.below(4) == 0)
        reinterpret_cast<float*>(queue.data())[3] = fourth = static_cast<float>(random.below(7));
      queue.send();
      FakePlan& plan = random.below(8) == 0 ? other : one;
      plan.run(ledger, random.below(12) == 0);
      state = plan.next(state, first, fourth);
      const std::byte* const numbers[] = {reinterpret_cast<std::byte*>(&plan.loss),
                                          reinterpret_cast<std::byte*>(&plan.norm)};
      if (auto late = queue.fetch(numbers)) wanted.push_back({std::move(late), {state, first}});
      if (random.below(5) == 0 && !wanted.empty()) read();
      if (random.below(10) == 0) {
        queue.flush();
        device.run_until(device.stream.size());
        EXPECT_EQ(memory.state, state);
        queue.settle(phases);
      }
    }
    while (!wanted.empty()) read();
    queue.settle(phases);
    EXPECT_EQ(one.runs + other.runs, kRuns);
    const int64_t accounted = one.accounted + other.accounted;
    EXPECT_EQ(phases[0], accounted * 1'000'000);  // a millisecond each
    in_graphs += accounted;
    EXPECT_EQ(context.captures.count > 0, accounted > 0);
    if (refuses) {
      EXPECT_EQ(accounted, 0);
    }
  }
  if (!refuses) {
    EXPECT_GT(in_graphs, 1000);
  }
}

TEST_P(RunQueueTest, SaysOnceWhyThereIsNoGraph) {
  device.refuses = GetParam();
  Pairs on;
  for (int i = 0; i < 4; ++i) on.put_off();
  EXPECT_EQ(on.plan.note, GetParam() ? "updates are started one by one: 2 of them could not be "
                                       "captured as a graph: as planned"
                                     : "");
}

// After a pause the first run begins at once, and the next ones are put together meanwhile.
TEST_P(RunQueueTest, IsAtRestUntilARunBegins) {
  device.refuses = GetParam();
  Pairs on;
  for (int pause = 0; pause < 3; ++pause) {
    EXPECT_TRUE(on.queue.is_at_rest());
    on.plan.run(on.ledger, true);
    EXPECT_FALSE(on.queue.is_at_rest());
    std::vector<std::unique_ptr<Late>> late;
    for (int i = 0; i < 5; ++i) {
      late.push_back(on.put_off());
      EXPECT_FALSE(on.queue.is_at_rest());
    }
    while (!late.empty()) {
      EXPECT_FALSE(on.queue.is_at_rest());
      late.back()->wait();
      late.pop_back();
    }
  }
  EXPECT_TRUE(on.queue.is_at_rest());
}

// A block is filled again as soon as what was in it is on the device: nobody waits for the runs.
TEST_P(RunQueueTest, WaitsForCopiesAndNotForRuns) {
  device.refuses = GetParam();
  Pairs on;
  std::vector<std::unique_ptr<Late>> late;
  for (int i = 0; i < 4; ++i) late.push_back(on.put_off());
  // Two blocks are on their way. The first of them is needed again: its copies are done, and of its
  // runs at most those between two copies.
  EXPECT_LE(device.milliseconds, 1);
}

INSTANTIATE_TEST_SUITE_P(Capture, RunQueueTest, testing::Bool(),
                         [](const auto& test) { return test.param ? "Refused" : "Granted"; });

}  // namespace
}  // namespace millrace::cuda
