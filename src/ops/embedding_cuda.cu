// embedding on the GPU, and its gradient. The gradient sorts the row numbers of dy by id (a stable
// radix sort), cuts the sorted order into pieces of equal length and sums each of them. A segment
// of one id that lies within a piece is done then. What is left of a piece, at most a segment that
// comes from the piece before and one that goes on into the next, is an entry of the next level,
// which does the same with those sums. So nothing depends on how often an id occurs, and every sum
// has its order.
#include <algorithm>
#include <type_traits>

#include "cuda/device.cuh"
#include "cuda/with_type.cuh"
#include "ops/embedding_cuda.h"

namespace millrace::cuda {
namespace {

int64_t pieces(int64_t count, int64_t size) { return (count + size - 1) / size; }

// --- rows of the table: a warp to each

constexpr int kThreads = 256;
constexpr int kLoads = 4;  // in flight

template <typename Unit>
__global__ void __launch_bounds__(kThreads)
    rows_kernel(const int* __restrict__ ids, const Unit* __restrict__ table, Unit* __restrict__ out,
                Int count, Int rows, Int width) {
  const Int row = (Int)blockIdx.x * (kThreads / kWarp) + threadIdx.x / kWarp;
  if (row >= count) return;
  const int id = ids[row];
  const bool known = id >= 0 && id < rows;
  if (known) table += id * width;
  out += row * width;
  for (Int first = threadIdx.x % kWarp; first < width; first += kLoads * kWarp) {
    Unit value[kLoads];
#pragma unroll
    for (int k = 0; k < kLoads; ++k) {
      const Int i = first + k * kWarp;
      value[k] = known && i < width ? table[i] : Unit{};
    }
#pragma unroll
    for (int k = 0; k < kLoads; ++k)
      if (const Int i = first + k * kWarp; i < width) out[i] = value[k];
  }
}

template <typename Unit>
void copy_rows(const int32_t* ids, const void* table, void* out, int64_t count, int64_t rows,
               int64_t width, cudaStream_t stream) {
  rows_kernel<Unit><<<pieces(count, kThreads / kWarp), kThreads, 0, stream>>>(
      ids, static_cast<const Unit*>(table), static_cast<Unit*>(out), count, rows, width);
}

// --- row numbers in the order of their ids

constexpr int kSortThreads = 1024, kSortWarps = kSortThreads / kWarp;
constexpr int kRounds = 4;  // rows of a thread
constexpr int kSortTile = kSortThreads * kRounds;
constexpr int kDigitBits = 9, kDigits = 1 << kDigitBits;

struct Sort {
  const int* ids;
  int count, none;          // `none` is the key of an id outside the table: behind all others
  int bits, passes, tiles;  // bits of a digit
  int *keys[2], *rows[2], *tallies;  // by turns; tallies [tiles, kDigits] when there are tiles

