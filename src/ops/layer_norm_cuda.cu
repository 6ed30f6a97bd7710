// layer_norm and its gradient on a GPU: row_norm_cuda.cuh, with a mean.
#include "ops/layer_norm_cuda.h"
#include "ops/row_norm_cuda.cuh"

namespace millrace::cuda {

void launch_layer_norm(const NormRows& rows, const NormForward& of, cudaStream_t stream) {
  launch_norm<true>(rows, of, stream);
}

void launch_layer_norm_grad(const NormRows& rows, const NormBackward& of, cudaStream_t stream) {
  if (of.sums != nullptr)
    launch_norm_backward<true, true>(rows, of, stream);
  else
    launch_norm_backward<true, false>(rows, of, stream);
}

void launch_layer_norm_grad_end(const NormRows& rows, const NormBackward& of, cudaStream_t stream) {
  if (of.sums != nullptr)
    launch_norm_backward_end<true, true>(rows, of, stream);
  else
    launch_norm_backward_end<true, false>(rows, of, stream);
}

}  // namespace millrace::cuda
