// A CPU kernel: the fast way to run an op. ops/<name>_cpu.cc lists an op's kernels in the order
// they are tried, each able to say why it declines; the card's reference loop is always last. Those
// files are compiled once per instruction set, each time inside namespace MR_ISA; the backend picks
// the set at run time.
#pragma once
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "graph/op.h"

namespace millrace::cpu {

struct Call {
  OpSite site;
  std::span<const void* const> in_data;
  std::span<void* const> out_data;
  void* workspace;
  const void* prepared;  // what `prepare` returned, or null

  const float* in(size_t i) const { return static_cast<const float*>(in_data[i]); }
  const int32_t* ids(size_t i) const { return static_cast<const int32_t*>(in_data[i]); }
  float* out(size_t i) const { return static_cast<float*>(out_data[i]); }
  float* scratch() const { return static_cast<float*>(workspace); }
  const Attrs& attrs() const { return site.attrs; }
  const Shape& in_shape(size_t i) const { return site.in[i].shape; }
  const Shape& out_shape(size_t i) const { return site.out[i].shape; }
};

struct Kernel {
  std::string_view name;
  std::string (*decline)(const OpSite&) = nullptr;      // null or "": accepts
  int64_t (*workspace_bytes)(const OpSite&) = nullptr;  // null: none; independent of thread count
  std::shared_ptr<const void> (*prepare)(const OpSite&) =
      nullptr;                         // plan-time work: programs, GEMM choices
  void (*run)(const Call&) = nullptr;  // allocates nothing, throws nothing
  std::string (*detail)(const OpSite&) =
      nullptr;  // shown behind the name in a Plan (a GEMM's tiling)
};

enum class Isa : uint8_t { avx2, avx512 };
std::string_view isa_name(Isa isa);

// Defined in ops/op_registry.cc: empty when the op has no CPU kernels of its own.
std::span<const Kernel> kernels_of(std::string_view op, Isa isa);

}  // namespace millrace::cpu

// In ops/<name>_cpu.cc, at the end:  MR_CPU_KERNELS(layer_norm, {.name = "rows", .run = run})
#define MR_CPU_KERNELS(op, ...)                                           \
  namespace millrace::cpu::MR_ISA {                                       \
  extern const Kernel op##_kernels[];                                     \
  extern const size_t op##_kernel_count;                                  \
  const Kernel op##_kernels[] = {__VA_ARGS__};                            \
  const size_t op##_kernel_count = sizeof(op##_kernels) / sizeof(Kernel); \
  }
