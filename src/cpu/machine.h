// What this machine's CPU is: name, threads, instruction sets.
#pragma once
#include <string>

#include "cpu/kernel.h"

namespace millrace::cpu {

std::string machine_name();         // "AMD EPYC, 2 threads, avx2"
std::string machine_fingerprint();  // safe in a file name: CPU, instruction set, oneDNN version
std::string onednn_version();       // "2.6.0"
bool supports(Isa isa);
Isa best_isa();          // the widest the CPU has; MILLRACE_ISA=avx2 narrows it
bool multiplies_bf16();  // it has instructions for it, twice as fast as those for f32

}  // namespace millrace::cpu
