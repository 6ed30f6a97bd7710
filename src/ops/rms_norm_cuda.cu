// rms_norm and its gradient on a GPU: row_norm_cuda.cuh, without a mean.
#include "ops/rms_norm_cuda.h"
#include "ops/row_norm_cuda.cuh"

namespace millrace::cuda {

void launch_rms_norm(const NormRows& rows, const NormForward& of, cudaStream_t stream) {
  launch_norm<false>(rows, of, stream);
}

void launch_rms_norm_grad(const NormRows& rows, const NormBackward& of, cudaStream_t stream) {
  launch_norm_backward<false, false>(rows, of, stream);
}

void launch_rms_norm_grad_end(const NormRows& rows, const NormBackward& of, cudaStream_t stream) {
  launch_norm_backward_end<false, false>(rows, of, stream);
}

}  // namespace millrace::cuda
