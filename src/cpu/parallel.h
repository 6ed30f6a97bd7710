// Threads on the CPU: OpenMP, the runtime oneDNN uses too, so there is one team and no oversubscription.
// Work is cut by its size alone, never by the number of threads, and partial results are combined in a
// fixed order: the same bits for any number of threads.
#pragma once
#include <omp.h>

#include <algorithm>
#include <cstdint>

namespace millrace::cpu {

inline int threads() { return omp_get_max_threads(); }

// Runs f(task) for task in [0, tasks), in any order, on all threads. Tasks are handed out one by one:
// make each worth at least some microseconds.
template <typename F>
void parallel_tasks(int64_t tasks, const F& f) {
  if (tasks <= 1 || threads() == 1 || omp_in_parallel()) {
    for (int64_t t = 0; t < tasks; ++t) f(t);
    return;
  }
#pragma omp parallel for schedule(dynamic, 1)
  for (int64_t t = 0; t < tasks; ++t) f(t);
}

// Runs f(begin, end) over [0, n) in pieces of `grain`, each a task.
template <typename F>
void parallel_ranges(int64_t n, int64_t grain, const F& f) {
  parallel_tasks((n + grain - 1) / grain, [&](int64_t t) { f(t * grain, std::min(n, (t + 1) * grain)); });
}

}  // namespace millrace::cpu
