// lstm on a GPU.
//
// Clusters: eight blocks share a direction and a few rows. Each has an eighth of the hidden units
// and keeps the weights of their gates in registers, as single precision, for the whole sequence.
// Forward, a step multiplies all of h, which every block has in shared memory, with them, and each
// block sends its part of the new h to the other seven. Backward, a block multiplies the gradients
// of its own gates with the same weights, which gives shares of the gradient of all of h, sent to
// the blocks whose units they are and added there in the order of the blocks. Two buffers take
// turns, so that one wait of the cluster in each step is enough.
//
// Steps: a launch for each step, weights from the second-level cache.
#include <cuda_runtime.h>

#include "cuda/cluster.cuh"
#include "cuda/device.cuh"
#include "cuda/with_type.cuh"
#include "ops/lstm_cuda.h"

namespace millrace::cuda {
namespace {

constexpr int kMostRows = 8;  // of a cluster: then a block has a thread for each row and unit

struct Sizes {
  int steps, rows, directions, hidden;
  // Index of a row of H numbers in [T,B,D,H].
  __device__ __forceinline__ Int row(int t, int b, int d) const {
    return ((Int)t * rows + b) * directions + d;
  }
  __device__ __forceinline__ int place(int step, int d) const {
    return d == 0 ? step : steps - 1 - step;
  }
  // Seen in direction d; below 0 or `steps` where there is none.
  __device__ __forceinline__ int before(int t, int d) const { return d == 0 ? t - 1 : t + 1; }
  __device__ __forceinline__ bool exists(int t) const { return t >= 0 && t < steps; }
  __device__ __forceinline__ int length(const int* lengths, int b) const {
    return min(max(lengths[b], 0), steps);
  }
};

struct Cell {
  float i, f, g, o, c, h;
};
__device__ __forceinline__ Cell cell_of(const float (&z)[4], float earlier) {
  Cell cell;
  cell.i = fn_sigmoid(z[0]);
  cell.f = fn_sigmoid(z[1]);
  cell.g = tanhf(z[2]);
  cell.o = fn_sigmoid(z[3]);
  cell.c = cell.i * cell.g + cell.f * earlier;
  cell.h = cell.o * tanhf(cell.c);
  return cell;
}

template <typename T>
struct Forward {
  Sizes s;
  const T *x, *r;
  const int* lengths;
  T *y, *gates;
  float *last_h, *last_c, *cells;