  __device__ int key(int pass, int i) const {
    if (pass > 0) return pass % 2 ? keys[0][i] : keys[1][i];
    const int id = ids[i];
    return id >= 0 && id < none ? id : none;
  }
  __device__ int row(int pass, int i) const {
    return pass == 0 ? i : pass % 2 ? rows[0][i] : rows[1][i];
  }
  __device__ int digit(int pass, int key) const { return key >> (pass * bits) & ((1 << bits) - 1); }
};

__global__ void __launch_bounds__(kSortThreads) tally_kernel(const Sort sort, int pass) {
  __shared__ int tally[kDigits];
  if (threadIdx.x < kDigits) tally[threadIdx.x] = 0;
  __syncthreads();
#pragma unroll
  for (int r = 0; r < kRounds; ++r) {
    const int i = blockIdx.x * kSortTile + r * kSortThreads + threadIdx.x;
    if (i < sort.count) atomicAdd(&tally[sort.digit(pass, sort.key(pass, i))], 1);
  }
  __syncthreads();
  if (threadIdx.x < kDigits) sort.tallies[blockIdx.x * kDigits + threadIdx.x] = tally[threadIdx.x];
}

// Of one tile: several passes only when there is no other.
__global__ void __launch_bounds__(kSortThreads)
    place_kernel(const Sort sort, int first_pass, int end_pass) {
  __shared__ unsigned short before[kSortWarps][kDigits];  // rows of a digit in the warps before
  __shared__ int start[kDigits];                          // where a digit of this tile begins
  __shared__ int warp_total[kDigits / kWarp];
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const int begin = blockIdx.x * kSortTile + warp * (kRounds * kWarp) + lane;
  for (int pass = first_pass; pass < end_pass; ++pass) {
    for (int i = threadIdx.x; i < kSortWarps * kDigits; i += kSortThreads)
      before[i / kDigits][i % kDigits] = 0;
    __syncthreads();
    // A warp takes its rows in order, 32 at a time: `place` counts those of the same digit so far.
    int key[kRounds], row[kRounds], place[kRounds];
#pragma unroll
    for (int r = 0; r < kRounds; ++r) {
      const int i = begin + r * kWarp;
      key[r] = i < sort.count ? sort.key(pass, i) : 0;
      row[r] = i < sort.count ? sort.row(pass, i) : 0;
    }
#pragma unroll
    for (int r = 0; r < kRounds; ++r) {
      const bool valid = begin + r * kWarp < sort.count;
      const int digit = valid ? sort.digit(pass, key[r]) : kDigits;
      const unsigned same = __match_any_sync(kAllLanes, digit);
      const int earlier = __popc(same & ((1u << lane) - 1));
      const int so_far = valid ? before[warp][digit] : 0;
      __syncwarp();
      if (valid && earlier == 0) before[warp][digit] = (unsigned short)(so_far + __popc(same));
      __syncwarp();
      place[r] = so_far + earlier;
    }
    __syncthreads();
    // A thread to each digit: over the warps, over the tiles, then over the digits.
    int all = 0, in_tiles_before = 0;
    if (threadIdx.x < kDigits) {
      for (int w = 0; w < kSortWarps; ++w) {
        const int count = before[w][threadIdx.x];
        before[w][threadIdx.x] = (unsigned short)all;
        all += count;
      }
      if (sort.tiles > 1) {
        all = 0;
#pragma unroll 8
        for (int t = 0; t < sort.tiles; ++t) {
          const int count = sort.tallies[t * kDigits + threadIdx.x];
          all += count;
          if (t < (int)blockIdx.x) in_tiles_before += count;
        }
      }
    }
    int up_to = all;
#pragma unroll
    for (int step = 1; step < kWarp; step *= 2) {
      const int lower = __shfl_up_sync(kAllLanes, up_to, step);
      if (lane >= step) up_to += lower;
    }
    if (threadIdx.x < kDigits && lane == kWarp - 1) warp_total[warp] = up_to;
    __syncthreads();
    if (threadIdx.x < kDigits) {
      int smaller = up_to - all;
      for (int w = 0; w < warp; ++w) smaller += warp_total[w];
      start[threadIdx.x] = smaller + in_tiles_before;
    }
    __syncthreads();
#pragma unroll
    for (int r = 0; r < kRounds; ++r) {
      if (begin + r * kWarp >= sort.count) continue;
      const int digit = sort.digit(pass, key[r]);
      const int to = start[digit] + before[warp][digit] + place[r];
      (pass % 2 ? sort.keys[1] : sort.keys[0])[to] = key[r];
      (pass % 2 ? sort.rows[1] : sort.rows[0])[to] = row[r];
    }
    __syncthreads();
  }
}

void launch_sort(const Sort& sort, cudaStream_t stream) {
  if (sort.tiles == 1) {
    place_kernel<<<1, kSortThreads, 0, stream>>>(sort, 0, sort.passes);
    return;
  }
  for (int pass = 0; pass < sort.passes; ++pass) {
    tally_kernel<<<sort.tiles, kSortThreads, 0, stream>>>(sort, pass);
    place_kernel<<<sort.tiles, kSortThreads, 0, stream>>>(sort, pass, pass + 1);
  }
}

// --- sums of the segments

constexpr int kMaxPiece = 64;
constexpr int kRowLoads = 8;  // in flight
constexpr int kMaxAddThreads = 256;
constexpr int kMaxLevels = 8;

// Entries of one id are neighbours. An id may be kNone, or stand for one without a row of its own:
// an entry in the middle of its segment that has nothing to add.
constexpr int kNone = -1;
__device__ __forceinline__ int without_row(int id) { return -2 - id; }
__device__ __forceinline__ int id_of(int entry) { return entry < kNone ? -2 - entry : entry; }

struct Entries {
  const int* ids;
  const int* rows;  // of the data; null: as the entries
  Int count;
  int piece;
};

struct Target {
  Int rows, width;
  const float* base;
  float* out;
  // Two entries of the next level for each piece: null when there is one piece.
  int* next_ids;
  float* next_sums;
};

// Neighbours as they stand in memory: 16 bytes of them, or one.
template <typename T, int kWidth>
using Bits = std::conditional_t<kWidth == 1, T, uint4>;
template <typename T, typename B>
__device__ __forceinline__ T number(const B& bits, int i) {
  return reinterpret_cast<const T*>(&bits)[i];
}

// A block to a piece; in y, blocks of columns.
template <typename T, int kWidth>
__global__ void __launch_bounds__(kMaxAddThreads)
    add_kernel(const T* __restrict__ data, const Entries entries, const Target target) {
  using Part = Bits<T, kWidth>;
  constexpr int kSums = kWidth == 1 ? 1 : 4;  // written at once
  using Sums = std::conditional_t<kSums == 1, float, float4>;
  __shared__ int shared_ids[kMaxPiece + 2], rows[kMaxPiece];
  int* const ids = shared_ids + 1;  // with the neighbours on both sides
  const Int begin = (Int)blockIdx.x * entries.piece;
  const int count = (int)min((Int)entries.piece, entries.count - begin);
  for (int i = threadIdx.x; i < count + 2; i += blockDim.x) {
    const Int at = begin + i - 1;
    const int id = at >= 0 && at < entries.count ? entries.ids[at] : kNone;
    shared_ids[i] = id < target.rows ? id : kNone;
    if (i < count) rows[i] = entries.rows ? entries.rows[begin + i] : (int)(begin + i);
  }
  __syncthreads();
  const int first_id = id_of(ids[0]), last_id = id_of(ids[count - 1]);
  bool continued = first_id == id_of(ids[-1]);
  const bool continues = last_id == id_of(ids[count]);
  if (target.next_ids && blockIdx.y == 0 && threadIdx.x == 0) {
    const bool one = continued && first_id == last_id;  // its sum is the first entry
    int* next = target.next_ids + 2 * (Int)blockIdx.x;
    next[0] = continued ? first_id : kNone;
    next[1] = !continues || last_id == kNone ? kNone : one ? without_row(last_id) : last_id;
  }

  const Int column = ((Int)blockIdx.y * blockDim.x + threadIdx.x) * kWidth;
  if (column >= target.width) return;
  float sum[kWidth] = {};
  for (int first = 0; first < count; first += kRowLoads) {
    Part part[kRowLoads];
#pragma unroll
    for (int k = 0; k < kRowLoads; ++k)
      if (first + k < count && ids[first + k] >= 0)
        part[k] = *reinterpret_cast<const Part*>(data + rows[first + k] * target.width + column);
#pragma unroll
    for (int k = 0; k < kRowLoads; ++k) {
      const int i = first + k;
      if (i >= count) break;
      if (ids[i] >= 0)
#pragma unroll
        for (int w = 0; w < kWidth; ++w) sum[w] += to_float(number<T>(part[k], w));
      const int id = id_of(ids[i]);
      if (i + 1 < count && id_of(ids[i + 1]) == id) continue;
      if (id != kNone) {
        const bool partial = continued || (i + 1 == count && continues);
        const Int at = partial ? 2 * (Int)blockIdx.x + (continued ? 0 : 1) : id;
        float* to = (partial ? target.next_sums : target.out) + at * target.width + column;
        const float* base =
            partial || !target.base ? nullptr : target.base + at * target.width + column;
#pragma unroll
        for (int w = 0; w < kWidth; w += kSums) {
          Sums sums = {};
          if (base) sums = *reinterpret_cast<const Sums*>(base + w);
#pragma unroll
          for (int v = 0; v < kSums; ++v) reinterpret_cast<float*>(&sums)[v] += sum[w + v];
          *reinterpret_cast<Sums*>(to + w) = sums;
        }
      }
      continued = false;
#pragma unroll
      for (int w = 0; w < kWidth; ++w) sum[w] = 0;
    }
  }
}

template <typename T>
void add_level(const void* data, const Entries& entries, const Target& target,
               cudaStream_t stream) {
  constexpr int kCount = Pack<T>::kCount;
  const bool whole = target.width % kCount == 0;
  const int64_t parts = whole ? target.width / kCount : target.width;
  const int64_t threads = std::min<int64_t>(kMaxAddThreads, pieces(parts, kWarp) * kWarp);
  const dim3 blocks(static_cast<unsigned>(pieces(entries.count, entries.piece)),
                    static_cast<unsigned>(pieces(parts, threads)));
  const auto kernel = whole ? add_kernel<T, kCount> : add_kernel<T, 1>;
  kernel<<<blocks, static_cast<unsigned>(threads), 0, stream>>>(static_cast<const T*>(data),
                                                                entries, target);
}

// Everything the gradient keeps in its workspace.
struct Layout {
  Sort sort = {};
  int levels = 0;
  int* next_ids[kMaxLevels] = {};
  float* next_sums[kMaxLevels] = {};
  int first_piece = 8;
  uintptr_t end;

