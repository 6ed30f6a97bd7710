// Copies into shared memory that a thread does not wait for.
#pragma once
#include <cuda_runtime.h>

namespace millrace::cuda {

__device__ __forceinline__ unsigned shared_address(const void* p) {
  return static_cast<unsigned>(__cvta_generic_to_shared(p));
}

// 16 bytes past the first-level cache, or 4; zeros when there is nothing to copy.
template <int kBytes>
__device__ __forceinline__ void copy_async(void* to, const void* from, bool inside = true) {
  const int bytes = inside ? kBytes : 0;
  if constexpr (kBytes == 16)
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(to)),
                 "l"(from), "r"(bytes)
                 : "memory");
  else
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(shared_address(to)),
                 "l"(from), "r"(bytes)
                 : "memory");
}
__device__ __forceinline__ void commit_copies() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}
// Until all but the last kGroups groups of this thread's copies are there.
template <int kGroups>
__device__ __forceinline__ void wait_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kGroups) : "memory");
}
// Until all of them are, committed or not.
__device__ __forceinline__ void wait_all_copies() {
  asm volatile("cp.async.wait_all;" ::: "memory");
}

}  // namespace millrace::cuda
