// Sums of columns or rows on the GPU. A long sum is cut into shares, by the sizes alone; their
// partial sums are added by a second launch, in a fixed order.
#include <algorithm>
#include <type_traits>

#include "cuda/device.cuh"
#include "cuda/with_type.cuh"
#include "ops/reduce_sum_cuda.h"

namespace millrace::cuda {
namespace {

constexpr int kBatch = 8;  // loads in flight

__device__ __forceinline__ void store_number(DType dtype, void* out, Int i, float value) {
  if (dtype == DType::bf16)
    static_cast<__nv_bfloat16*>(out)[i] = from_float<__nv_bfloat16>(value);
  else if (dtype == DType::f16)
    static_cast<__half*>(out)[i] = from_float<__half>(value);
  else
    static_cast<float*>(out)[i] = value;
}

int64_t pieces(int64_t count, int64_t size) { return (count + size - 1) / size; }

// --- columns: a block sums a strip of them over a share of the rows

constexpr int kColumnThreads = 512;
constexpr int64_t kColumnBlocks = 264;  // two to each multiprocessor of an H200

// Neighbours as they stand in memory: 16 bytes of them, or one.
template <typename T, int kWidth>
using Bits = std::conditional_t<kWidth == 1, T, uint4>;
template <typename T, typename B>
__device__ __forceinline__ T number(const B& bits, int i) {
  return reinterpret_cast<const T*>(&bits)[i];
}

// The block's threads: columns in x, so many neighbours to a thread, and rows in y.
template <typename T, int kWidth>
__global__ void __launch_bounds__(kColumnThreads, 2)
    column_kernel(const T* __restrict__ x, Int rows, Int width, Int share_rows, DType out_dtype,
                  void* out) {
  __shared__ float shared[kWidth][kColumnThreads / 2];
  const Int column = ((Int)blockIdx.x * blockDim.x + threadIdx.x) * kWidth;
  const Int begin = blockIdx.y * share_rows, end = min(rows, begin + share_rows);
  const Int step = blockDim.y;
  const int y = threadIdx.y;
  float sum[kWidth] = {};
  if (column < width)
    for (Int first = begin + y; first < end; first += kBatch * step) {
      Bits<T, kWidth> part[kBatch];
#pragma unroll
      for (int k = 0; k < kBatch; ++k)
        if (const Int row = first + k * step; row < end)
          part[k] = *reinterpret_cast<const Bits<T, kWidth>*>(x + row * width + column);
#pragma unroll
      for (int k = 0; k < kBatch; ++k)
        if (first + k * step < end)
#pragma unroll
          for (int i = 0; i < kWidth; ++i) sum[i] += to_float(number<T>(part[k], i));
    }
  for (int half = blockDim.y / 2; half > 0; half /= 2) {
    if (y >= half && y < 2 * half)
#pragma unroll
      for (int i = 0; i < kWidth; ++i) shared[i][(y - half) * blockDim.x + threadIdx.x] = sum[i];
    __syncthreads();
    if (y < half)
#pragma unroll
      for (int i = 0; i < kWidth; ++i) sum[i] += shared[i][y * blockDim.x + threadIdx.x];
    __syncthreads();
  }
  if (y == 0 && column < width)
#pragma unroll
    for (int i = 0; i < kWidth; ++i)
      store_number(out_dtype, out, blockIdx.y * width + column + i, sum[i]);
}

struct ColumnGrid {
  bool whole;        // 16 bytes at a time
  int across, down;  // threads of a block
  int64_t strips, shares, share_rows;
};

ColumnGrid column_grid(DType dtype, int64_t rows, int64_t width) {
  ColumnGrid grid;
  const int64_t count = 16 / dtype_bytes(dtype);
  grid.whole = width % count == 0;
  const int64_t parts = grid.whole ? width / count : width;
  grid.across = 1;
  while (grid.across < kWarp && grid.across < parts) grid.across *= 2;
  // Where there are columns for every multiprocessor, a thread rather takes more rows.
  while (grid.across < kColumnThreads / 2 && parts / (2 * grid.across) >= 2 * kColumnBlocks)
    grid.across *= 2;
  grid.down = kColumnThreads / grid.across;
  grid.strips = pieces(parts, grid.across);
  grid.shares = 1;
  if (rows > 2 * kBatch * grid.down)
    grid.shares = std::clamp<int64_t>(kColumnBlocks / grid.strips, 1,
                                      pieces(rows, int64_t{kBatch} * grid.down));
  grid.share_rows = pieces(rows, grid.shares);
  if (rows > 0) grid.shares = pieces(rows, grid.share_rows);
  return grid;
}

template <typename T>
void add_columns(const ColumnGrid& grid, const void* x, int64_t rows, int64_t width,
                 DType out_dtype, void* out, cudaStream_t stream) {
  const dim3 blocks(static_cast<unsigned>(grid.strips), static_cast<unsigned>(grid.shares));
  const dim3 threads(static_cast<unsigned>(grid.across), static_cast<unsigned>(grid.down));
  const auto kernel = grid.whole ? column_kernel<T, Pack<T>::kCount> : column_kernel<T, 1>;
  kernel<<<blocks, threads, 0, stream>>>(static_cast<const T*>(x), rows, width, grid.share_rows,
                                         out_dtype, out);
}

void add_columns(DType dtype, const ColumnGrid& grid, const void* x, int64_t rows, int64_t width,
                 DType out_dtype, void* out, cudaStream_t stream) {
  with_type(dtype,
            [&]<typename T>(T*) { add_columns<T>(grid, x, rows, width, out_dtype, out, stream); });
}

// --- rows: a block or a warp to each, or to a share of a long one

constexpr int kRowThreads = 256;
constexpr int64_t kWarpWidth = 4096;     // up to here a warp sums a row
constexpr int64_t kShareWidth = 8192;    // of a share, at least
constexpr int64_t kMaxRowBlocks = 1056;  // that shares are made for

// Of this lane: what lies before a boundary of 16 bytes, whole packs, the rest.
template <typename T>
__device__ float lane_sum(const T* p, Int count, int lane, int lanes) {
  constexpr int kCount = Pack<T>::kCount;
  const Int to_boundary = (16 - reinterpret_cast<uintptr_t>(p) % 16) % 16 / sizeof(T);
  const Int head = min(count, to_boundary), packs = (count - head) / kCount;
  float sum = 0;
  for (Int i = lane; i < head; i += lanes) sum += to_float(p[i]);
#pragma unroll 4
  for (Int i = lane; i < packs; i += lanes) {
    const Pack<T> pack = load_pack(p + head + i * kCount);
#pragma unroll
    for (int k = 0; k < kCount; ++k) sum += pack.value[k];
  }
  for (Int i = head + packs * kCount + lane; i < count; i += lanes) sum += to_float(p[i]);
  return sum;
}

template <typename T, int kLanes>
__global__ void __launch_bounds__(kRowThreads)
    row_kernel(const T* __restrict__ x, Int rows, Int width, Int share_width, DType out_dtype,
               void* out) {
  const Int row = (Int)blockIdx.x * (kRowThreads / kLanes) + threadIdx.x / kLanes;
  if (row >= rows) return;  // a whole warp, or nobody
  const int lane = threadIdx.x % kLanes;
  const Int begin = blockIdx.y * share_width, count = min(share_width, width - begin);
  float sum = lane_sum(x + row * width + begin, count, lane, kLanes);
  if constexpr (kLanes == kWarp) {
    sum = warp_sum(sum);
  } else {
    __shared__ float shared[kWarp];
    sum = block_sum(sum, shared);
  }
  if (lane == 0) store_number(out_dtype, out, row * gridDim.y + blockIdx.y, sum);
}

struct RowGrid {
  int64_t shares, share_width;
};

RowGrid row_grid(int64_t rows, int64_t width) {
  RowGrid grid = {1, width};
  if (width > 2 * kShareWidth)
    grid.shares = std::clamp<int64_t>(kMaxRowBlocks / rows, 1, width / kShareWidth);
  if (grid.shares > 1) {
    grid.share_width = pieces(pieces(width, grid.shares), 8) * 8;
    grid.shares = pieces(width, grid.share_width);
  }
  return grid;
}

template <typename T>
void add_rows(const RowGrid& grid, const void* x, int64_t rows, int64_t width, DType out_dtype,
              void* out, cudaStream_t stream) {
  const bool warps = grid.share_width <= kWarpWidth;
  const int64_t blocks = warps ? pieces(rows, kRowThreads / kWarp) : rows;
  const auto kernel = warps ? row_kernel<T, kWarp> : row_kernel<T, kRowThreads>;
  kernel<<<dim3(static_cast<unsigned>(blocks), static_cast<unsigned>(grid.shares)), kRowThreads, 0,
           stream>>>(static_cast<const T*>(x), rows, width, grid.share_width, out_dtype, out);
}

void add_rows(DType dtype, const RowGrid& grid, const void* x, int64_t rows, int64_t width,
              DType out_dtype, void* out, cudaStream_t stream) {
  with_type(dtype,
            [&]<typename T>(T*) { add_rows<T>(grid, x, rows, width, out_dtype, out, stream); });
}

}  // namespace

int64_t column_sums_workspace(DType dtype, int64_t rows, int64_t width) {
  if (width == 0) return 0;
  const ColumnGrid grid = column_grid(dtype, rows, width);
  return grid.shares > 1 ? grid.shares * width * 4 : 0;
}

void launch_column_sums(DType dtype, const void* x, int64_t rows, int64_t width, DType out_dtype,
                        void* out, void* workspace, cudaStream_t stream) {
  if (width == 0) return;
  const ColumnGrid grid = column_grid(dtype, rows, width);
  if (grid.shares == 1) {
    add_columns(dtype, grid, x, rows, width, out_dtype, out, stream);
    return;
  }
  add_columns(dtype, grid, x, rows, width, DType::f32, workspace, stream);
  ColumnGrid last = column_grid(DType::f32, grid.shares, width);
  last.shares = 1;
  last.share_rows = grid.shares;
  add_columns(DType::f32, last, workspace, grid.shares, width, out_dtype, out, stream);
}

int64_t row_sums_workspace(int64_t rows, int64_t width) {
  if (rows == 0) return 0;
  const RowGrid grid = row_grid(rows, width);
  return grid.shares > 1 ? rows * grid.shares * 4 : 0;
}

void launch_row_sums(DType dtype, const void* x, int64_t rows, int64_t width, DType out_dtype,
                     void* out, void* workspace, cudaStream_t stream) {
  if (rows == 0) return;
  const RowGrid grid = row_grid(rows, width);
  if (grid.shares == 1) {
    add_rows(dtype, grid, x, rows, width, out_dtype, out, stream);
    return;
  }
  add_rows(dtype, grid, x, rows, width, DType::f32, workspace, stream);
  const RowGrid last = {1, grid.shares};
  add_rows(DType::f32, last, workspace, rows, grid.shares, out_dtype, out, stream);
}

}  // namespace millrace::cuda
