#include "cli/data_progress.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>

#include "core/clock.h"
#include "core/text.h"

namespace millrace {

DataProgress::DataProgress() : terminal_(isatty(STDERR_FILENO) != 0) {}

DataProgress::~DataProgress() { clear(); }

void DataProgress::clear() {
  if (shown_) std::fputs("\r\033[K", stderr);
  shown_ = false;
}

void DataProgress::progress(const char* stage, int64_t bytes_done, int64_t bytes_all) {
  const int64_t now = now_ns();
  if (stage_ != stage) {
    stage_ = stage;
    stage_begin_ = now;
  }
  constexpr int64_t kInterval = 100'000'000;
  if (!terminal_ || now - last_drawn_ < kInterval || now - stage_begin_ < kInterval) return;
  last_drawn_ = now;
  const double share = bytes_all > 0 ? std::clamp(static_cast<double>(bytes_done) /
                                                      static_cast<double>(bytes_all),
                                                  0.0, 1.0)
                                     : 0,
               seconds = static_cast<double>(now - stage_begin_) * 1e-9;
  constexpr int kWidth = 30;
  const auto filled = static_cast<int>(share * kWidth);
  std::string bar;
  for (int i = 0; i < kWidth; ++i) bar += i < filled ? "━" : "─";
  std::fprintf(stderr, "\r\033[Kdata     %s %3.0f%% %s %s/s, %s left", stage, 100 * share,
               bar.c_str(),
               human_bytes(static_cast<int64_t>(static_cast<double>(bytes_done) / seconds)).c_str(),
               share > 0 ? human_seconds(seconds / share - seconds).c_str() : "?");
  shown_ = true;
}

void DataProgress::note(const std::string& text) {
  clear();
  std::fprintf(stderr, "data     %s\n", text.c_str());
}

}  // namespace millrace
