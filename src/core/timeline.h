// Who worked when: spans of time on lanes, one for each thread or queue, for a picture and a trace.
// Kept only while somebody asks for it; the ledger has the sums.
#pragma once
#include <cstdint>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

namespace millrace {

struct Span {
  int64_t begin = 0, end = 0;  // of now_ns()
  uint32_t lane = 0;
  // What was done, what it belongs to (a phase, a kind of waiting) and where in the model. The text
  // is not kept: it must outlive the timeline.
  std::string_view name, group, place;
};

// Lanes of every timeline: of the thread whose time the ledger splits, and of the nodes it runs.
constexpr uint32_t kHostLane = 0, kComputeLane = 1;

class Timeline {
 public:
  // Room is made here, none later: what does not fit is counted.
  explicit Timeline(size_t room) { spans_.reserve(room); }
  // The lane of that name, made when it is new. Spans of one lane do not overlap.
  uint32_t lane(std::string_view name);
  void add(const Span& span);

  const std::vector<std::string>& lanes() const { return lanes_; }
  const std::vector<Span>& spans() const { return spans_; }
  int64_t left_out() const { return left_out_; }

 private:
  std::mutex mutex_;  // workers add beside the step
  std::vector<std::string> lanes_{"host", "compute"};
  std::vector<Span> spans_;
  int64_t left_out_ = 0;
};

}  // namespace millrace