  // Results of unit j at a place; zeros where it is not there.
  __device__ __forceinline__ void write(int t, int b, int d, int j, int length, Cell cell) const {
    const Int at = s.row(t, b, d), H = s.hidden;
    const bool there = t < length;
    T* const gate = gates + at * 4 * H + j;
    gate[0] = from_float<T>(there ? cell.i : 0.0f);
    gate[H] = from_float<T>(there ? cell.f : 0.0f);
    gate[2 * H] = from_float<T>(there ? cell.g : 0.0f);
    gate[3 * H] = from_float<T>(there ? cell.o : 0.0f);
    cells[at * H + j] = there ? cell.c : 0.0f;
    y[at * H + j] = from_float<T>(there ? cell.h : 0.0f);
    if (there && t == (d == 0 ? length - 1 : 0)) write_last(b, d, j, cell.h, cell.c);
  }
  __device__ __forceinline__ void write_last(int b, int d, int j, float h, float c) const {
    const Int to = ((Int)b * s.directions + d) * s.hidden + j;
    last_h[to] = h;
    last_c[to] = c;
  }
};

template <typename T>
struct Backward {
  Sizes s;
  const T* r;
  const int* lengths;
  const T *gates, *dy;
  const float *cells, *dlast_h, *dlast_c;
  T* dx;
  float* dc;
};

// What the gradient of a cell needs of the forward pass at one place.
struct Kept {
  float i, f, g, o, c, earlier, dy;
};
template <typename T>
__device__ __forceinline__ Kept kept_at(const Backward<T>& of, int t, int b, int d, int j) {
  const Int at = of.s.row(t, b, d), H = of.s.hidden;
  const T* const gate = of.gates + at * 4 * H + j;
  const int before = of.s.before(t, d);
  return {to_float(gate[0]),
          to_float(gate[H]),
          to_float(gate[2 * H]),
          to_float(gate[3 * H]),
          of.cells[at * H + j],
          of.s.exists(before) ? of.cells[of.s.row(before, b, d) * H + j] : 0.0f,
          to_float(of.dy[at * H + j])};
}
// dz of the four gates; dc becomes what goes on to the step before.
__device__ __forceinline__ void cell_gradient(const Kept& k, float dh, float& dc, float (&dz)[4]) {
  const float down = dh + k.dy, squashed = tanhf(k.c);
  const float change = dc + down * k.o * (1.0f - squashed * squashed);
  dz[0] = change * k.g * k.i * (1.0f - k.i);
  dz[1] = change * k.earlier * k.f * (1.0f - k.f);
  dz[2] = change * k.i * (1.0f - k.g * k.g);
  dz[3] = down * squashed * k.o * (1.0f - k.o);
  dc = change * k.f;
}

// --- clusters

// Rows [first, first + count) of direction d are those of this cluster.
struct Part {
  int d, first, count;
};
__device__ __forceinline__ Part part_of_cluster(const Sizes& s, int rows_each) {
  const int cluster = blockIdx.x / kClusterBlocks;
  const int first = cluster / s.directions * rows_each;
  return {cluster % s.directions, first, min(rows_each, s.rows - first)};
}

__device__ __forceinline__ float dot_registers(const float* w, const float* values, int count) {
  float sum[4] = {};
#pragma unroll
  for (int k = 0; k < count; k += 4) {
    const float4 v = *reinterpret_cast<const float4*>(values + k);
    sum[0] += w[k] * v.x;
    sum[1] += w[k + 1] * v.y;
    sum[2] += w[k + 2] * v.z;
    sum[3] += w[k + 3] * v.w;
  }
  return (sum[0] + sum[1]) + (sum[2] + sum[3]);
}

// `hidden` threads. The four gates of hidden / 8 units are hidden / 2 columns of the weights: a
// thread has one half of one column, at most kHalf numbers.
template <typename T, int kHalf>
__global__ void __launch_bounds__(kLstmMostHidden)
    forward_cluster(const Forward<T> of, int rows_each) {
  __shared__ __align__(16) float h[2][kMostRows][2][kHalf];
  __shared__ float shares[kMostRows][2][kLstmMostHidden / 2];
  const Sizes& s = of.s;
  const int H = s.hidden, units = H / kClusterBlocks, columns = H / 2, thread = threadIdx.x;
  const int rank = cluster_rank();
  const Part part = part_of_cluster(s, rows_each);

  const int column = thread % columns, half = thread / columns;
  float w[kHalf];
  {
    const int gate = column / units, unit = rank * units + column % units;
    const T* from = of.r + ((Int)part.d * H + half * columns) * 4 * H + gate * H + unit;
#pragma unroll
    for (int k = 0; k < kHalf; ++k) w[k] = k < columns ? to_float(from[(Int)k * 4 * H]) : 0.0f;
  }
  for (int i = thread; i < 2 * kMostRows * 2 * kHalf; i += H) (&h[0][0][0][0])[i] = 0.0f;

  // The row and unit whose cell is this thread's.
  const int row = thread / units, unit = rank * units + thread % units, b = part.first + row;
  const bool has_cell = row < part.count;
  const int length = has_cell ? s.length(of.lengths, b) : 0;
  if (has_cell && length == 0) of.write_last(b, part.d, unit, 0.0f, 0.0f);
  float c = 0, x[4] = {};
  auto load_x = [&](int step) {
    const T* from = of.x + s.row(s.place(step, part.d), b, part.d) * 4 * H + unit;
#pragma unroll
    for (int g = 0; g < 4; ++g) x[g] = to_float(from[g * H]);
  };
  if (has_cell) load_x(0);
  cluster_arrive();  // the buffers of all blocks are zero
  cluster_wait();

  for (int step = 0; step < s.steps; ++step) {
    const int t = s.place(step, part.d), now = step % 2;
    for (int i = 0; i < part.count; ++i)
      shares[i][half][column] = dot_registers(w, h[now][i][half], kHalf);
    __syncthreads();
    Cell cell = {};
    if (has_cell) {
      float z[4];
#pragma unroll
      for (int g = 0; g < 4; ++g) {
        const int at = g * units + thread % units;
        z[g] = x[g] + (shares[row][0][at] + shares[row][1][at]);
      }
      cell = cell_of(z, c);
      if (t >= length) cell = {};
      c = cell.c;
      float* const to = &h[1 - now][row][unit / columns][unit % columns];
#pragma unroll
      for (int other = 0; other < kClusterBlocks; ++other) cluster_store(to, other, cell.h);
    }
    cluster_arrive();
    if (has_cell) {
      of.write(t, b, part.d, unit, length, cell);
      if (step + 1 < s.steps) load_x(step + 1);
    }
    cluster_wait();
  }
}

// `hidden` threads; a thread has the weights from one unit's h to the block's gates.
template <typename T, int kHalf>
__global__ void __launch_bounds__(kLstmMostHidden)
    backward_cluster(const Backward<T> of, int rows_each) {
  __shared__ __align__(16) float dz[kMostRows][kHalf];
  __shared__ float shares[2][kMostRows][kClusterBlocks][kLstmMostHidden / kClusterBlocks];
  const Sizes& s = of.s;
  const int H = s.hidden, units = H / kClusterBlocks, columns = H / 2, thread = threadIdx.x;
  const int rank = cluster_rank();
  const Part part = part_of_cluster(s, rows_each);

  float w[kHalf];
  {
    const T* from = of.r + ((Int)part.d * H + thread) * 4 * H + rank * units;
#pragma unroll
    for (int k = 0; k < kHalf; ++k)
      w[k] = k < columns ? to_float(from[k / units * H + k % units]) : 0.0f;
  }
  constexpr int kShares = kMostRows * kClusterBlocks * (kLstmMostHidden / kClusterBlocks);
  for (int i = thread; i < 2 * kShares; i += H) (&shares[0][0][0][0])[i] = 0.0f;
  for (int i = thread; i < kMostRows * kHalf; i += H) (&dz[0][0])[i] = 0.0f;

  const int row = thread / units, own = thread % units, unit = rank * units + own,
            b = part.first + row;
  const bool has_cell = row < part.count;
  const int length = has_cell ? s.length(of.lengths, b) : 0;
  const int last = part.d == 0 ? length - 1 : 0;
  float dc = 0;
  Kept kept = {};
  if (has_cell) kept = kept_at(of, s.place(s.steps - 1, part.d), b, part.d, unit);
  cluster_arrive();
  cluster_wait();

  for (int step = s.steps - 1; step >= 0; --step) {
    const int t = s.place(step, part.d), now = step % 2;
    float out[4] = {};
    if (has_cell) {
      if (t < length) {
        float dh = 0;
        if (t == last) {
          const Int at = ((Int)b * s.directions + part.d) * H + unit;
          dh = of.dlast_h[at];
          dc = of.dlast_c[at];
        } else {
#pragma unroll
          for (int other = 0; other < kClusterBlocks; ++other) dh += shares[now][row][other][own];
        }
        cell_gradient(kept, dh, dc, out);
      }
#pragma unroll
      for (int g = 0; g < 4; ++g) dz[row][g * units + own] = out[g];
    }
    __syncthreads();
    const int owner = thread / units, place = thread % units;
    for (int i = 0; i < part.count; ++i)
      cluster_store(&shares[1 - now][i][rank][place], owner, dot_registers(w, dz[i], kHalf));
    cluster_arrive();
    if (has_cell) {
      T* const to = of.dx + s.row(t, b, part.d) * 4 * H + unit;
#pragma unroll
      for (int g = 0; g < 4; ++g) to[g * H] = from_float<T>(out[g]);
      if (step > 0) kept = kept_at(of, s.place(step - 1, part.d), b, part.d, unit);
    }
    cluster_wait();
  }
}

// --- steps

constexpr int kStepUnits = 32, kStepSlices = 8, kStepRows = 4;

// A block has 32 units of one direction and up to four rows; each warp a slice of the sum.
template <typename T>
__global__ void __launch_bounds__(kStepUnits* kStepSlices)
    forward_step(const Forward<T> of, int step) {
  __shared__ float shares[kStepRows][4][kStepSlices][kStepUnits];
  const Sizes& s = of.s;
  const int H = s.hidden, lane = threadIdx.x % kStepUnits, slice = threadIdx.x / kStepUnits;
  const int d = blockIdx.y, first = blockIdx.z * kStepRows, count = min(kStepRows, s.rows - first);
  const int j = blockIdx.x * kStepUnits + lane, t = s.place(step, d), before = s.before(t, d);
  float sum[kStepRows][4] = {};
  if (step > 0 && j < H)
    for (int k = slice; k < H; k += kStepSlices) {
      const T* const r = of.r + ((Int)d * H + k) * 4 * H + j;
      float w[4];
#pragma unroll
      for (int g = 0; g < 4; ++g) w[g] = to_float(r[g * H]);
#pragma unroll
      for (int i = 0; i < kStepRows; ++i) {
        if (i >= count) continue;
        const float h = to_float(of.y[s.row(before, first + i, d) * H + k]);
#pragma unroll
        for (int g = 0; g < 4; ++g) sum[i][g] += h * w[g];
      }
    }
#pragma unroll
  for (int i = 0; i < kStepRows; ++i)
#pragma unroll
    for (int g = 0; g < 4; ++g) shares[i][g][slice][lane] = sum[i][g];
  __syncthreads();
  if (slice >= count || j >= H) return;
  const int b = first + slice, length = s.length(of.lengths, b);
  const T* const x = of.x + s.row(t, b, d) * 4 * H + j;
  float z[4];
#pragma unroll
  for (int g = 0; g < 4; ++g) {
    z[g] = to_float(x[g * H]);
#pragma unroll
    for (int k = 0; k < kStepSlices; ++k) z[g] += shares[slice][g][k][lane];
  }
  const float earlier = step > 0 ? of.cells[s.row(before, b, d) * H + j] : 0.0f;
  of.write(t, b, d, j, length, cell_of(z, earlier));
  if (step == 0 && length == 0) of.write_last(b, d, j, 0.0f, 0.0f);
}

// A warp has one unit and up to four rows: what the step behind gives its h, then its cell.
template <typename T>
__global__ void __launch_bounds__(kStepUnits* kStepSlices)
    backward_step(const Backward<T> of, int step) {
  const Sizes& s = of.s;
  const int H = s.hidden, lane = threadIdx.x % kWarp;
  const int j = blockIdx.x * kStepSlices + threadIdx.x / kWarp;
  const int d = blockIdx.y, first = blockIdx.z * kStepRows, count = min(kStepRows, s.rows - first);
  if (j >= H) return;
  const int t = s.place(step, d);
  float sum[kStepRows] = {};
  if (step + 1 < s.steps) {
    const T* const r = of.r + ((Int)d * H + j) * 4 * H;
    for (int n = lane; n < 4 * H; n += kWarp) {
      const float w = to_float(r[n]);
#pragma unroll
      for (int i = 0; i < kStepRows; ++i)
        if (i < count)
          sum[i] += w * to_float(of.dx[s.row(s.place(step + 1, d), first + i, d) * 4 * H + n]);
    }
  }
#pragma unroll
  for (int i = 0; i < kStepRows; ++i) sum[i] = warp_sum(sum[i]);
  if (lane >= count) return;
  const int b = first + lane, length = s.length(of.lengths, b);
  const Int state = ((Int)b * s.directions + d) * H + j;
  float out[4] = {};
  if (t < length) {
    const bool last = t == (d == 0 ? length - 1 : 0);
    const float through = lane == 0 ? sum[0] : lane == 1 ? sum[1] : lane == 2 ? sum[2] : sum[3];
    float dc = last ? of.dlast_c[state] : of.dc[state];
    cell_gradient(kept_at(of, t, b, d, j), last ? of.dlast_h[state] : through, dc, out);
    of.dc[state] = dc;
  }
  T* const to = of.dx + s.row(t, b, d) * 4 * H + j;
#pragma unroll
  for (int g = 0; g < 4; ++g) to[g * H] = from_float<T>(out[g]);
}

// --- launches

// with_type, and how many numbers of a column a thread of a cluster has room for.
template <typename F>
cudaError_t with_form(const LstmSizes& s, F function) {
  return with_type(s.type, [&]<typename T>(T*) {
    if (s.hidden <= 64) return function.template operator()<T, 32>();
    if (s.hidden <= 128) return function.template operator()<T, 64>();
    return function.template operator()<T, 128>();
  });
}

Sizes sizes_of(const LstmSizes& s) {
  return {(int)s.steps, (int)s.rows, (int)s.directions, (int)s.hidden};
}

template <typename T>
Forward<T> typed(const LstmSizes& s, const LstmForward& of) {
  return {sizes_of(s),
          static_cast<const T*>(of.x),
          static_cast<const T*>(of.r),
          of.lengths,
          static_cast<T*>(of.y),
          static_cast<T*>(of.gates),
          of.last_h,
          of.last_c,
          of.cells};
}
template <typename T>
Backward<T> typed(const LstmSizes& s, const LstmBackward& of) {
  return {sizes_of(s),
          static_cast<const T*>(of.r),
          of.lengths,
          static_cast<const T*>(of.gates),
          static_cast<const T*>(of.dy),
          of.cells,
          of.dlast_h,
          of.dlast_c,
          static_cast<T*>(of.dx),
          of.dc};
}

// As few rows a cluster as let all clusters run at once.
template <typename Kernel, typename Arguments>
cudaError_t launch_clusters(Kernel kernel, const LstmSizes& s, const Arguments& of,
                            int multiprocessors, cudaStream_t stream) {
  const int64_t clusters = multiprocessors >= kClusterBlocks ? multiprocessors / kClusterBlocks : 1;
  const int64_t groups = clusters > s.directions ? clusters / s.directions : 1;
  int64_t rows = (s.rows + groups - 1) / groups;
  if (rows > kMostRows) rows = kMostRows;
  cudaLaunchAttribute cluster = {};
  cluster.id = cudaLaunchAttributeClusterDimension;
  cluster.val.clusterDim.x = kClusterBlocks;
  cluster.val.clusterDim.y = cluster.val.clusterDim.z = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim =
      dim3((unsigned)((s.rows + rows - 1) / rows * s.directions * kClusterBlocks), 1, 1);
  config.blockDim = dim3((unsigned)s.hidden, 1, 1);
  config.stream = stream;
  config.attrs = &cluster;
  config.numAttrs = 1;
  return cudaLaunchKernelEx(&config, kernel, of, (int)rows);
}

dim3 step_grid(const LstmSizes& s, int units) {
  return dim3((unsigned)((s.hidden + units - 1) / units), (unsigned)s.directions,
              (unsigned)((s.rows + kStepRows - 1) / kStepRows));
}

}  // namespace

cudaError_t launch_lstm_cluster(const LstmSizes& s, const LstmForward& of, int multiprocessors,
                                cudaStream_t stream) {
  return with_form(s, [&]<typename T, int kHalf>() {
    return launch_clusters(forward_cluster<T, kHalf>, s, typed<T>(s, of), multiprocessors, stream);
  });
}

cudaError_t launch_lstm_grad_cluster(const LstmSizes& s, const LstmBackward& of,
                                     int multiprocessors, cudaStream_t stream) {
  return with_form(s, [&]<typename T, int kHalf>() {
    return launch_clusters(backward_cluster<T, kHalf>, s, typed<T>(s, of), multiprocessors, stream);
  });
}

void launch_lstm_steps(const LstmSizes& s, const LstmForward& of, cudaStream_t stream) {
  if (s.rows == 0) return;
  with_type(s.type, [&]<typename T>(T*) {
    const auto arguments = typed<T>(s, of);
    for (int step = 0; step < s.steps; ++step)
      forward_step<<<step_grid(s, kStepUnits), kStepUnits * kStepSlices, 0, stream>>>(arguments,
                                                                                      step);
  });
  if (s.steps > 0) return;
  const size_t bytes = (size_t)(s.rows * s.directions * s.hidden) * sizeof(float);
  cudaMemsetAsync(of.last_h, 0, bytes, stream);
  cudaMemsetAsync(of.last_c, 0, bytes, stream);
}

void launch_lstm_grad_steps(const LstmSizes& s, const LstmBackward& of, cudaStream_t stream) {
  if (s.rows == 0) return;
  with_type(s.type, [&]<typename T>(T*) {
    const auto arguments = typed<T>(s, of);
    for (int step = (int)s.steps - 1; step >= 0; --step)
      backward_step<<<step_grid(s, kStepSlices), kStepUnits * kStepSlices, 0, stream>>>(arguments,
                                                                                        step);
  });
}

}  // namespace millrace::cuda
