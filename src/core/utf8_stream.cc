#include "core/utf8_stream.h"

#include <cstdint>

namespace millrace {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";

// What the bytes at the front are. `bytes` of a character, or of a fault to be replaced; 0: the
// start of a character whose end has not come.
struct Front {
  size_t bytes;
  bool valid;
};

// Strict UTF-8 (RFC 3629), table 3-7 of the Unicode standard: only the second byte has limits that
// depend on the first.
Front front_of(std::string_view text) {
  auto byte = [&](size_t i) { return static_cast<uint8_t>(text[i]); };
  const uint8_t first = byte(0);
  if (first < 0x80) return {1, true};
  if (first < 0xC2 || first > 0xF4) return {1, false};
  const size_t length = first >= 0xF0 ? 4 : first >= 0xE0 ? 3 : 2;
  const uint8_t low = first == 0xE0   ? 0xA0
                      : first == 0xF0 ? 0x90
                                      : 0x80,
                high = first == 0xED   ? 0x9F
                       : first == 0xF4 ? 0x8F
                                       : 0xBF;
  for (size_t i = 1; i < length; ++i) {
    if (i == text.size()) return {0, true};
    if (byte(i) < (i == 1 ? low : 0x80) || byte(i) > (i == 1 ? high : 0xBF)) return {i, false};
  }
  return {length, true};
}

}  // namespace

std::string Utf8Stream::add(std::string_view bytes) {
  waiting_ += bytes;
  std::string out;
  size_t at = 0;
  while (at < waiting_.size()) {
    const std::string_view rest = std::string_view(waiting_).substr(at);
    const Front front = front_of(rest);
    if (front.bytes == 0) break;
    out += front.valid ? rest.substr(0, front.bytes) : kReplacement;
    at += front.bytes;
  }
  waiting_.erase(0, at);
  return out;
}

std::string Utf8Stream::finish() {
  const bool open = !waiting_.empty();
  waiting_.clear();
  return std::string(open ? kReplacement : "");
}

}  // namespace millrace
