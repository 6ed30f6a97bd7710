// The shares of ops/label_smoothing.h as kernels take them.
#pragma once

namespace millrace::cuda {

struct LabelFloats {
  float on = 1, off = 0;
};

}  // namespace millrace::cuda
