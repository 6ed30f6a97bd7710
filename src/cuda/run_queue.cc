#include "cuda/run_queue.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace millrace::cuda {

struct RunQueue::Results {
  explicit Results(size_t count) {
    MR_CUDA(cudaMallocHost(reinterpret_cast<void**>(&host), count * sizeof(float)));
  }
  ~Results() { (void)cudaFreeHost(host); }
  Results(const Results&) = delete;
  Results& operator=(const Results&) = delete;
  float* host = nullptr;
  Event there{cudaEventDisableTiming};
  bool started = false;
};

class RunQueue::PutOff : public Late {
 public:
  PutOff(RunQueue& queue, std::shared_ptr<Results> results, size_t first, size_t count)
      : queue_(queue), results_(std::move(results)), first_(first), count_(count) {}
  std::vector<float> wait() override {
    if (!results_->started) queue_.flush();
    MR_CUDA(cudaEventSynchronize(results_->there.get()));
    const float* begin = results_->host + first_;
    return {begin, begin + count_};
  }
  bool is_there() const override { return results_->started && results_->there.is_over(); }

 private:
  RunQueue& queue_;
  std::shared_ptr<Results> results_;
  size_t first_, count_;
};

RunQueue::RunQueue(Context& context, std::byte* inputs, std::byte* ring, int64_t bytes, size_t most)
    : context_(context),
      inputs_(inputs),
      ring_(ring),
      bytes_(static_cast<size_t>(bytes)),
      most_(most),
      kept_(static_cast<int64_t>(most * KeptNumbers::kMost * sizeof(float))) {
  for (Block& b : blocks_) {
    const size_t size = (most_ + 1) * bytes_;
    MR_CUDA(cudaMallocHost(&b.host, size));
    std::memset(b.host, 0, size);
  }
  MR_CHECK(!context_.queue, "a device has one queue");
  context_.queue = this;
}

RunQueue::~RunQueue() {
  if (context_.queue == this) context_.queue = nullptr;
  for (Block& b : blocks_) {
    (void)cudaEventSynchronize(b.sent.get());
    (void)cudaFreeHost(b.host);
  }
}

void RunQueue::put_off(Joinable& plan, Ledger& ledger) {
  // A graph is of one plan's runs.
  if (runs_.size() == most_ || (!runs_.empty() && runs_.back().plan != &plan)) flush();
  inputs_are_new_ = alone_ = false;
  if (ledger.timeline) clock_.set(context_.stream());
  runs_.push_back({&plan, &ledger, {}});
  // Inputs that are not written anew stay.
  std::memcpy(slot(runs_.size()), slot(runs_.size() - 1), bytes_);
}

RunQueue::Results& RunQueue::results() {
  if (results_) return *results_;
  const auto idle = std::ranges::find_if(all_, [](const auto& r) { return r.use_count() == 1; });
  if (idle == all_.end())
    results_ = all_.emplace_back(std::make_shared<Results>(most_ * KeptNumbers::kMost));
  else
    results_ = *idle;
  results_->started = false;
  return *results_;
}

std::unique_ptr<Late> RunQueue::fetch(std::span<const std::byte* const> numbers) {
  if (runs_.empty()) return nullptr;
  MR_CHECK(runs_.back().numbers.empty() && numbers.size() <= KeptNumbers::kMost,
           "{} numbers of one run", numbers.size());
  runs_.back().numbers.assign(numbers.begin(), numbers.end());
  results();
  auto late = std::make_unique<PutOff>(*this, results_, (runs_.size() - 1) * KeptNumbers::kMost,
                                       numbers.size());
  if (runs_.size() == most_) flush();
  return late;
}

void RunQueue::flush() {
  if (runs_.empty()) return;
  const std::vector<Run> runs = std::exchange(runs_, {});
  Results& kept = results();
  if (!replay(runs)) run_one_by_one(runs);
  MR_CUDA(cudaEventRecord(kept.there.get(), context_.stream()));
  kept.started = true;
  results_.reset();
  next_block(runs.size());
}

bool RunQueue::is_at_rest() const {
  return runs_.empty() && !alone_ &&
         std::ranges::none_of(all_, [](const auto& r) { return r.use_count() > 1; });
}

void RunQueue::come_first() {
  flush();
  alone_ = true;
  if (!std::exchange(inputs_are_new_, false)) return;
  MR_CUDA(cudaMemcpyAsync(inputs_, slot(0), bytes_, cudaMemcpyHostToDevice, context_.stream()));
  record_sent();
  next_block(0);
}

// Right behind the last copy out of this block, and not behind the runs: whoever fills the block
// again waits for the copies alone.
void RunQueue::record_sent() {
  MR_CUDA(cudaEventRecord(blocks_[now_].sent.get(), context_.stream()));
}

