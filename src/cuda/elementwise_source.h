// The text of the kernel that runs an Expression over whole tensors. Needs no device.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "core/dtype.h"
#include "graph/expression.h"

namespace millrace::cuda {

// How an operand relates to the elements of a result (the rules are those of ops/elementwise.h).
struct Operand {
  enum class Kind : uint8_t { full, scalar, suffix, prefix, random_key };
  DType dtype = DType::f32;
  Kind kind = Kind::full;
  int64_t period = 1;  // suffix: element i reads i % period; prefix: i / period
};

// The text of the kernel `elementwise` for results of `count` elements. Sizes are its arguments:
// programs that differ only in them share it, as long as they are of the same kind (a period that
// whole groups of elements divide, a count that 32 bits hold).
std::string elementwise_source(const Expression& e, std::span<const Operand> in,
                               std::span<const DType> out, int64_t count);

// Its arguments behind the tensors: the periods of suffix and prefix operands, in order.
std::vector<int64_t> elementwise_periods(std::span<const Operand> in, int64_t count);

// A thread has eight elements: eight consecutive ones, which are what one Philox block decides and
// 16 bytes of halves; or, where all is f32, two groups of four, so that neighbouring threads touch
// neighbouring 16 bytes.
constexpr int kElementwisePerThread = 8;
constexpr int kElementwiseThreads = 256;  // of a block, at most

}  // namespace millrace::cuda
