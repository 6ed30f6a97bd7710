// What the system says about this process's memory.
#pragma once
#include <cstdint>

namespace millrace {

int64_t resident_bytes();       // now
int64_t peak_resident_bytes();  // the most so far
// How much of the cores that this process may use is used now, by whomever: looks for so long.
double busy_share(double seconds);
int64_t machine_memory_bytes();  // physical memory, or the control group's limit when that is lower

}  // namespace millrace
