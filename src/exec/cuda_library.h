// The CUDA backend is a shared library that is opened at run time: one build serves machines with
// and without a GPU.
#pragma once
#include <memory>

#include "exec/backend.h"

namespace millrace {

// What program and library must agree on; another name when an interface between them changes.
constexpr const char* kBackendInterface = "millrace-backend-10";

// Whether the library was built or installed with the program.
bool has_cuda_library();
// Whether this machine is set up for NVIDIA GPUs, so that a user expects one to be used.
bool has_nvidia_driver();
// Device `index`. Error (code config) when there is none, with what is missing and how to get it.
std::unique_ptr<Backend> open_cuda(int index, const BackendOptions& options);

}  // namespace millrace
