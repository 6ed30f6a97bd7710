// A line at the foot of a terminal that says how far something has come: drawn again and again, and
// taken away before anything else is said. On standard error; nothing where that is no terminal.
#pragma once
#include <unistd.h>

#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <string>
#include <thread>

#include "core/clock.h"

namespace millrace {

class StatusLine {
 public:
  explicit StatusLine(bool wanted = isatty(STDERR_FILENO) != 0) : wanted_(wanted) {}
  ~StatusLine() { clear(); }
  StatusLine(const StatusLine&) = delete;
  StatusLine& operator=(const StatusLine&) = delete;

  // A few times a second at the most; `text` is called for what is drawn.
  template <typename Text>
  void draw(Text text) {
    if (!wanted_ || (shown_ && now_ns() - drawn_ns_ < kInterval)) return;
    draw_now(text());
  }
  void draw_now(const std::string& text);
  void clear();
  bool wanted() const { return wanted_; }

 private:
  static constexpr int64_t kInterval = 250'000'000;
  bool wanted_, shown_ = false;
  int64_t drawn_ns_ = 0;
};

// "validating  34 %"
std::string share_text(const char* what, int64_t done, int64_t all);

// While it lives, and once it has lived for a moment, the terminal says what is waited for and how
// long it took so far. For work that tells nothing of itself.
class Waiting {
 public:
  explicit Waiting(std::string what);
  ~Waiting();

 private:
  void show(const std::string& what);
  StatusLine line_;
  std::mutex mutex_;
  std::condition_variable ended_;
  bool end_ = false;
  std::thread thread_;
};

}  // namespace millrace
