// copy_mass and its gradient: a warp has a row, or a block where rows are long. Four places at a
// time where rows are whole multiples of that.
#include <cuda_runtime.h>

#include <type_traits>

#include "cuda/device.cuh"
#include "ops/copy_mass_cuda.h"

namespace millrace::cuda {
namespace {

constexpr int kBlockThreads = 256;
constexpr int64_t kLongRow = 4096;  // from here on a block has a row

// The row of this thread's group of kThreads, which may be behind the last.
template <int kThreads>
__device__ __forceinline__ Int own_row() {
  return (Int)blockIdx.x * (kBlockThreads / kThreads) + threadIdx.x / kThreads;
}

template <int kThreads, bool kFours>
__global__ void __launch_bounds__(kBlockThreads)
    mass_rows(CopyRows of, const float* attention, float* mass) {
  __shared__ float shared[kWarp];
  const Int row = own_row<kThreads>();
  if (row >= of.rows) return;  // a whole group, so that sums stay complete
  const int thread = threadIdx.x % kThreads, target = of.targets[row];
  const float* const weights = attention + row * of.length;
  const int* const source = of.source + row % of.sources * of.length;
  float sum = 0;
  if (target >= 0) {
    if constexpr (kFours) {
      const auto* const weight_fours = reinterpret_cast<const float4*>(weights);
      const auto* const source_fours = reinterpret_cast<const int4*>(source);
      const Int fours = of.length / 4;
#pragma unroll 4
      for (Int i = thread; i < fours; i += kThreads) {
        const float4 weight = weight_fours[i];
        const int4 word = source_fours[i];
        sum += ((word.x == target ? weight.x : 0.0f) + (word.y == target ? weight.y : 0.0f)) +
               ((word.z == target ? weight.z : 0.0f) + (word.w == target ? weight.w : 0.0f));
      }
    } else {
#pragma unroll 4
      for (Int i = thread; i < of.length; i += kThreads)
        sum += source[i] == target ? weights[i] : 0.0f;
    }
  }
  sum = kThreads == kWarp ? warp_sum(sum) : block_sum(sum, shared);
  if (thread == 0) mass[row] = sum;
}

template <int kThreads, bool kFours>
__global__ void __launch_bounds__(kBlockThreads)
    gradient_rows(CopyRows of, const float* dmass, float* dattention) {
  const Int row = own_row<kThreads>();
  if (row >= of.rows) return;
  const int thread = threadIdx.x % kThreads, target = of.targets[row];
  const float value = target < 0 ? 0.0f : dmass[row];
  float* const to = dattention + row * of.length;
  const int* const source = of.source + row % of.sources * of.length;
  // Loads that need not wait for the stores before them.
  if constexpr (kFours) {
    auto* const to_fours = reinterpret_cast<float4*>(to);
    const auto* const source_fours = reinterpret_cast<const int4*>(source);
    const Int fours = of.length / 4;
#pragma unroll 4
    for (Int i = thread; i < fours; i += kThreads) {
      const int4 word = __ldg(source_fours + i);
      to_fours[i] = make_float4(word.x == target ? value : 0.0f, word.y == target ? value : 0.0f,
                                word.z == target ? value : 0.0f, word.w == target ? value : 0.0f);
    }
  } else {
#pragma unroll 4
    for (Int i = thread; i < of.length; i += kThreads)
      to[i] = __ldg(source + i) == target ? value : 0.0f;
  }
}

// Calls f with threads to a row and whether it is read in fours, as constants, and the number of
// blocks.
template <typename F>
void with_form(const CopyRows& of, const F& f) {
  constexpr std::integral_constant<int, kWarp> kOneWarp{};
  constexpr std::integral_constant<int, kBlockThreads> kOneBlock{};
  const bool fours = of.length % 4 == 0;
  if (of.length < kLongRow) {
    constexpr int64_t kRows = kBlockThreads / kWarp;
    const auto blocks = (unsigned)((of.rows + kRows - 1) / kRows);
    fours ? f(kOneWarp, std::true_type{}, blocks) : f(kOneWarp, std::false_type{}, blocks);
  } else {
    const auto blocks = (unsigned)of.rows;
    fours ? f(kOneBlock, std::true_type{}, blocks) : f(kOneBlock, std::false_type{}, blocks);
  }
}

}  // namespace

void launch_copy_mass(const CopyRows& of, const float* attention, float* mass,
                      cudaStream_t stream) {
  if (of.rows == 0) return;
  with_form(of, [&](auto threads, auto fours, unsigned blocks) {
    mass_rows<threads(), fours()><<<blocks, kBlockThreads, 0, stream>>>(of, attention, mass);
  });
}

void launch_copy_mass_grad(const CopyRows& of, const float* dmass, float* dattention,
                           cudaStream_t stream) {
  if (of.rows == 0 || of.length == 0) return;
  with_form(of, [&](auto threads, auto fours, unsigned blocks) {
    gradient_rows<threads(), fours()><<<blocks, kBlockThreads, 0, stream>>>(of, dmass, dattention);
  });
}

}  // namespace millrace::cuda
