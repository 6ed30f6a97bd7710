#include "cuda/elementwise_program.h"

#include <array>

#include "cuda/context.h"

namespace millrace::cuda {
namespace {

constexpr unsigned kMinThreads = 64;

}  // namespace

ElementwiseProgram::ElementwiseProgram(const Expression& e, std::span<const Operand> in,
                                       std::span<const DType> out, int64_t count, Context& context)
    : count_(count) {
  MR_CHECK(in.size() + out.size() <= kMaxTensors, "{} operands, {} results", in.size(), out.size());
  if (count == 0) return;
  periods_ = elementwise_periods(in, count);
  kernel_ = context.compiled(elementwise_source(e, in, out, count), "elementwise");
  // Small tensors in small blocks: one on every multiprocessor if they reach that far.
  const int64_t threads = (count + kElementwisePerThread - 1) / kElementwisePerThread;
  threads_ = kElementwiseThreads;
  while (threads_ > kMinThreads && threads / threads_ < 2 * context.device().multiprocessors)
    threads_ /= 2;
  blocks_ = static_cast<unsigned>((threads + threads_ - 1) / threads_);
}

void ElementwiseProgram::run(std::span<const void* const> in, std::span<void* const> out,
                             cudaStream_t stream) const {
  if (count_ == 0) return;
  std::array<void*, 2 * kMaxTensors + 1> arguments;  // where each argument stands
  size_t used = 0;
  auto add = [&](const void* argument) { arguments[used++] = const_cast<void*>(argument); };
  add(&count_);
  for (const void* const& operand : in) add(&operand);
  for (void* const& result : out) add(&result);
  for (const int64_t& period : periods_) add(&period);
  MR_CUDA(cudaLaunchKernel(kernel_, dim3(blocks_), dim3(threads_), arguments.data(), 0, stream));
}

}  // namespace millrace::cuda
