// A CUDA kernel: the way to run an op on a GPU. An op's kernels stand in three files of one prefix:
// ops/<name>_cuda.cu has the device code and plain functions that launch it, ops/<name>_cuda.h
// declares those, ops/<name>_cuda.cc lists the kernels in the order they are tried, each able to
// say why it declines. The .cu files include nothing that needs fmt: nvcc is slow, and chokes on
// it.
#pragma once
#include <cuda_runtime_api.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "graph/op.h"

namespace millrace::cuda {

class Context;

struct Call {
  OpSite site;
  std::span<const void* const> in_data;  // device memory
  std::span<void* const> out_data;
  void* workspace;
  const void* prepared;  // what `prepare` returned, or null
  cudaStream_t stream;

  const float* in(size_t i) const { return static_cast<const float*>(in_data[i]); }
  const int32_t* ids(size_t i) const { return static_cast<const int32_t*>(in_data[i]); }
  float* out(size_t i) const { return static_cast<float*>(out_data[i]); }
  const Attrs& attrs() const { return site.attrs; }
  const TensorType& in_type(size_t i) const { return site.in[i]; }
  const TensorType& out_type(size_t i) const { return site.out[i]; }
  const Shape& in_shape(size_t i) const { return site.in[i].shape; }
  const Shape& out_shape(size_t i) const { return site.out[i].shape; }
};

struct Kernel {
  std::string_view name;
  // Null or "": accepts. At plan time, and again when a plan is loaded.
  std::string (*decline)(const OpSite&, Context&) = nullptr;
  int64_t (*workspace_bytes)(const OpSite&, Context&) = nullptr;  // null: none
  // Once, when a plan is bound to memory: the call's pointers are those of every run. Tables in
  // device memory, library descriptors, compiled functions. Null: nothing to prepare.
  std::shared_ptr<const void> (*prepare)(const Call&, Context&) = nullptr;
  // Puts the work on the stream and returns. It may be captured into a graph: no allocation, no
  // synchronisation, nothing read from the device, the same launches every time.
  void (*run)(const Call&) = nullptr;
  // The end of the work where it is apart: it makes the outputs from `end_from` on, out of the
  // workspace alone. It may run beside what follows. Null: `run` does all.
  void (*run_end)(const Call&) = nullptr;
  int32_t end_from = -1;
  // What its fixed order of sums costs: seconds more than the best that adds in any order.
  // Measured, where there is something to compare with.
  std::optional<double> (*order_seconds)(const OpSite&, Context&) = nullptr;
  // Shown behind the name in a Plan (the algorithm of a product). May choose by timing.
  std::string (*detail)(const OpSite&, Context&) = nullptr;
};

// Defined in ops/op_registry_cuda.cc: empty when the op has no CUDA kernels.
std::span<const Kernel> kernels_of(std::string_view op);

}  // namespace millrace::cuda

// In ops/<name>_cuda.cc, at the end:  MR_CUDA_KERNELS(layer_norm, {.name = "rows", .run = run})
#define MR_CUDA_KERNELS(op, ...)                                          \
  namespace millrace::cuda {                                              \
  extern const Kernel op##_kernels[];                                     \
  extern const size_t op##_kernel_count;                                  \
  const Kernel op##_kernels[] = {__VA_ARGS__};                            \
  const size_t op##_kernel_count = sizeof(op##_kernels) / sizeof(Kernel); \
  }
