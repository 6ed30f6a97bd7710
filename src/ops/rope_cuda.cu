// Rotary position embedding on the GPU. The cosines and sines of a row are made on the spot, in
// shared memory: counted in turns, an angle is brought into range by one subtraction in double, and
// the rest is float. That is less work than reading a table, and positions may be anything.
#include <type_traits>

#include "cuda/device.cuh"
#include "cuda/with_type.cuh"
#include "ops/rope_cuda.h"

namespace millrace::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int64_t kManyRows = 1024;        // from here on a warp to a row, before a block
constexpr int64_t kMaxSharedWidth = 1024;  // of a head, for the rows of a block to share its memory

// Neighbours as they stand in memory: 16 bytes of them, or one.
template <typename T, int kWidth>
using Bits = std::conditional_t<kWidth == 1, T, uint4>;

template <typename T, int kWidth>
__global__ void __launch_bounds__(kThreads)
    rope_kernel(const RopeSizes sizes, int lanes, const double* __restrict__ turns,
                const int* __restrict__ positions, const T* x, T* y) {
  using Part = Bits<T, kWidth>;
  extern __shared__ float2 angles[];  // [rows of the block][width / 2]: cosine and sine
  const int lane = threadIdx.x % lanes, half = (int)sizes.width / 2;
  const Int row = (Int)blockIdx.x * (kThreads / lanes) + threadIdx.x / lanes;
  float2* angle = angles + threadIdx.x / lanes * half;
  if (row < sizes.rows) {
    const double position = positions ? positions[row] : row % sizes.steps + sizes.offset;
    for (int d = lane; d < half; d += lanes) {
      const double turn = position * turns[d];
      float sine, cosine;
      sincospif(2.0f * (float)(turn - rint(turn)), &sine, &cosine);
      angle[d] = make_float2(cosine, sizes.direction * sine);
    }
  }
  __syncthreads();
  if (row >= sizes.rows) return;

  const unsigned parts = half / kWidth;  // of half a head
  const Int turned = sizes.turned * sizes.width, begin = row * (turned + sizes.kept * sizes.width);
  x += begin;
  y += begin;
  for (unsigned i = lane; i < (unsigned)sizes.turned * parts; i += lanes) {
    const int d = i % parts * kWidth;
    const Int at = i / parts * sizes.width + d;
    Part first = *reinterpret_cast<const Part*>(x + at);
    Part second = *reinterpret_cast<const Part*>(x + at + half);
#pragma unroll
    for (int k = 0; k < kWidth; ++k) {
      const float2 turn = angle[d + k];
      const float a = to_float(reinterpret_cast<T*>(&first)[k]),
                  b = to_float(reinterpret_cast<T*>(&second)[k]);
      reinterpret_cast<T*>(&first)[k] = from_float<T>(a * turn.x - b * turn.y);
      reinterpret_cast<T*>(&second)[k] = from_float<T>(b * turn.x + a * turn.y);
    }
    *reinterpret_cast<Part*>(y + at) = first;
    *reinterpret_cast<Part*>(y + at + half) = second;
  }
  if (x == y) return;
  for (unsigned i = lane; i < (unsigned)sizes.kept * 2 * parts; i += lanes) {
    const Int at = turned + (Int)i * kWidth;
    *reinterpret_cast<Part*>(y + at) = *reinterpret_cast<const Part*>(x + at);
  }
}

template <typename T>
void launch(const RopeSizes& sizes, const double* turns, const int32_t* positions, const void* x,
            void* y, cudaStream_t stream) {
  const bool many = sizes.rows >= kManyRows && sizes.width <= kMaxSharedWidth;
  const int lanes = many ? kWarp : kThreads, rows = kThreads / lanes;
  const int64_t half = sizes.width / 2, blocks = (sizes.rows + rows - 1) / rows;
  const int64_t shared = rows * half * static_cast<int64_t>(sizeof(float2));
  const bool whole = half % Pack<T>::kCount == 0;
  const auto kernel = whole ? rope_kernel<T, Pack<T>::kCount> : rope_kernel<T, 1>;
  kernel<<<blocks, kThreads, shared, stream>>>(sizes, lanes, turns, positions,
                                               static_cast<const T*>(x), static_cast<T*>(y));
}

}  // namespace

void launch_rope(DType dtype, const RopeSizes& sizes, const double* turns, const int32_t* positions,
                 const void* x, void* y, cudaStream_t stream) {
  if (sizes.rows == 0) return;
  with_type(dtype, [&]<typename T>(T*) { launch<T>(sizes, turns, positions, x, y, stream); });
}

}  // namespace millrace::cuda
