#include "cli/data_progress.h"

#include <algorithm>
#include <cstdio>

#include "core/clock.h"
#include "core/text.h"

namespace millrace {

void DataProgress::progress(const char* stage, int64_t bytes_done, int64_t bytes_all) {
  const int64_t now = now_ns();
  if (stage_ != stage) {
    stage_ = stage;
    stage_begin_ = now;
    waiting_.reset();
    line_.clear();
    if (bytes_all < 0) waiting_.emplace(fmt::format("data     {}", stage));
  }
  constexpr int64_t kSoon = 100'000'000;
  if (bytes_all < 0 || now - stage_begin_ < kSoon) return;
  line_.draw([&] {
    const double share = bytes_all > 0 ? std::clamp(static_cast<double>(bytes_done) /
                                                        static_cast<double>(bytes_all),
                                                    0.0, 1.0)
                                       : 0,
                 seconds = static_cast<double>(now - stage_begin_) * 1e-9;
    constexpr int kWidth = 30;
    const auto filled = static_cast<int>(share * kWidth);
    std::string bar;
    for (int i = 0; i < kWidth; ++i) bar += i < filled ? "━" : "─";
    return fmt::format("data     {} {:3.0f}% {} {}/s, {} left", stage, 100 * share, bar,
                       human_bytes(static_cast<int64_t>(static_cast<double>(bytes_done) / seconds)),
                       share > 0 ? human_seconds(seconds / share - seconds) : "?");
  });
}

void DataProgress::note(const std::string& text) {
  waiting_.reset();
  line_.clear();
  std::fprintf(stderr, "data     %s\n", text.c_str());
}

}  // namespace millrace
