// The CUDA backend: one device, one arena per session, one stream; a plan's nodes are captured into
// a graph and replayed.
#pragma once
#include <memory>

#include "exec/backend.h"
#include "exec/cuda_library.h"

namespace millrace::cuda {

// Error (exit code 2) with a remedy when device `index` cannot be used.
std::unique_ptr<Backend> make_backend(int index, const BackendOptions& options);

}  // namespace millrace::cuda