// The other block is filled from now on, and begins with the inputs that stood in `last`.
void RunQueue::next_block(size_t last) {
  const std::byte* from = slot(last);
  now_ = 1 - now_;
  MR_CUDA(cudaEventSynchronize(blocks_[now_].sent.get()));
  std::memcpy(slot(0), from, bytes_);
}

void RunQueue::run_one_by_one(const std::vector<Run>& runs) {
  const cudaStream_t stream = context_.stream();
  for (size_t i = 0; i < runs.size(); ++i) {
    MR_CUDA(cudaMemcpyAsync(inputs_, slot(i), bytes_, cudaMemcpyHostToDevice, stream));
    if (i + 1 == runs.size()) record_sent();
    runs[i].plan->run_now(runs[i].ledger, {});
    for (size_t n = 0; n < runs[i].numbers.size(); ++n)
      MR_CUDA(cudaMemcpyAsync(results_->host + i * KeptNumbers::kMost + n, runs[i].numbers[n],
                              sizeof(float), cudaMemcpyDeviceToHost, stream));
  }
}

std::string RunQueue::capture(Captured& graph, const std::vector<Run>& runs) {
  return graph.capture(context_, static_cast<int64_t>(runs.size()), [&] {
    const cudaStream_t stream = context_.stream();
    KeptNumbers kept;
    for (size_t i = 0; i < runs.size(); ++i) {
      launch_pass_on(kept, inputs_, ring_ + i * bytes_, static_cast<int64_t>(bytes_), stream);
      runs[i].plan->launch_captured();
      kept = {};
      for (const std::byte* number : runs[i].numbers)
        kept.from[kept.count++] = reinterpret_cast<const float*>(number);
      kept.to = static_cast<float*>(kept_.data()) + i * KeptNumbers::kMost;
    }
    launch_pass_on(kept, nullptr, nullptr, 0, stream);
    MR_CUDA(cudaGetLastError());
  });
}

// As one graph, when there are as many as it has.
bool RunQueue::replay(const std::vector<Run>& runs) {
  if (runs.size() < most_ || cannot_capture_) return false;
  Joinable& plan = *runs[0].plan;
  Graph& graph = graphs_[&plan];
  if (!graph.captured.ready()) {
    graph.numbers = runs[0].numbers;
    if (const std::string reason = capture(graph.captured, runs); !reason.empty()) {
      cannot_capture_ = true;
      plan.has_run(0, fmt::format("updates are started one by one: {} of them could not be "
                                  "captured as a graph: {}",
                                  runs.size(), reason));
      return false;
    }
  }
  if (std::ranges::any_of(runs, [&](const Run& r) { return r.numbers != graph.numbers; }))
    return false;
  if (pending_.size() == kPending) {
    MR_CUDA(cudaEventSynchronize(pending_.front().ends->end.get()));
    settle_one(banked_);
  }
  const cudaStream_t stream = context_.stream();
  Ends& ends = ends_[next_ends_++ % kPending];
  MR_CUDA(cudaMemcpyAsync(ring_, slot(0), runs.size() * bytes_, cudaMemcpyHostToDevice, stream));
  record_sent();
  MR_CUDA(cudaEventRecord(ends.start.get(), stream));
  graph.captured.launch(stream);
  MR_CUDA(cudaEventRecord(ends.end.get(), stream));
  MR_CUDA(cudaMemcpyAsync(results_->host, kept_.data(),
                          runs.size() * KeptNumbers::kMost * sizeof(float), cudaMemcpyDeviceToHost,
                          stream));
  const auto count = static_cast<int64_t>(runs.size());
  pending_.push_back({&ends, &plan, runs[0].ledger, count});
  plan.has_run(count, "");
  return true;
}

void RunQueue::settle_one(std::span<int64_t> phase_ns) {
  const Pending done = pending_.front();
  pending_.pop_front();
  const int64_t each = done.ends->end.ns_since(done.ends->start) / done.runs;
  int64_t begin = done.ledger->timeline ? clock_.ns_of(done.ends->start) : 0;
  for (int64_t i = 0; i < done.runs; ++i) {
    done.plan->account(*done.ledger, begin, each, phase_ns);
    if (begin > 0) begin += each;
  }
}

bool RunQueue::settle(std::span<int64_t> phase_ns) {
  bool any = false;
  for (size_t p = 0; p < banked_.size(); ++p) {
    any = any || banked_[p] > 0;
    phase_ns[p] += std::exchange(banked_[p], 0);
  }
  for (; !pending_.empty() && pending_.front().ends->end.is_over(); any = true)
    settle_one(phase_ns);
  return any;
}

void RunQueue::forget(Joinable& plan) {
  std::erase_if(runs_, [&](const Run& r) { return r.plan == &plan; });
  std::erase_if(pending_, [&](const Pending& p) { return p.plan == &plan; });
  graphs_.erase(&plan);
}

}  // namespace millrace::cuda
