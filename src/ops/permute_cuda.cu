// permute on the GPU. When the innermost dimension stays in place, stretches of up to 16 bytes are
// gathered; when two long dimensions change places there, tiles go through shared memory so that
// both sides use whole sectors.
#include "cuda/device.cuh"
#include "ops/permute_cuda.h"

namespace millrace::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kPerThread = 4;      // loads in flight
constexpr int kTile = 64;          // elements along both sides
constexpr int64_t kMinTiled = 16;  // shorter sides would leave most of a tile empty

// n / divisor; for 32 bits by a multiplication, for n below 2^31.
template <typename Index>
struct Divider;
template <>
struct Divider<unsigned> {
  unsigned divisor = 1, magic = 1, shift = 0;
  Divider() = default;
  explicit Divider(int64_t size) : divisor((unsigned)size) {
    while ((int64_t{1} << shift) < size) ++shift;
    magic = (unsigned)((uint64_t{1} << 32) * ((uint64_t{1} << shift) - divisor) / divisor + 1);
  }
  __device__ unsigned quotient(unsigned n) const { return (__umulhi(n, magic) + n) >> shift; }
};
template <>
struct Divider<Int> {
  Int divisor = 1;
  Divider() = default;
  explicit Divider(int64_t size) : divisor(size) {}
  __device__ Int quotient(Int n) const { return n / divisor; }
};

template <typename Index>
struct GatherAxes {
  int rank;
  Divider<Index> size[kPermuteMaxRank];
  Int from[kPermuteMaxRank];
};

template <typename Unit, typename Index>
__global__ void __launch_bounds__(kThreads)
    gather_kernel(const Unit* __restrict__ x, Unit* __restrict__ y, Index count,
                  const GatherAxes<Index> axes) {
  const Index first = (Index)blockIdx.x * (kThreads * kPerThread) + threadIdx.x;
  Unit value[kPerThread];
#pragma unroll
  for (int k = 0; k < kPerThread; ++k) {
    Index rest = first + k * kThreads;
    if (rest >= count) break;
    Int at = 0;
#pragma unroll
    for (int d = kPermuteMaxRank - 1; d > 0; --d) {
      if (d >= axes.rank) continue;
      const Index quotient = axes.size[d].quotient(rest);
      at += (Int)(rest - quotient * axes.size[d].divisor) * axes.from[d];
      rest = quotient;
    }
    value[k] = x[at + (Int)rest * axes.from[0]];
  }
#pragma unroll
  for (int k = 0; k < kPerThread; ++k) {
    const Index i = first + k * kThreads;
    if (i < count) y[i] = value[k];
  }
}

template <typename Unit, typename Index>
void gather_indexed(const PermuteAxes& axes, int64_t count, const void* x, void* y,
                    cudaStream_t stream) {
  GatherAxes<Index> gather;
  gather.rank = axes.rank;
  for (int d = 0; d < axes.rank; ++d) {
    gather.size[d] = Divider<Index>(axes.size[d]);
    gather.from[d] = axes.from[d];
  }
  const int64_t blocks = (count + kThreads * kPerThread - 1) / (kThreads * kPerThread);
  gather_kernel<Unit, Index><<<blocks, kThreads, 0, stream>>>(
      static_cast<const Unit*>(x), static_cast<Unit*>(y), static_cast<Index>(count), gather);
}

template <typename Unit>
void gather(const PermuteAxes& axes, int64_t count, const void* x, void* y, cudaStream_t stream) {
  if (count < int64_t{1} << 31)
    gather_indexed<Unit, unsigned>(axes, count, x, y, stream);
  else
    gather_indexed<Unit, Int>(axes, count, x, y, stream);
}

// Rows run along the dimension in which the input is contiguous, columns along the output's
// innermost; the others number the matrices.
struct TransposeAxes {
  Int rows, columns, x_step, y_step;  // distance of columns in x, of rows in y
  unsigned row_tiles, column_tiles;
  int others = 0;  // innermost first
  unsigned size[kPermuteMaxRank];
  Int from[kPermuteMaxRank], to[kPermuteMaxRank];
};

