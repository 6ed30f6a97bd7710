// The element-wise kernel for operands that are given by their tensors' types. The epilogues of
// products use it too.
#pragma once
#include <memory>
#include <span>

#include "core/shape.h"
#include "cuda/elementwise_program.h"

namespace millrace::cuda {

// Operands broadcast to the shape of the results as ops/elementwise.h says.
std::shared_ptr<const ElementwiseProgram> elementwise_program(const Expression& e,
                                                              std::span<const TensorType> in,
                                                              std::span<const TensorType> out,
                                                              Context& context);

}  // namespace millrace::cuda
