// Small helpers that op cards share.
#pragma once
#include <string>
#include <vector>

#include "graph/autodiff.h"
#include "graph/builder.h"
#include "graph/op.h"

// Both instantiations of a card's reference loop `template <typename T> void reference(const
// RefCall<T>&)`.
#define MR_REFERENCE .reference_f32 = reference<float>, .reference_f64 = reference<double>

namespace millrace {

// "wants 3 inputs, got 2" or "".
inline std::string expect_inputs(std::span<const TensorType> in, size_t count) {
  return in.size() == count ? "" : fmt::format("wants {} inputs, got {}", count, in.size());
}

}  // namespace millrace
