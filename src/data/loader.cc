#include "data/loader.h"

#include <algorithm>

namespace millrace {

Loader::Loader(const Batches& batches, int64_t position, int64_t parts,
               const LoaderOptions& options)
    : batches_(batches), position_(position), parts_(parts), options_(options) {
  const int most = options.workers < 0 ? std::max(1, options.most_workers) : options.workers;
  // One more than is made ahead: the step holds one while it runs.
  ring_.resize(static_cast<size_t>(most * options.prefetch_factor + 1));
  const BatchShape& largest = batches.shapes()[0];
  const auto places = static_cast<size_t>(batches.most_places());
  for (Place& place : ring_) {
    place.update.parts.resize(static_cast<size_t>(parts));
    for (Batch& batch : place.update.parts)
      for (auto* list : {&batch.tokens, &batch.targets, &batch.segments, &batch.positions,
                         &batch.source, &batch.source_lengths, &batch.source_open}) {
        const bool packed = list == &batch.segments || list == &batch.positions,
                   pairs = list == &batch.source || list == &batch.source_lengths ||
                           list == &batch.source_open;
        if ((!packed || largest.packed) && (!pairs || largest.source > 0)) list->reserve(places);
      }
  }
  const int workers = options.workers < 0 ? 1 : options.workers;
  const std::lock_guard lock(mutex_);
  for (int i = 0; i < workers; ++i) add_worker();
}

Loader::~Loader() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
    changed_.notify_all();
  }
  for (std::thread& t : team_) t.join();
}

void Loader::add_worker() {
  times_.push_back(std::make_unique<WorkTimes>());
  team_.emplace_back([this, worker = times_.size() - 1] { work(worker); });
}

void Loader::fill(int64_t number, Place& place) const {
  place.fault = nullptr;
  UpdateBatches& update = place.update;
  update.places = update.useful = update.scored = update.labelled = 0;
  try {
    for (int64_t i = 0; i < parts_; ++i) {
      Batch& batch = update.parts[static_cast<size_t>(i)];
      batches_.fill(position_ + (number * parts_ + i) * batches_.stride(), batch);
      update.places += batches_.shapes()[batch.shape].places();
      update.useful += batch.useful;
      update.scored += batch.scored;
      update.labelled += batch.labelled;
    }
  } catch (...) {
    place.fault = std::current_exception();
  }
}

void Loader::work(size_t worker) {
  WorkTimes* mine = nullptr;
  {
    const std::lock_guard lock(mutex_);
    mine = times_[worker].get();
  }
  for (int64_t began = now_ns();;) {
    std::unique_lock lock(mutex_);
    // The place of the update before the last taken one is free: the step holds the last.
    changed_.wait(lock, [&] {
      return stop_ || claimed_ < taken_ - 1 + static_cast<int64_t>(ring_.size()) + (taken_ == 0);
    });
    if (stop_) return;
    const int64_t number = claimed_++;
    Place& place = ring_[static_cast<size_t>(number) % ring_.size()];
    place.ready = false;
    const int64_t start = now_ns();
    mine->wait_ns += start - began;
    lock.unlock();
    fill(number, place);
    lock.lock();
    place.ready = true;
    began = now_ns();
    mine->busy_ns += began - start;
    ++mine->items;
    if (Timeline* t = timeline_)
      t->add({start,
              began,
              t->lane(fmt::format("loader {}", worker + 1)),
              "make batches",
              "input",
              {}});
    changed_.notify_all();
  }
}

const UpdateBatches& Loader::next() {
  std::unique_lock lock(mutex_);
  Place& place = ring_[static_cast<size_t>(taken_) % ring_.size()];
  if (team_.empty()) {
    fill(taken_, place);
    ++taken_;
    if (place.fault) std::rethrow_exception(place.fault);
    return place.update;
  }
  ++taken_;  // the one the step held is free now
  changed_.notify_all();
  auto is_ready = [&] { return claimed_ >= taken_ && place.ready; };
  if (!is_ready()) {
    changed_.wait(lock, is_ready);
    // The first update is always waited for. Later ones: is it the same again and again?
    constexpr int64_t kWaitsForMore = 8;
    waits_ = taken_ > 1 ? waits_ + 1 : 0;
    if (options_.workers < 0 && waits_ >= kWaitsForMore && workers() < options_.most_workers) {
      waits_ = 0;
      add_worker();
    }
  } else {
    waits_ = 0;
  }
  if (place.fault) std::rethrow_exception(place.fault);
  return place.update;
}

std::vector<WorkTimes> Loader::times() const {
  const std::lock_guard lock(mutex_);
  std::vector<WorkTimes> list;
  for (const auto& t : times_) list.push_back(*t);
  return list;
}

}  // namespace millrace
