// What the expressions of byte-level BPE ask of a character: letter, number, white space, or none
// of these (Unicode 16 general categories L and N, and property White_Space). The tables stand in
// unicode_class.inc; tests/golden/make_unicode_class.py writes them.
#pragma once
#include <cstdint>

namespace millrace {

enum class UnicodeClass : uint8_t { other, letter, number, space };

UnicodeClass unicode_class(char32_t code_point);  // up to kLastCodePoint

}  // namespace millrace
