// adagrad on a GPU: three streams in, two out and the shadow.
#include "ops/adagrad_cuda.h"
#include "ops/optimizer_cuda.cuh"

namespace millrace::cuda {
namespace {

struct AdagradRule {
  static constexpr int kKept = 2;  // the parameter, the sum of squares
  float eps;

  using Step = StepNumbers;
  __device__ Step begin(const StepNumbers& numbers) const { return numbers; }

  __device__ void apply(const Step& step, float gradient, float* x) const {
    gradient = gradient * step.scale + step.decay * x[0];
    x[1] += gradient * gradient;
    // Not a division, for the reason given in adam_cuda.cu.
    x[0] -= step.rate * gradient * __frcp_rn(sqrtf(x[1]) + eps);
  }
};

}  // namespace

void launch_adagrad(const OptimizerUpdate& update, float eps, cudaStream_t stream) {
  launch_update(update, AdagradRule{.eps = eps}, stream);
}

}  // namespace millrace::cuda
