// How the operands of an element-wise node relate to its output; shared by the card and its
// kernels.
#pragma once
#include <cstdint>
#include <numeric>
#include <span>
#include <string>

#include "core/shape.h"

namespace millrace {

enum class Broadcast : uint8_t { full, scalar, suffix, prefix, random_key };

struct OperandLayout {
  Broadcast kind = Broadcast::full;
  int64_t period = 1;  // suffix: element i reads i % period; prefix: i / period
};

// "" or why `in` cannot be an operand of a result of shape `out`.
inline std::string operand_layout(const TensorType& in, const Shape& out, OperandLayout& layout) {
  if (in.dtype == DType::i32) {
    layout.kind = Broadcast::random_key;
    return in.shape == Shape{4} ? "" : "an i32 operand must be a random key [4]";
  }
  if (in.shape == out) {
    layout.kind = Broadcast::full;
    return "";
  }
  if (in.shape.numel() == 1) {
    layout.kind = Broadcast::scalar;
    return "";
  }
  const int rank = in.shape.rank(), out_rank = out.rank();
  bool suffix = rank <= out_rank;
  for (int i = 0; suffix && i < rank; ++i) suffix = in.shape.last(i) == out.last(i);
  if (suffix) {
    layout = {Broadcast::suffix, in.shape.numel()};
    return "";
  }
  bool prefix = rank == out_rank, ended = false;
  for (int i = 0; prefix && i < rank; ++i) {
    if (in.shape[i] != out[i]) ended = true;
    prefix = ended ? in.shape[i] == 1 : in.shape[i] == out[i];
  }
  if (prefix) {
    layout = {Broadcast::prefix, 1};
    for (int i = 0; i < rank && in.shape.last(i) == 1; ++i) layout.period *= out.last(i);
    return "";
  }
  return in.shape.str() + " does not broadcast to " + out.str();
}

// The shape of the result: among operands that are not single numbers the one with most dimensions,
// then the longest.
inline Shape broadcast_shape(std::span<const TensorType> in) {
  Shape shape;
  for (const TensorType& t : in) {
    if (t.dtype != DType::f32) continue;
    const bool number = t.numel() == 1, was_number = shape.numel() == 1;
    // At one rank: the longer dimensions, not the number of elements, which says nothing when it is
    // 0.
    auto length = [](const Shape& s) { return std::accumulate(s.begin(), s.end(), int64_t{0}); };
    const bool better = number != was_number             ? was_number
                        : t.shape.rank() != shape.rank() ? t.shape.rank() > shape.rank()
                                                         : length(t.shape) > length(shape);
    if (better) shape = t.shape;
  }
  return shape;
}

}  // namespace millrace
