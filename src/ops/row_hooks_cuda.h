// Hooks that the row-wise CUDA kernels share.
#pragma once
#include <initializer_list>
#include <memory>
#include <string>

#include "cuda/context.h"
#include "cuda/kernel.h"

namespace millrace::cuda {

// "" when the tensors are all f32, all bf16 or all f16.
inline std::string decline_mixed(std::initializer_list<DType> types) {
  const DType first = *types.begin();
  if (first == DType::i32) return "rows of i32";
  for (DType type : types)
    if (type != first)
      return "rows of " + std::string(dtype_name(first)) + " and of " +
             std::string(dtype_name(type));
  return "";
}

// Grids depend on the number of multiprocessors, and `run` sees no Context.
inline std::shared_ptr<const void> prepare_multiprocessors(const Call&, Context& context) {
  return std::make_shared<const int>(context.device().multiprocessors);
}
inline int multiprocessors_of(const Call& call) { return *static_cast<const int*>(call.prepared); }

}  // namespace millrace::cuda