template <typename Unit>
__global__ void __launch_bounds__(kThreads)
    transpose_kernel(const Unit* __restrict__ x, Unit* __restrict__ y, const TransposeAxes axes) {
  // One word more than a row of the tile: reading it downwards meets every bank once.
  __shared__ Unit tile[kTile][kTile + 4 / sizeof(Unit)];
  constexpr int kWarps = kThreads / kWarp;
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const Int column = (Int)(blockIdx.x % axes.column_tiles) * kTile;
  unsigned rest = blockIdx.x / axes.column_tiles;
  const Int row = (Int)(rest % axes.row_tiles) * kTile;
  rest /= axes.row_tiles;
  x += row + column * axes.x_step;
  y += row * axes.y_step + column;
#pragma unroll
  for (int d = 0; d < kPermuteMaxRank; ++d) {
    if (d >= axes.others) continue;
    const unsigned index = rest % axes.size[d];
    rest /= axes.size[d];
    x += index * axes.from[d];
    y += index * axes.to[d];
  }
  const int height = (int)min((Int)kTile, axes.rows - row);
  const int width = (int)min((Int)kTile, axes.columns - column);
#pragma unroll
  for (int k = 0; k < kTile / kWarps; ++k)
#pragma unroll
    for (int side = 0; side < kTile; side += kWarp) {
      const int j = warp + k * kWarps, i = lane + side;
      if (j < width && i < height) tile[j][i] = x[j * axes.x_step + i];
    }
  __syncthreads();
#pragma unroll
  for (int k = 0; k < kTile / kWarps; ++k)
#pragma unroll
    for (int side = 0; side < kTile; side += kWarp) {
      const int i = warp + k * kWarps, j = lane + side;
      if (j < width && i < height) y[i * axes.y_step + j] = tile[j][i];
    }
}

template <typename Unit>
void transpose(const PermuteAxes& axes, int outer, const void* x, void* y, cudaStream_t stream) {
  const int inner = axes.rank - 1;
  TransposeAxes pair;
  int64_t to = 1, matrices = 1;
  for (int d = inner; d >= 0; --d) {
    if (d == outer) {
      pair.rows = axes.size[d];
      pair.y_step = to;
    } else if (d == inner) {
      pair.columns = axes.size[d];
      pair.x_step = axes.from[d];
    } else {
      pair.size[pair.others] = static_cast<unsigned>(axes.size[d]);
      pair.from[pair.others] = axes.from[d];
      pair.to[pair.others++] = to;
      matrices *= axes.size[d];
    }
    to *= axes.size[d];
  }
  pair.row_tiles = static_cast<unsigned>((pair.rows + kTile - 1) / kTile);
  pair.column_tiles = static_cast<unsigned>((pair.columns + kTile - 1) / kTile);
  const int64_t blocks = matrices * pair.row_tiles * pair.column_tiles;
  transpose_kernel<Unit>
      <<<blocks, kThreads, 0, stream>>>(static_cast<const Unit*>(x), static_cast<Unit*>(y), pair);
}

}  // namespace

void launch_permute(const PermuteAxes& axes, int64_t element_bytes, const void* x, void* y,
                    cudaStream_t stream) {
  int64_t count = 1;
  for (int d = 0; d < axes.rank; ++d) count *= axes.size[d];
  if (axes.rank < 2) {
    cudaMemcpyAsync(y, x, static_cast<size_t>(count * element_bytes), cudaMemcpyDeviceToDevice,
                    stream);
    return;
  }
  const int inner = axes.rank - 1;
  int outer = 0;  // along which the input is contiguous
  while (axes.from[outer] != 1) ++outer;
  if (outer != inner && axes.size[outer] >= kMinTiled && axes.size[inner] >= kMinTiled) {
    if (element_bytes == 2)
      transpose<unsigned short>(axes, outer, x, y, stream);
    else
      transpose<unsigned>(axes, outer, x, y, stream);
    return;
  }
  int64_t unit = element_bytes;
  if (outer == inner)
    while (unit < 16 && axes.size[inner] * element_bytes % (2 * unit) == 0) unit *= 2;
  // The same dimensions, counted in units.
  const int64_t elements = unit / element_bytes;
  PermuteAxes units = axes;
  if (elements > 1)
    for (int d = 0; d < axes.rank; ++d) (d == inner ? units.size[d] : units.from[d]) /= elements;
  if (unit == 16)
    gather<uint4>(units, count / elements, x, y, stream);
  else if (unit == 8)
    gather<uint2>(units, count / elements, x, y, stream);
  else if (unit == 4)
    gather<unsigned>(units, count / elements, x, y, stream);
  else
    gather<unsigned short>(units, count / elements, x, y, stream);
}

}  // namespace millrace::cuda
