// Batches made ahead of time: threads fill preallocated places in order, the step takes the next
// one that is ready, or waits and knows for how long. With no threads the step fills them itself.
#pragma once
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

#include "core/timeline.h"
#include "data/batches.h"
#include "data/ordered_work.h"

namespace millrace {

// The batches of one update.
struct UpdateBatches {
  std::vector<Batch> parts;
  int64_t places = 0, useful = 0, scored = 0, labelled = 0;  // of all parts
};

struct LoaderOptions {
  int workers = -1;         // -1: one, and more while the step has to wait
  int most_workers = 1;     // that `auto` goes up to
  int prefetch_factor = 2;  // updates made ahead, for each worker
};

class Loader {
 public:
  // From `position` on, `parts` batches an update. `batches` must outlive it.
  Loader(const Batches& batches, int64_t position, int64_t parts, const LoaderOptions& options);
  ~Loader();
  Loader(const Loader&) = delete;
  Loader& operator=(const Loader&) = delete;

  // The next update's, until the next call. What filling it threw is thrown here.
  const UpdateBatches& next();

  // From now on every update that a worker makes is a span there; null: no more.
  void watch(Timeline* timeline) { timeline_ = timeline; }
  int workers() const { return static_cast<int>(team_.size()); }
  std::vector<WorkTimes> times() const;  // of each worker so far

 private:
  struct Place {
    UpdateBatches update;
    std::exception_ptr fault;
    bool ready = false;
  };
  void add_worker();  // with the mutex held
  void work(size_t worker);
  void fill(int64_t number, Place& place) const;

  const Batches& batches_;
  int64_t position_, parts_;
  LoaderOptions options_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Place> ring_;
  int64_t claimed_ = 0, taken_ = 0;  // updates
  int64_t waits_ = 0;                // in a row that were worth another worker
  bool stop_ = false;
  std::atomic<Timeline*> timeline_{nullptr};
  std::vector<std::unique_ptr<WorkTimes>> times_;
  std::vector<std::thread> team_;
};

}  // namespace millrace
