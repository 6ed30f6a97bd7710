// Words from outside bytes, made fit for an error message: one line, no terminal codes, not a page.
#pragma once
#include <algorithm>
#include <string>
#include <string_view>

#include "core/text.h"

namespace millrace {

inline std::string printable(std::string_view text, size_t longest = 80) {
  std::string result;
  while (!text.empty() && result.size() < longest) {
    const size_t length = std::max<size_t>(code_point_at(text, 0).bytes, 1);
    const std::string_view sign = text.substr(0, length);
    const auto byte = static_cast<unsigned char>(text[0]);
    // Bytes that are not UTF-8, and both blocks of control characters.
    const bool bad =
        length == 1 ? byte < 0x20 || byte >= 0x7F : sign >= "\xC2\x80" && sign < "\xC2\xA0";
    if (result.size() + (bad ? 1 : length) > longest) break;  // never half a sign
    result += bad ? "?" : sign;
    text.remove_prefix(length);
  }
  return text.empty() ? result : result + "…";
}

inline std::string quote(std::string_view text, size_t longest = 80) {
  return "`" + printable(text, longest) + "`";
}

}  // namespace millrace
