// A plan on the device: its kernels with their pointers, launched one by one or captured into a
// CUDA graph.
#pragma once
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "cuda/kernel.h"
#include "exec/backend.h"

namespace millrace::cuda {

// The first kernel of the op that does not decline; null when there is none.
const Kernel* pick_kernel(const OpCard& op, const OpSite& site, Context& context,
                          std::vector<std::string>* declined);
std::string op_site_text(const OpSite& site);  // "f32[4,8], bf16[8,2] -> bf16[4,2]"

std::unique_ptr<Executable> make_executable(const Plan& plan, std::span<std::byte* const> place,
                                            Context& context, bool capture);

}  // namespace millrace::cuda
