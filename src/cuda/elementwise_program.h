// Runs an Expression over whole tensors: a kernel is written for it as CUDA text and compiled for
// the device when it is first met. Serves element-wise nodes and what is left of a product's
// epilogue.
#pragma once
#include <cuda_runtime_api.h>

#include "cuda/elementwise_source.h"

namespace millrace::cuda {

class Context;

class ElementwiseProgram {
 public:
  static constexpr size_t kMaxTensors = 48;  // operands and results

  ElementwiseProgram(const Expression& e, std::span<const Operand> in, std::span<const DType> out,
                     int64_t count, Context& context);
  // Tensors are aligned to 16 bytes. A result may stand on a full operand of its type.
  void run(std::span<const void* const> in, std::span<void* const> out, cudaStream_t stream) const;

 private:
  int64_t count_ = 0;
  std::vector<int64_t> periods_;  // of suffix and prefix operands, in order
  cudaKernel_t kernel_ = nullptr;
  unsigned blocks_ = 0, threads_ = 0;
};

}  // namespace millrace::cuda
