// From a data type that is known at run time to a type of device code.
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "core/dtype.h"

namespace millrace::cuda {

// `function` gets a null pointer of the type that `dtype` stands for.
template <typename F>
auto with_type(DType dtype, F function) {
  switch (dtype) {
    case DType::bf16:
      return function(static_cast<__nv_bfloat16*>(nullptr));
    case DType::f16:
      return function(static_cast<__half*>(nullptr));
    default:
      return function(static_cast<float*>(nullptr));
  }
}

}  // namespace millrace::cuda
