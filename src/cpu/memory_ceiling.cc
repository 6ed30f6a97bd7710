#include "cpu/memory_ceiling.h"

#include <sched.h>
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <fstream>
#include <map>
#include <set>
#include <thread>

#include "core/clock.h"
#include "core/file.h"
#include "cpu/parallel.h"

namespace millrace::cpu {
namespace {

constexpr double kMeasured = 0.004;  // seconds of one measurement
constexpr int kTimes = 4;            // the best of so many

// Pages as an arena has them.
class Room {
 public:
  explicit Room(size_t words) : bytes_(words * sizeof(uint64_t)) {
    void* p = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) throw std::bad_alloc();
    madvise(p, bytes_, MADV_HUGEPAGE);  // advice: failing is harmless
    std::memset(p, 1, bytes_);
    data_ = static_cast<uint64_t*>(p);
  }
  ~Room() { munmap(data_, bytes_); }
  Room(const Room&) = delete;
  Room& operator=(const Room&) = delete;
  uint64_t* data() { return data_; }

 private:
  size_t bytes_;
  uint64_t* data_;
};

// Ways to move bytes: which is the fastest depends on where they lie. A line that is written is
// read first, which counts where it is changed in place, as an optimizer does, and not where it is
// copied.
enum class Way { copy, read, change };

double move(Way way, uint64_t* room, size_t words, std::atomic<uint64_t>& kept) {
  const auto bytes = static_cast<double>(words * sizeof(uint64_t));
  switch (way) {
    case Way::copy:
      std::memcpy(room, room + words / 2, words / 2 * sizeof(uint64_t));
      return bytes;
    case Way::read: {
      uint64_t sums[16] = {};
      for (size_t i = 0; i + 16 <= words; i += 16)
        for (size_t k = 0; k < 16; ++k) sums[k] ^= room[i + k];
      uint64_t all = 0;
      for (const uint64_t sum : sums) all ^= sum;
      kept ^= all;
      return bytes;
    }
    case Way::change:
      for (size_t i = 0; i + 16 <= words; i += 16)
        for (size_t k = 0; k < 16; ++k) room[i + k] += 1;
      return 2 * bytes;
  }
  return 0;
}

// Every thread moves bytes of its own, `each` of them again and again, all at once.
double best_rate(int64_t each) {
  const auto words = static_cast<size_t>(std::max<int64_t>(32, each / 8));
  const int all = parallel_width();
  double best = 0;
  std::atomic<uint64_t> kept = 0;
  for (const Way way : {Way::copy, Way::read, Way::change})
    for (int time = 0; time < kTimes; ++time) {
      std::vector<double> rates(static_cast<size_t>(all));
      std::atomic<int> arrived = 0;
      parallel_tasks(all, [&](int64_t task) {
        Room room(words);
        ++arrived;
        while (arrived < all) std::this_thread::yield();
        const int64_t start = now_ns();
        double moved = 0;
        do {
          moved += move(way, room.data(), words, kept);
        } while (seconds_since(start) < kMeasured);
        rates[static_cast<size_t>(task)] = moved / seconds_since(start);
      });
      double sum = 0;
      for (const double rate : rates) sum += rate;
      best = std::max(best, sum);
    }
  return best;
}

// Bytes of each level, of all its caches that serve this process.
std::map<int, double> cache_sizes() {
  std::map<int, double> sizes;
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof set, &set) != 0) return sizes;
  std::set<std::string> seen;
  for (int core = 0; core < CPU_SETSIZE; ++core) {
    if (!CPU_ISSET(core, &set)) continue;
    for (int index = 0; index < 8; ++index) {
      const std::string folder = "/sys/devices/system/cpu/cpu" + std::to_string(core) +
                                 "/cache/index" + std::to_string(index) + "/";
      int level = 0;
      double kib = 0;
      std::string type, shared;
      if (!(std::ifstream(folder + "level") >> level) ||
          !(std::ifstream(folder + "type") >> type) || !(std::ifstream(folder + "size") >> kib) ||
          !(std::ifstream(folder + "shared_cpu_list") >> shared))
        break;
      if (type != "Instruction" && seen.insert(std::to_string(level) + ":" + shared).second)
        sizes[level] += kib * 1024;
    }
  }
  return sizes;
}

}  // namespace

std::vector<CacheCeiling> measure_cache_ceilings() {
  std::vector<CacheCeiling> caches;
  for (const auto& [level, capacity] : cache_sizes())
    caches.push_back({capacity, best_rate(static_cast<int64_t>(capacity) / 2 / parallel_width())});
  // A nearer cache serves what lies in a farther one at least as fast.
  for (size_t i = caches.size(); i-- > 1;)
    caches[i - 1].bytes = std::max(caches[i - 1].bytes, caches[i].bytes);
  return caches;
}

double measure_memory_ceiling() {
  constexpr int64_t kAll = int64_t{256} << 20;
  double largest = 0;
  for (const auto& [level, capacity] : cache_sizes()) largest = std::max(largest, capacity);
  return best_rate(std::max(kAll, 4 * static_cast<int64_t>(largest)) / parallel_width());
}

}  // namespace millrace::cpu
