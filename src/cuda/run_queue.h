// Runs that a device is given together. Up to so many of one plan are put off, each with inputs of
// its own, and then started as one captured graph, in which a kernel keeps the numbers of a run and
// puts the inputs of the next in place: between them the device waits for nobody.
#pragma once
#include <array>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "cuda/captured.h"
#include "cuda/pass_on.h"
#include "exec/backend.h"

namespace millrace::cuda {

// A plan whose runs can be put off.
class Joinable {
 public:
  virtual void launch_captured() = 0;  // while the stream is captured
  virtual void run_now(Ledger* ledger, const std::function<void()>& before_update) = 0;
  // One of its runs began at `begin_ns` (0: there is no timeline) and took so long.
  virtual void account(Ledger& ledger, int64_t begin_ns, int64_t ns,
                       std::span<int64_t> phase_ns) = 0;
  virtual void has_run(int64_t times, const std::string& note) = 0;  // as part of one graph

 protected:
  ~Joinable() = default;
};

class RunQueue : public Staging {
 public:
  // `ring` has room for the inputs of `most` runs.
  RunQueue(Context& context, std::byte* inputs, std::byte* ring, int64_t bytes, size_t most);
  ~RunQueue() override;

  std::byte* data() override { return slot(runs_.size()); }
  void send() override { inputs_are_new_ = true; }

  void put_off(Joinable& plan, Ledger& ledger);
  // Of the run that was put off last; null: none is.
  std::unique_ptr<Late> fetch(std::span<const std::byte* const> numbers);
  // Starts all that was put off.
  void flush();
  // Before a run that is not put off: what was comes first, then its own inputs.
  void come_first();
  // As Executable::settle.
  bool settle(std::span<int64_t> phase_ns);
  void forget(Joinable& plan);
  // Nothing was put off or started since everything before it was read: the next run had better
  // begin at once, and others are put together while it runs.
  bool is_at_rest() const;
  bool is_of_this_thread() const { return thread_ == std::this_thread::get_id(); }

 private:
  struct Results;  // of the runs of one flush
  class PutOff;    // a Late of them
  struct Run {
    Joinable* plan;
    Ledger* ledger;
    std::vector<const std::byte*> numbers;
  };
  // Pinned: the inputs of the runs that are put off, and of the next.
  struct Block {
    void* host = nullptr;
    Event sent{cudaEventDisableTiming};
  };
  struct Ends {
    Event start, end;
  };
  struct Pending {
    Ends* ends;
    Joinable* plan;
    Ledger* ledger;
    int64_t runs;
  };
  std::byte* slot(size_t run) { return static_cast<std::byte*>(blocks_[now_].host) + run * bytes_; }
  struct Graph {
    Captured captured;
    std::vector<const std::byte*> numbers;  // that it keeps of each run
  };
  bool replay(const std::vector<Run>& runs);
  std::string capture(Captured& graph, const std::vector<Run>& runs);
  void run_one_by_one(const std::vector<Run>& runs);
  void record_sent();
  void next_block(size_t last);
  void settle_one(std::span<int64_t> phase_ns);
  Results& results();

  static constexpr size_t kPending = 8;
  Context& context_;
  std::byte* inputs_;
  std::byte* ring_;
  size_t bytes_, most_;
  std::thread::id thread_ = std::this_thread::get_id();
  std::array<Block, 2> blocks_;
  size_t now_ = 0;
  bool inputs_are_new_ = false;
  std::vector<Run> runs_;
  std::map<const Joinable*, Graph> graphs_;
  bool cannot_capture_ = false;
  bool alone_ = false;                         // the last run was not put off
  DeviceBytes kept_;                           // the numbers of a graph's runs
  std::vector<std::shared_ptr<Results>> all_;  // used again when nobody waits for them
  std::shared_ptr<Results> results_;           // of the runs that are put off
  std::array<Ends, kPending> ends_;
  size_t next_ends_ = 0;
  std::deque<Pending> pending_;
  std::array<int64_t, 3> banked_{};
  ClockPair clock_;
};

}  // namespace millrace::cuda
