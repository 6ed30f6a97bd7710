#include "data/unicode_class.h"

#include "data/code_point_table.h"

namespace millrace {
namespace {

struct Range {
  uint32_t first, last;
};

constexpr Range kLetters[] = {
#define MR_LETTERS(first, last) {first, last},
#define MR_NUMBERS(first, last)
#include "data/unicode_class.inc"
#undef MR_LETTERS
#undef MR_NUMBERS
};
constexpr Range kNumbers[] = {
#define MR_LETTERS(first, last)
#define MR_NUMBERS(first, last) {first, last},
#include "data/unicode_class.inc"
#undef MR_LETTERS
#undef MR_NUMBERS
};
constexpr Range kSpaces[] = {{0x09, 0x0D},     {0x20, 0x20},     {0x85, 0x85},     {0xA0, 0xA0},
                             {0x1680, 0x1680}, {0x2000, 0x200A}, {0x2028, 0x2029}, {0x202F, 0x202F},
                             {0x205F, 0x205F}, {0x3000, 0x3000}};

template <size_t kCount>
void fill(CodePointTable<UnicodeClass>& table, const Range (&ranges)[kCount], UnicodeClass value) {
  for (const Range& range : ranges)
    for (uint32_t c = range.first; c <= range.last; ++c) table.set(c, value);
}

CodePointTable<UnicodeClass> make_table() {
  CodePointTable<UnicodeClass> table(UnicodeClass::other);
  fill(table, kLetters, UnicodeClass::letter);
  fill(table, kNumbers, UnicodeClass::number);
  fill(table, kSpaces, UnicodeClass::space);
  return table;
}

}  // namespace

UnicodeClass unicode_class(char32_t code_point) {
  static const CodePointTable<UnicodeClass> table = make_table();
  return table.get(code_point);
}

}  // namespace millrace
