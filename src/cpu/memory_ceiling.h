// How fast bytes move at best, from each cache and from memory: the ceiling of everything that is
// not a product.
#pragma once
#include <vector>

#include "exec/ledger.h"

namespace millrace::cpu {

// The caches of the cores that this process may use, nearest first, with the best rate that was
// seen in each. Empty where the system does not tell their sizes.
std::vector<CacheCeiling> measure_cache_ceilings();
// What no cache holds, bytes/s read and written.
double measure_memory_ceiling();

}  // namespace millrace::cpu
