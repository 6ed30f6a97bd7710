#include "data/plain_text.h"

#include <algorithm>
#include <cstring>
#include <string_view>
#include <vector>

namespace millrace {

size_t PlainText::read(std::span<char> out) {
  size_t kept = 0;
  for (bool ended = false; kept < out.size() && !ended;) {
    std::span<char> room = out.subspan(kept);
    size_t got = 0;
    if (ahead_) room[got++] = *ahead_;
    ahead_.reset();
    got += stream_->read(room.subspan(got));
    ended = got < room.size();
    constexpr std::string_view kMark = "\xEF\xBB\xBF";
    if (is_first_ && std::string_view(room.data(), got).starts_with(kMark)) {
      had_mark_ = true;
      got -= kMark.size();
      std::memmove(room.data(), room.data() + kMark.size(), got);
    }
    is_first_ = false;
    if (char next = 0; !ended && got > 0 && room[got - 1] == '\r' && stream_->read({&next, 1}) == 1)
      ahead_ = next;
    const char *from = room.data(), *const end = from + got;
    char* to = room.data();
    while (from < end) {
      const auto* found =
          static_cast<const char*>(std::memchr(from, '\r', static_cast<size_t>(end - from)));
      const char* const cr = found ? found : end;
      to = std::copy(from, cr, to);
      from = cr;
      if (cr == end) break;
      if (cr + 1 < end ? cr[1] == '\n' : ahead_ == '\n') {
        ++line_ends_;
        *to++ = '\n';
        if (cr + 1 == end) ahead_.reset();
        from = std::min(cr + 2, end);
      } else {
        *to++ = *from++;
      }
    }
    kept += static_cast<size_t>(to - room.data());
  }
  return kept;
}

bool is_plain_text(const fs::path& path) {
  PlainText text(path);
  std::vector<char> room(1 << 20);
  while (text.read(room) == room.size())
    if (text.had_mark() || text.line_ends() > 0) return false;
  return !text.had_mark() && text.line_ends() == 0;
}

}  // namespace millrace
