#include "cli/status_line.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <utility>

namespace millrace {

void StatusLine::draw_now(const std::string& text) {
  if (!wanted_) return;
  std::fprintf(stderr, "\r\033[K%s", text.c_str());
  std::fflush(stderr);
  shown_ = true;
  drawn_ns_ = now_ns();
}

void StatusLine::clear() {
  if (shown_) std::fputs("\r\033[K", stderr);
  shown_ = false;
}

std::string share_text(const char* what, int64_t done, int64_t all) {
  return fmt::format(
      "{} {:3.0f} %", what,
      100 * static_cast<double>(done) / static_cast<double>(std::max<int64_t>(1, all)));
}

Waiting::Waiting(std::string what) {
  if (line_.wanted()) thread_ = std::thread([this, what = std::move(what)] { show(what); });
}

Waiting::~Waiting() {
  {
    const std::lock_guard lock(mutex_);
    end_ = true;
  }
  ended_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void Waiting::show(const std::string& what) {
  const int64_t begin = now_ns();
  std::unique_lock lock(mutex_);
  for (auto pause = std::chrono::milliseconds(500);
       !ended_.wait_for(lock, pause, [&] { return end_; }); pause = std::chrono::seconds(1))
    line_.draw_now(fmt::format("{}, {:.0f} s", what, seconds_since(begin)));
}

}  // namespace millrace
