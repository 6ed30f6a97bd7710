// Shape: how large a tensor is. Sizes are int64_t and every product is checked, so a shape that
// exists has a size that can be trusted.
#pragma once
#include <algorithm>
#include <array>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <vector>

#include "core/dtype.h"
#include "core/error.h"

namespace millrace {

class Shape {
 public:
  static constexpr int kMaxRank = 6;
  Shape() = default;
  Shape(std::initializer_list<int64_t> dims) : Shape(dims.begin(), dims.end()) {}
  explicit Shape(const std::vector<int64_t>& dims) : Shape(dims.begin(), dims.end()) {}
  template <typename It>
  Shape(It first, It last) {
    MR_CHECK(last - first <= kMaxRank, "rank {} over {}", last - first, kMaxRank);
    for (; first != last; ++first) push_back(*first);
  }

  int rank() const { return rank_; }
  int64_t operator[](int i) const { return dims_[static_cast<size_t>(i)]; }
  // Counted from the end: last(0) is the innermost dimension.
  int64_t last(int i = 0) const { return dims_[static_cast<size_t>(rank_ - 1 - i)]; }
  const int64_t* begin() const { return dims_.data(); }
  const int64_t* end() const { return dims_.data() + rank_; }

  void push_back(int64_t dim) {
    MR_CHECK(dim >= 0 && rank_ < kMaxRank, "dimension {} at rank {}", dim, rank_);
    dims_[static_cast<size_t>(rank_++)] = dim;
  }

  int64_t numel() const {
    int64_t n = 1;
    for (int64_t d : *this)
      MR_CHECK(!__builtin_mul_overflow(n, d, &n), "size of {} overflows", str());
    return n;
  }
  // Elements over all dimensions but the last: the number of rows of the flattened matrix.
  int64_t rows() const {
    Shape leading = *this;
    if (rank_ > 0) --leading.rank_;
    return leading.numel();
  }

  std::string str() const {
    std::string s = "[";
    for (int i = 0; i < rank_; ++i) s += (i ? "," : "") + std::to_string((*this)[i]);
    return s + "]";
  }

  friend bool operator==(const Shape& a, const Shape& b) {
    return std::equal(a.begin(), a.end(), b.begin(), b.end());
  }

 private:
  std::array<int64_t, kMaxRank> dims_{};
  int rank_ = 0;
};

struct TensorType {
  Shape shape;
  DType dtype = DType::f32;

  int64_t numel() const { return shape.numel(); }
  int64_t bytes() const {
    int64_t bytes = 0;
    MR_CHECK(!__builtin_mul_overflow(shape.numel(), dtype_bytes(dtype), &bytes), "{} too large",
             str());
    return bytes;
  }
  std::string str() const { return std::string(dtype_name(dtype)) + shape.str(); }
  friend bool operator==(const TensorType& a, const TensorType& b) {
    return a.dtype == b.dtype && a.shape == b.shape;
  }
};

}  // namespace millrace
