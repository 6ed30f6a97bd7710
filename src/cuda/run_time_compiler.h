// CUDA C++ that is written and compiled while the program runs. Needs no device.
#pragma once
#include <string>

namespace millrace::cuda {

// The machine code of a program that may include "cuda/device.cuh", for an architecture ("sm_90"); of
// one that the compiler does not know yet, PTX.
std::string compile_program(const std::string& source, const std::string& name,
                            const std::string& architecture);
// What the code depends on beside the source: the compiler's version and the headers' texts.
std::string run_time_compiler();

}  // namespace millrace::cuda
