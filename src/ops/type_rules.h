// Small rules that the `infer` functions of op cards share. Each returns what is wrong, or "".
#pragma once
#include <initializer_list>
#include <string>
#include <string_view>

#include "core/shape.h"

namespace millrace {

inline std::string expect_type(std::string_view what, const TensorType& got,
                               const TensorType& want) {
  return got == want ? "" : fmt::format("{} is {}, wants {}", what, got.str(), want.str());
}

// A float tensor of at least `rank` dimensions.
inline std::string expect_f32(std::string_view what, const TensorType& got, int rank = 0) {
  if (got.dtype == DType::f32 && got.shape.rank() >= rank) return "";
  return fmt::format("{} is {}, wants f32 of rank {} or more", what, got.str(), rank);
}

inline std::string first_fault(std::initializer_list<std::string> faults) {
  for (const std::string& fault : faults)
    if (!fault.empty()) return fault;
  return "";
}

// The shape over which a row-wise statistic is kept: all dimensions but the last.
inline Shape without_last(const Shape& shape) { return Shape(shape.begin(), shape.end() - 1); }

}  // namespace millrace
