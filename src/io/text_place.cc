#include "io/text_place.h"

#include <fmt/format.h>

#include <algorithm>

namespace millrace {

void TextPlace::advance(std::string_view text) {
  if (form == Form::escaped) return;
  auto doubled = [&](std::string_view part) {
    return form == Form::plain ? 0 : std::count(part.begin(), part.end(), '"');
  };
  const auto lines = std::count(text.begin(), text.end(), '\n');
  const std::string_view tail = lines == 0 ? text : text.substr(text.rfind('\n') + 1);
  if (lines > 0) column = 1;
  line += lines;
  column += std::count_if(tail.begin(), tail.end(), [](char c) { return (c & 0xC0) != 0x80; }) +
            doubled(tail);
  byte += std::ssize(text) + doubled(text);
}

std::string TextPlace::inside(std::string_view text, size_t at) const {
  TextPlace here = *this;
  here.advance(text.substr(0, at));
  return fmt::format("{}:{}:{} (byte {})", here.file, here.line, here.column, here.byte);
}

}  // namespace millrace
