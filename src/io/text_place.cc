#include "io/text_place.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

namespace millrace {
namespace {

// Characters, eight bytes at a time: of every field that is read it is asked where it stands.
int64_t characters(std::string_view text) {
  constexpr uint64_t kEach = 0x0101010101010101;
  uint64_t inside = 0;  // bytes that go on with a character: 10xxxxxx
  size_t at = 0;
  for (; at + 8 <= text.size(); at += 8) {
    uint64_t eight;
    std::memcpy(&eight, text.data() + at, 8);
    inside += ((eight & ~(eight << 1) & kEach * 0x80) >> 7) * kEach >> 56;
  }
  for (; at < text.size(); ++at) inside += (text[at] & 0xC0) == 0x80 ? 1 : 0;
  return std::ssize(text) - static_cast<int64_t>(inside);
}

}  // namespace

void TextPlace::advance(std::string_view text) {
  if (form == Form::escaped) return;
  auto doubled = [&](std::string_view part) {
    return form == Form::plain ? 0 : std::count(part.begin(), part.end(), '"');
  };
  int64_t lines = 0;
  for (size_t at = text.find('\n'); at != text.npos; at = text.find('\n', at + 1)) ++lines;
  const std::string_view tail = lines == 0 ? text : text.substr(text.rfind('\n') + 1);
  if (lines > 0) column = 1;
  line += lines;
  column += characters(tail) + doubled(tail);
  byte += std::ssize(text) + doubled(text);
}

std::string TextPlace::inside(std::string_view text, size_t at) const {
  TextPlace here = *this;
  here.advance(text.substr(0, at));
  return fmt::format("{}:{}:{} (byte {})", here.file, here.line, here.column, here.byte);
}

}  // namespace millrace
