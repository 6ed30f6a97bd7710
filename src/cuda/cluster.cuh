// Thread-block clusters: blocks that run at the same time on neighbouring multiprocessors, write
// into each other's shared memory and wait for each other. Devices of compute capability 9.0 and
// newer; code for older ones is never launched.
#pragma once

namespace millrace::cuda {

// A cluster of eight runs on every device that has clusters.
constexpr int kClusterBlocks = 8;

#if __CUDA_ARCH__ >= 900
__device__ __forceinline__ int cluster_rank() {
  int rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}
// What was written before an arrival is seen after the wait, by all threads of all blocks.
__device__ __forceinline__ void cluster_arrive() {
  asm volatile("barrier.cluster.arrive.release;" ::: "memory");
}
__device__ __forceinline__ void cluster_wait() {
  asm volatile("barrier.cluster.wait.acquire;" ::: "memory");
}
// *place = value in the shared memory of block `rank`; `place` is that of this block.
__device__ __forceinline__ void cluster_store(float* place, int rank, float value) {
  const unsigned own = (unsigned)__cvta_generic_to_shared(place);
  asm volatile(
      "{\n\t"
      ".reg .b32 remote;\n\t"
      "mapa.shared::cluster.u32 remote, %0, %1;\n\t"
      "st.shared::cluster.f32 [remote], %2;\n\t"
      "}"
      :
      : "r"(own), "r"(rank), "f"(value)
      : "memory");
}
#else
__device__ __forceinline__ int cluster_rank() { return 0; }
__device__ __forceinline__ void cluster_arrive() {}
__device__ __forceinline__ void cluster_wait() {}
__device__ __forceinline__ void cluster_store(float*, int, float) {}
#endif

}  // namespace millrace::cuda
