#include "train/text_signs.h"

#include "core/text.h"
#include "data/unicode_class.h"

namespace millrace {

TextSign text_sign_at(std::string_view text, size_t at) {
  const CodePoint c = code_point_at(text, at);
  if (c.bytes == 0) return {char32_t{0xDC00} + static_cast<unsigned char>(text[at]), 1, false};
  // Python adds the four separators of ASCII to Unicode's White_Space.
  const bool separator = c.value >= 0x1C && c.value <= 0x1F;
  return {c.value, c.bytes, separator || unicode_class(c.value) == UnicodeClass::space};
}

}  // namespace millrace
