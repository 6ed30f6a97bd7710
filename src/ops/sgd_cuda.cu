// sgd on a GPU, with and without momentum.
#include "ops/optimizer_cuda.cuh"
#include "ops/sgd_cuda.h"

namespace millrace::cuda {
namespace {

struct PlainRule {
  static constexpr int kKept = 1;

  using Step = StepNumbers;
  __device__ Step begin(const StepNumbers& numbers) const { return numbers; }

  __device__ void apply(const Step& step, float gradient, float* x) const {
    x[0] -= step.rate * (gradient * step.scale + step.decay * x[0]);
  }
};

struct MomentumRule {
  static constexpr int kKept = 2;  // the parameter, the buffer
  float momentum;
  bool nesterov;

  using Step = StepNumbers;
  __device__ Step begin(const StepNumbers& numbers) const { return numbers; }

  __device__ void apply(const Step& step, float gradient, float* x) const {
    gradient = gradient * step.scale + step.decay * x[0];
    x[1] = momentum * x[1] + gradient;
    x[0] -= step.rate * (nesterov ? gradient + momentum * x[1] : x[1]);
  }
};

}  // namespace

void launch_sgd(const OptimizerUpdate& update, float momentum, bool nesterov, cudaStream_t stream) {
  if (momentum == 0)
    launch_update(update, PlainRule{}, stream);
  else
    launch_update(update, MomentumRule{.momentum = momentum, .nesterov = nesterov}, stream);
}

}  // namespace millrace::cuda
