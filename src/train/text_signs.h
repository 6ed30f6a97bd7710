// Text sign by sign as Python's str has it, which the packages that metrics are compared with are
// written in.
#pragma once
#include <cstddef>
#include <string_view>

namespace millrace {

struct TextSign {
  char32_t value = 0;
  size_t bytes = 0;
  bool space = false;  // str.isspace()
};

// The sign at `at` < text.size(). A byte that is not UTF-8 is a sign of its own, from U+DC80 on, as
// errors="surrogateescape" reads it: no such byte is lost, and none is mistaken for another.
TextSign text_sign_at(std::string_view text, size_t at);

}  // namespace millrace
