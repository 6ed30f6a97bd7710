// adam on a GPU. Four streams in, three out and the shadow: 28 to 30 bytes for each element.
#include <cmath>

#include "ops/adam_cuda.h"
#include "ops/optimizer_cuda.cuh"

namespace millrace::cuda {
namespace {

struct AdamRule {
  static constexpr int kKept = 3;  // the parameter, first and second moment
  float old1, new1, old2, new2, eps;
  double log_beta1, log_beta2;
  bool decoupled;

  // `kept` and `added` are the two forms of weight decay.
  struct Step {
    float scale, step_size, correction, kept, added;
  };

  __device__ Step begin(const StepNumbers& numbers) const {
    // In double, by two threads: an error here would be one of every element.
    __shared__ float corrected[2];
    if (threadIdx.x < 2) {
      // 1 - beta^t
      const double left = -expm1(numbers.time * (threadIdx.x == 0 ? log_beta1 : log_beta2));
      corrected[threadIdx.x] =
          static_cast<float>(threadIdx.x == 0 ? numbers.rate / left : rsqrt(left));
    }
    __syncthreads();
    return {.scale = numbers.scale,
            .step_size = corrected[0],
            .correction = corrected[1],
            .kept = decoupled ? fmaf(-numbers.rate, numbers.decay, 1.0f) : 1.0f,
            .added = decoupled ? 0.0f : numbers.decay};
  }

  __device__ void apply(const Step& step, float gradient, float* x) const {
    gradient = gradient * step.scale + step.added * x[0];
    x[1] = old1 * x[1] + new1 * gradient;
    x[2] = old2 * x[2] + new2 * gradient * gradient;
    const float root = sqrtf(x[2]) * step.correction + eps;
    // A division is slow when the dividend is 0, as in rows of an embedding that are not used.
    x[0] = step.kept * x[0] - step.step_size * x[1] * __frcp_rn(root);
  }
};

}  // namespace

void launch_adam(const OptimizerUpdate& update, const AdamSettings& settings, cudaStream_t stream) {
  const AdamRule rule{
      .old1 = static_cast<float>(settings.beta1),
      .new1 = static_cast<float>(1 - settings.beta1),
      .old2 = static_cast<float>(settings.beta2),
      .new2 = static_cast<float>(1 - settings.beta2),
      .eps = static_cast<float>(settings.eps),
      .log_beta1 = std::log(settings.beta1),
      .log_beta2 = std::log(settings.beta2),
      .decoupled = settings.decoupled,
  };
  launch_update(update, rule, stream);
}

}  // namespace millrace::cuda