  template <typename T>
  T* take(int64_t count) {
    T* taken = reinterpret_cast<T*>(end);
    end += static_cast<uintptr_t>(pieces(count * static_cast<int64_t>(sizeof(T)), 64) * 64);
    return taken;
  }

  Layout(void* workspace, int64_t count, int64_t rows, int64_t width)
      : end(reinterpret_cast<uintptr_t>(workspace)) {
    sort.count = static_cast<int>(count);
    sort.none = static_cast<int>(rows);
    int bits = 1;
    while (rows >> bits) ++bits;
    sort.passes = static_cast<int>(pieces(bits, kDigitBits));
    sort.bits = static_cast<int>(pieces(bits, sort.passes));
    sort.tiles = static_cast<int>(pieces(count, kSortTile));
    for (int i = 0; i < 2; ++i) {
      sort.keys[i] = take<int>(count);
      sort.rows[i] = take<int>(count);
    }
    sort.tallies = take<int>(sort.tiles > 1 ? int64_t{sort.tiles} * kDigits : 0);
    // Short pieces when there are few rows: about 1,000 blocks.
    while (first_piece < kMaxPiece && pieces(count, first_piece) > 1024) first_piece *= 2;
    for (int64_t n = pieces(count, first_piece); n > 1; n = pieces(2 * n, kMaxPiece)) {
      next_ids[levels] = take<int>(2 * n);
      next_sums[levels++] = take<float>(2 * n * width);
    }
  }
};

}  // namespace

void launch_embedding(DType dtype, const int32_t* ids, const void* table, void* out, int64_t count,
                      int64_t rows, int64_t width, cudaStream_t stream) {
  if (count * width == 0) return;
  const int64_t bytes = width * dtype_bytes(dtype);
  if (bytes % 16 == 0)
    copy_rows<uint4>(ids, table, out, count, rows, bytes / 16, stream);
  else if (bytes % 4 == 0)
    copy_rows<unsigned>(ids, table, out, count, rows, bytes / 4, stream);
  else
    copy_rows<unsigned short>(ids, table, out, count, rows, bytes / 2, stream);
}

int64_t embedding_grad_workspace(int64_t count, int64_t rows, int64_t width) {
  return static_cast<int64_t>(Layout(nullptr, count, rows, width).end);
}

void launch_embedding_grad(const EmbeddingGrad& grad, void* workspace, cudaStream_t stream) {
  const int64_t numbers = grad.rows * grad.width;
  if (numbers == 0) return;
  // Rows that no id names; those that are named are written again.
  const size_t bytes = static_cast<size_t>(numbers) * sizeof(float);
  if (!grad.base)
    cudaMemsetAsync(grad.out, 0, bytes, stream);
  else if (grad.base != grad.out)
    cudaMemcpyAsync(grad.out, grad.base, bytes, cudaMemcpyDeviceToDevice, stream);
  if (grad.count == 0) return;

  Layout layout(workspace, grad.count, grad.rows, grad.width);
  layout.sort.ids = grad.ids;
  launch_sort(layout.sort, stream);
  const int sorted = (layout.sort.passes - 1) % 2;
  Entries entries = {layout.sort.keys[sorted], layout.sort.rows[sorted], grad.count,
                     layout.first_piece};
  Target target = {grad.rows, grad.width,         grad.base,
                   grad.out,  layout.next_ids[0], layout.next_sums[0]};
  with_type(grad.dtype, [&]<typename T>(T*) { add_level<T>(grad.dy, entries, target, stream); });
  for (int level = 0; level < layout.levels; ++level) {
    const float* sums = layout.next_sums[level];
    entries = {layout.next_ids[level], nullptr, 2 * pieces(entries.count, entries.piece),
               kMaxPiece};
    const bool last = level + 1 == layout.levels;
    target.next_ids = last ? nullptr : layout.next_ids[level + 1];
    target.next_sums = last ? nullptr : layout.next_sums[level + 1];
    add_level<float>(sums, entries, target, stream);
  }
}

}  // namespace millrace::cuda
