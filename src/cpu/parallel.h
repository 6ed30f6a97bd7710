// Threads on the CPU: one persistent team. Work is cut by its size alone, never by the number of
// threads, and partial results are combined in a fixed order: the same bits for any number of
// threads. The caller works too and waits only for tasks that somebody has taken: when another
// program holds a core, its share is done by the others instead of being waited for. (A fork-join
// region of OpenMP waits for every thread to arrive.)
#pragma once
#include <algorithm>
#include <cstdint>

namespace millrace::cpu {

constexpr int kMaxThreads = 256;
int threads();
// Makes the team anew; 0: one thread for every core this process may use. Pinned: each of the
// others keeps to a core of its own.
void set_threads(int count, bool pinned = false);
// 0 for the caller of parallel work, 1, 2, … for the others; below threads().
int thread_index();

// How many threads parallel work would run on from here.
int parallel_width();

namespace detail {
void run_tasks(int64_t tasks, void (*run)(const void* context, int64_t task), const void* context);
}  // namespace detail

// Runs f(task) for task in [0, tasks), in any order, on all threads. Tasks are handed out one by
// one: make each worth at least some microseconds. Inside a task it runs on the calling thread
// alone. Always through the one pointer: where it was inlined for one thread, too, the compiler
// summed in another order there than in the copy for several.
template <typename F>
void parallel_tasks(int64_t tasks, const F& f) {
  detail::run_tasks(
      tasks, [](const void* context, int64_t task) { (*static_cast<const F*>(context))(task); },
      &f);
}

// How many pieces of `size` cover n.
inline int64_t pieces(int64_t n, int64_t size) { return (n + size - 1) / size; }
// The size of a piece when n is cut into so many, about equal: whole units.
inline int64_t piece_size(int64_t n, int64_t count, int64_t unit) {
  return pieces(pieces(n, count), unit) * unit;
}

// Runs f(begin, end) over [0, n) in pieces of `grain`, each a task.
template <typename F>
void parallel_ranges(int64_t n, int64_t grain, const F& f) {
  parallel_tasks(pieces(n, grain), [&](int64_t t) { f(t * grain, std::min(n, (t + 1) * grain)); });
}

}  // namespace millrace::cpu
