#include "data/unicode_class.h"

#include <array>
#include <vector>

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

// A byte per code point, in pages of which equal ones would be few: those without any class share
// page 0.
class Table {
 public:
  Table() {
    fill(kLetters, UnicodeClass::letter);
    fill(kNumbers, UnicodeClass::number);
    fill(kSpaces, UnicodeClass::space);
  }
  UnicodeClass at(char32_t c) const {
    return c <= kLast ? classes_[page_of_[c / kPage] * kPage + c % kPage] : UnicodeClass::other;
  }

 private:
  template <size_t kCount>
  void fill(const Range (&ranges)[kCount], UnicodeClass value) {
    for (const Range& range : ranges)
      for (uint32_t c = range.first; c <= range.last; ++c) {
        uint16_t& page = page_of_[c / kPage];
        if (page == 0) {
          page = static_cast<uint16_t>(classes_.size() / kPage);
          classes_.resize(classes_.size() + kPage, UnicodeClass::other);
        }
        classes_[page * kPage + c % kPage] = value;
      }
  }

  static constexpr uint32_t kLast = 0x10FFFF, kPage = 256;
  std::array<uint16_t, kLast / kPage + 1> page_of_{};
  std::vector<UnicodeClass> classes_ = std::vector<UnicodeClass>(kPage, UnicodeClass::other);
};

}  // namespace

UnicodeClass unicode_class(char32_t code_point) {
  static const Table table;
  return table.at(code_point);
}

}  // namespace millrace
