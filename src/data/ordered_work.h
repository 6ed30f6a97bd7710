// Items read by one thread, worked on by several, taken in the order they were read by the caller:
// the shape of everything that is made of a long file. At most a few items are alive at a time.
#pragma once
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include "core/clock.h"

namespace millrace {

// How long a thread worked and how long it waited for another.
struct WorkTimes {
  int64_t busy_ns = 0, wait_ns = 0, items = 0;
};

struct OrderedWorkTimes {
  WorkTimes read, take;
  std::vector<WorkTimes> workers;
};

// `read` fills an item or says that there is none; `work` may run on any thread; `take` gets the
// results in order. What one of them throws comes out here when its item's turn has come, and the
// threads are gone then.
template <typename Item, typename Result>
OrderedWorkTimes ordered_work(int workers, const std::function<bool(Item&)>& read,
                              const std::function<Result(Item&)>& work,
                              const std::function<void(Result&)>& take) {
  struct Place {
    Item item;
    Result result;
    std::exception_ptr fault;
    bool worked = false;
  };
  std::vector<Place> ring(static_cast<size_t>(2 * workers + 2));
  auto place = [&](size_t number) -> Place& { return ring[number % ring.size()]; };
  std::mutex mutex;
  std::condition_variable changed;
  size_t readied = 0, claimed = 0, taken = 0;  // numbers of items; each runs ahead of the next
  bool ended = false, stop = false;
  OrderedWorkTimes times;
  times.workers.resize(static_cast<size_t>(workers));

  // Waits with the mutex held and books the time.
  auto wait = [&](std::unique_lock<std::mutex>& lock, WorkTimes& mine, auto&& until) {
    const int64_t begin = now_ns();
    changed.wait(lock, until);
    mine.wait_ns += now_ns() - begin;
  };
  auto busy = [](WorkTimes& mine, std::exception_ptr& fault, auto&& what) {
    const int64_t begin = now_ns();
    try {
      what();
    } catch (...) {
      fault = std::current_exception();
    }
    mine.busy_ns += now_ns() - begin;
    ++mine.items;
  };

  std::thread reader([&] {
    for (bool more = true; more;) {
      {
        std::unique_lock lock(mutex);
        wait(lock, times.read, [&] { return stop || readied < taken + ring.size(); });
        if (stop) return;
      }
      Place& next = place(readied);  // nobody else's until it is counted
      next.fault = nullptr;
      more = false;
      busy(times.read, next.fault, [&] { more = read(next.item); });
      next.worked = next.fault != nullptr;
      const std::lock_guard lock(mutex);
      readied += more || next.fault ? 1 : 0;
      ended = !more;
      changed.notify_all();
    }
  });
  std::vector<std::thread> team;
  for (int i = 0; i < workers; ++i)
    team.emplace_back([&, &mine = times.workers[static_cast<size_t>(i)]] {
      for (;;) {
        std::unique_lock lock(mutex);
        wait(lock, mine, [&] { return stop || ended || claimed < readied; });
        if (stop || claimed == readied) return;
        Place& next = place(claimed++);
        if (next.worked) continue;  // reading it failed
        lock.unlock();
        busy(mine, next.fault, [&] { next.result = work(next.item); });
        lock.lock();
        next.worked = true;
        changed.notify_all();
      }
    });
  std::exception_ptr fault;
  while (!fault) {
    std::unique_lock lock(mutex);
    wait(lock, times.take, [&] { return taken < readied ? place(taken).worked : ended; });
    if (taken == readied) break;
    Place& next = place(taken);
    lock.unlock();
    fault = next.fault;
    if (!fault) busy(times.take, fault, [&] { take(next.result); });
    lock.lock();
    ++taken;
    changed.notify_all();
  }
  {
    const std::lock_guard lock(mutex);
    stop = true;
    changed.notify_all();
  }
  reader.join();
  for (std::thread& t : team) t.join();
  if (fault) std::rethrow_exception(fault);
  return times;
}

}  // namespace millrace
