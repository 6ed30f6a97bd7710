// Instructions of compute capability 9.0 that its tensor cores are fed with: barriers in shared
// memory, copies of tiles by the bulk engine, products of warpgroups. Compiled for sm_90a only.
#pragma once
#include <cuda.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

#include "cuda/async_copy.cuh"

namespace millrace::cuda {

constexpr int kWarpgroup = 128;

// --- barriers: a phase is over when `count` threads have arrived and all expected bytes too

__device__ __forceinline__ void barrier_init(uint64_t* barrier, int count) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(count)
               : "memory");
}
// Before other threads, and the copy engine, use barriers that were just made.
__device__ __forceinline__ void barriers_made() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
__device__ __forceinline__ void barrier_arrive(uint64_t* barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier))
               : "memory");
}
__device__ __forceinline__ void barrier_expect(uint64_t* barrier, int bytes) {
  asm volatile(
      "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)),
      "r"(bytes)
      : "memory");
}
// Until the phase of this parity is over; a new barrier's last phase had parity 1.
__device__ __forceinline__ void barrier_wait(uint64_t* barrier, int parity) {
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "again:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@done bra over;\n"
      "bra again;\n"
      "over:\n"
      "}" ::"r"(shared_address(barrier)),
      "r"(parity)
      : "memory");
}

// --- tiles of a matrix into shared memory

__device__ __forceinline__ void prefetch_map(const CUtensorMap* map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(reinterpret_cast<uint64_t>(map)) : "memory");
}
// The box of `map` whose first number is column x of row y.
__device__ __forceinline__ void load_tile(void* to, const CUtensorMap* map, int x, int y,
                                          uint64_t* barrier) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, "
      "%4}], [%2];" ::"r"(shared_address(to)),
      "l"(reinterpret_cast<uint64_t>(map)), "r"(shared_address(barrier)), "r"(x), "r"(y)
      : "memory");
}

// `bytes` from p on, both multiples of 16, into the second-level cache.
__device__ __forceinline__ void prefetch_bytes(const void* p, int bytes) {
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(reinterpret_cast<uint64_t>(p)),
               "r"(bytes)
               : "memory");
}

// --- products of a warpgroup: 64 rows of A times 256 columns of B, 16 deep

// A matrix in shared memory as the bulk engine wrote it, rows of 128 bytes with its swizzle of 128
// bytes. `stride`: bytes between groups of eight rows; `leading`: bytes between groups of 64
// columns where B's rows are those of k.
__device__ __forceinline__ uint64_t matrix_descriptor(const void* p, int leading, int stride) {
  return (static_cast<uint64_t>(shared_address(p) & 0x3FFFF) >> 4) |
         static_cast<uint64_t>(leading >> 4) << 16 | static_cast<uint64_t>(stride >> 4) << 32 |
         uint64_t{1} << 62;
}
__device__ __forceinline__ void products_begin() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
__device__ __forceinline__ void products_commit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
// Until at most `kLeft` committed groups are under way.
template <int kLeft>
__device__ __forceinline__ void products_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kLeft) : "memory");
}
// The compiler is not to touch the sums before here.
template <int kCount>
__device__ __forceinline__ void hold(float (&sums)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+f"(sums[i])::"memory");
}

#define MR_SUMS_8(i)                                                                         \
  "+f"(sums[i]), "+f"(sums[i + 1]), "+f"(sums[i + 2]), "+f"(sums[i + 3]), "+f"(sums[i + 4]), \
      "+f"(sums[i + 5]), "+f"(sums[i + 6]), "+f"(sums[i + 7])
#define MR_SUMS_32(i) MR_SUMS_8(i), MR_SUMS_8(i + 8), MR_SUMS_8(i + 16), MR_SUMS_8(i + 24)
#define MR_WGMMA_256(type)                                                                     \
  asm volatile(                                                                                \
      "wgmma.mma_async.sync.aligned.m64n256k16.f32." type "." type                             \
      " {%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,"   \
      "%23,%24,%25,%26,%27,%28,%29,%30,%31,%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,"   \
      "%44,%45,%46,%47,%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63,%64,"   \
      "%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79,%80,%81,%82,%83,%84,%85,"   \
      "%86,%87,%88,%89,%90,%91,%92,%93,%94,%95,%96,%97,%98,%99,%100,%101,%102,%103,%104,%105," \
      "%106,%107,%108,%109,%110,%111,%112,%113,%114,%115,%116,%117,%118,%119,%120,%121,%122,"  \
      "%123,%124,%125,%126,%127}, %128, %129, 1, 1, 1, 0, %130;"                               \
      : MR_SUMS_32(0), MR_SUMS_32(32), MR_SUMS_32(64), MR_SUMS_32(96)                          \
      : "l"(a), "l"(b), "n"(kRowsOfK ? 1 : 0))

// sums += A B. kRowsOfK: rows of B in memory are those of k, else its columns are.
template <typename T, bool kRowsOfK>
__device__ __forceinline__ void multiply(float (&sums)[128], uint64_t a, uint64_t b) {
  if constexpr (sizeof(T) == 2 && __is_same(T, __nv_bfloat16))
    MR_WGMMA_256("bf16");
  else
    MR_WGMMA_256("f16");
}
#undef MR_WGMMA_256
#undef MR_SUMS_32
#undef MR_SUMS_8

// Four 8 x 8 matrices of 16-bit numbers; lane i gives the address of row i % 8 of matrix i / 8.
__device__ __forceinline__ void store_matrices(void* p, const uint32_t (&part)[4]) {
  asm volatile(
      "stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(shared_address(p)),
      "r"(part[0]), "r"(part[1]), "r"(part[2]), "r"(part[3])
      : "memory");
}

// Registers of a thread, from here on; all threads of the warpgroup together.
template <int kCount>
__device__ __forceinline__ void give_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kCount));
}
template <int kCount>
__device__ __forceinline__ void take_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kCount));
}

}  // namespace millrace::cuda
