// A value for every code point, in pages of which only those in use are kept.
#pragma once
#include <array>
#include <cstdint>
#include <vector>

#include "core/text.h"

namespace millrace {

template <typename Value>
class CodePointTable {
 public:
  explicit CodePointTable(Value none) : none_(none), values_(kPage, none) {}
  void set(char32_t c, Value value) {
    uint16_t& page = page_of_[c / kPage];
    if (page == 0) {
      page = static_cast<uint16_t>(values_.size() / kPage);
      values_.resize(values_.size() + kPage, none_);
    }
    values_[page * kPage + c % kPage] = value;
  }
  // What was set, or `none`. Up to kLastCodePoint.
  Value get(char32_t c) const { return values_[page_of_[c / kPage] * kPage + c % kPage]; }

 private:
  static constexpr size_t kPage = 256;
  Value none_;
  std::array<uint16_t, kLastCodePoint / kPage + 1> page_of_{};  // 0: the empty one
  std::vector<Value> values_;
};

}  // namespace millrace
