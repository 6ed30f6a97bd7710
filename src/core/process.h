// What the system says about this process: its memory, its cores.
#pragma once
#include <cstdint>
#include <vector>

namespace millrace {

int64_t resident_bytes();          // now
int64_t peak_resident_bytes();     // the most so far
std::vector<int> allowed_cores();  // their numbers; empty where the system does not tell
// Of these, as many as its control group grants it time for: with more threads than that a
// container is stopped in mid-step.
int usable_cores();
// How much of the cores that this process may use is used now, by whomever: looks for so long.
double busy_share(double seconds);
int64_t machine_memory_bytes();  // physical memory, or the control group's limit when that is lower

}  // namespace millrace
