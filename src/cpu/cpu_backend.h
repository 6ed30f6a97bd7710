// The CPU backend: kernels of the best instruction set, one arena per session, nodes run in order.
#pragma once
#include <memory>

#include "cpu/kernel.h"
#include "exec/backend.h"

namespace millrace::cpu {

// `reference_only`: every node by its card's loop (the tests' own way to check the executor).
std::unique_ptr<Backend> make_backend(Isa isa, bool reference_only = false);

}  // namespace millrace::cpu
