#include "cpu/parallel.h"

#include <immintrin.h>
#include <omp.h>
#include <sched.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "core/process.h"

namespace millrace::cpu {
namespace {

thread_local int index_of_this_thread = 0;
thread_local bool in_task = false;

// oneDNN is always called from inside a task and must not start a team of its own.
void single_threaded_libraries() { omp_set_num_threads(1); }

class Team {
 public:
  Team(int count, bool pinned) : count_(count), pinned_(pinned) {
    single_threaded_libraries();
    // The caller stays free: the threads that it starts, loaders among them, would keep its core.
    const std::vector<int> cores = allowed_cores();
    for (int i = 1; i < count; ++i) {
      workers_.emplace_back([this, i] { work(i); });
      if (!pinned || cores.empty()) continue;
      cpu_set_t one;
      CPU_ZERO(&one);
      CPU_SET(cores[static_cast<size_t>(i) % cores.size()], &one);
      // Advice: where the system does not let it, it stays as it was.
      (void)pthread_setaffinity_np(workers_.back().native_handle(), sizeof one, &one);
    }
  }
  ~Team() {
    quit_ = true;
    epoch_.fetch_add(2);
    epoch_.notify_all();
    for (std::thread& t : workers_) t.join();
  }
  int count() const { return count_; }
  bool pinned() const { return pinned_; }

  void run(int64_t tasks, void (*run_task)(const void*, int64_t), const void* context) {
    std::lock_guard one_at_a_time(callers_);  // two user threads may train side by side
    // The job is written while the epoch is odd: a late worker that looks in then leaves at once.
    while (inside_.load() != 0) _mm_pause();
    run_task_ = run_task;
    context_ = context;
    tasks_ = tasks;
    next_.store(0, std::memory_order_relaxed);
    done_.store(0, std::memory_order_relaxed);
    epoch_.fetch_add(1);  // even: open
    if (sleeping_.load() > 0) epoch_.notify_all();
    in_task = true;
    take_tasks();
    in_task = false;
    for (int64_t spins = 0; done_.load(std::memory_order_acquire) < tasks; ++spins) {
      _mm_pause();
      if (spins > kSpins) sched_yield();  // a worker lost its core in the middle of a task
    }
    epoch_.fetch_add(1);  // odd: closed
  }

 private:
  static constexpr int kSpins =
      4000;  // about 50 us: longer than the gap between two ops of a small model

  void take_tasks() {
    for (int64_t t; (t = next_.fetch_add(1, std::memory_order_relaxed)) < tasks_;) {
      run_task_(context_, t);
      done_.fetch_add(1, std::memory_order_release);
    }
  }

  void work(int index) {
    index_of_this_thread = index;
    in_task = true;
    single_threaded_libraries();
    uint64_t seen = 1;
    for (;;) {
      uint64_t now = epoch_.load();
      for (int spins = 0; (now == seen || now % 2 == 1) && spins < kSpins; ++spins) {
        _mm_pause();
        now = epoch_.load();
      }
      // Looked at after the epoch: the destructor sets it before the last change of epoch, so
      // either it is seen here or the wait below returns.
      if (quit_) return;
      if (now == seen || now % 2 == 1) {
        sleeping_.fetch_add(1);
        epoch_.wait(now);
        sleeping_.fetch_sub(1);
        continue;
      }
      seen = now;
      inside_.fetch_add(1);
      if (epoch_.load() == seen)
        take_tasks();  // still open: the caller cannot close before these tasks are done
      inside_.fetch_sub(1);
    }
  }

  const int count_;
  const bool pinned_;
  std::mutex callers_;
  std::atomic<bool> quit_{false};
  void (*run_task_)(const void*, int64_t) = nullptr;
  const void* context_ = nullptr;
  int64_t tasks_ = 0;
  alignas(64) std::atomic<uint64_t> epoch_{1};
  alignas(64) std::atomic<int64_t> next_{0};
  alignas(64) std::atomic<int64_t> done_{0};
  alignas(64) std::atomic<int> inside_{0};
  std::atomic<int> sleeping_{0};
  std::vector<std::thread> workers_;
};

std::unique_ptr<Team>& team() {
  static std::unique_ptr<Team> instance =
      std::make_unique<Team>(std::min(kMaxThreads, usable_cores()), false);
  return instance;
}

}  // namespace

int threads() { return team()->count(); }
int thread_index() { return index_of_this_thread; }

void set_threads(int count, bool pinned) {
  const int wanted = std::min(kMaxThreads, count > 0 ? count : usable_cores());
  if (team()->count() == wanted && team()->pinned() == pinned) return;
  team().reset();
  team() = std::make_unique<Team>(wanted, pinned);
}

int parallel_width() { return in_task ? 1 : threads(); }

namespace detail {
void run_tasks(int64_t tasks, void (*run)(const void*, int64_t), const void* context) {
  if (tasks > 1 && parallel_width() > 1) return team()->run(tasks, run, context);
  for (int64_t task = 0; task < tasks; ++task) run(context, task);
}
}  // namespace detail

}  // namespace millrace::cpu
