// Words from outside bytes, made fit for an error message: one line, no terminal codes, not a page.
#pragma once
#include <algorithm>
#include <string>
#include <string_view>

namespace millrace {

inline std::string printable(std::string_view text, size_t longest = 80) {
  size_t end = std::min(text.size(), longest);
  // Never cut a UTF-8 character in two.
  while (end < text.size() && end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80) {
    --end;
  }
  std::string result(text.substr(0, end));
  for (char& c : result) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7F) c = '?';
  }
  return end < text.size() ? result + "…" : result;
}

inline std::string quote(std::string_view text, size_t longest = 80) {
  return "`" + printable(text, longest) + "`";
}

}  // namespace millrace
