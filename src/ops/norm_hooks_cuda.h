// Hooks that layer_norm and rms_norm on a GPU share.
#pragma once
#include <string>

#include "ops/row_hooks_cuda.h"
#include "ops/row_norm_cuda.h"

namespace millrace::cuda {

inline NormRows norm_rows(const OpSite& site, int multiprocessors) {
  const TensorType& x = site.in[0];
  return {x.dtype, x.shape.rows(), x.shape.last(), multiprocessors};
}
inline std::string decline_norm(const OpSite& site, Context&) {
  return decline_mixed({site.in[0].dtype, site.out[0].dtype});
}

}  // namespace millrace::cuda
