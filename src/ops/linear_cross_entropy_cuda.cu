// Softmax, cross-entropy and its gradient over rows of logits. A row is read once and kept in
// registers, of a warp or a block, or in shared memory while its maximum and sum are found. Rows
// too long for that are read twice.
#include <cuda_runtime.h>

#include "cuda/async_copy.cuh"
#include "cuda/device.cuh"
#include "cuda/with_type.cuh"
#include "ops/linear_cross_entropy.h"
#include "ops/linear_cross_entropy_cuda.h"

namespace millrace::cuda {
namespace {

constexpr int kWarpsInBlock = 4;  // where a warp has a row of its own
constexpr int kBlockThreads = 512;
constexpr int kKeptPieces = 4;  // of 16 bytes in a thread's registers
constexpr int kSumThreads = 1024;

// 16 bytes of logits as they are stored.
template <typename T>
struct Raw {
  static constexpr int kCount = 16 / sizeof(T);
  uint4 bits;
  __device__ __forceinline__ void get(float (&value)[kCount]) const { unpack<T>(bits, value); }
  __device__ __forceinline__ void set(int i, float x) {
    reinterpret_cast<T*>(&bits)[i] = from_float<T>(x);
  }
};

// What a thread keeps of a row: pieces `thread`, `thread` + step, …; -inf behind its end.
template <typename T, int kPieces>
__device__ __forceinline__ void load_pieces(Raw<T> (&raw)[kPieces], const T* row, int first,
                                            int step, int pieces, int columns) {
  constexpr int kCount = Raw<T>::kCount;
#pragma unroll
  for (int i = 0; i < kPieces; ++i) {
    const int piece = first + i * step;
    if (piece < pieces) {
      raw[i].bits = *reinterpret_cast<const uint4*>(row + piece * kCount);
    } else {
#pragma unroll
      for (int k = 0; k < kCount; ++k) raw[i].set(k, -INFINITY);
    }
  }
#pragma unroll
  for (int i = 0; i < kPieces; ++i) {
    const int piece = first + i * step;
    if (piece + 1 == pieces) {
#pragma unroll
      for (int k = 0; k < kCount; ++k)
        if (piece * kCount + k >= columns) raw[i].set(k, -INFINITY);
    }
  }
}

__device__ __forceinline__ unsigned max_of_words(unsigned a, unsigned b, __nv_bfloat16) {
  const __nv_bfloat162 top = __hmax2(*reinterpret_cast<const __nv_bfloat162*>(&a),
                                     *reinterpret_cast<const __nv_bfloat162*>(&b));
  return *reinterpret_cast<const unsigned*>(&top);
}
__device__ __forceinline__ unsigned max_of_words(unsigned a, unsigned b, __half) {
  const __half2 top =
      __hmax2(*reinterpret_cast<const __half2*>(&a), *reinterpret_cast<const __half2*>(&b));
  return *reinterpret_cast<const unsigned*>(&top);
}
__device__ __forceinline__ unsigned max_of_words(unsigned a, unsigned b, float) {
  return __float_as_uint(fmaxf(__uint_as_float(a), __uint_as_float(b)));
}

template <typename T, int kPieces>
__device__ __forceinline__ float max_of(const Raw<T> (&raw)[kPieces]) {
  uint4 top = raw[0].bits;
#pragma unroll
  for (int i = 1; i < kPieces; ++i) {
    top.x = max_of_words(top.x, raw[i].bits.x, T{});
    top.y = max_of_words(top.y, raw[i].bits.y, T{});
    top.z = max_of_words(top.z, raw[i].bits.z, T{});
    top.w = max_of_words(top.w, raw[i].bits.w, T{});
  }
  const unsigned one =
      max_of_words(max_of_words(top.x, top.y, T{}), max_of_words(top.z, top.w, T{}), T{});
  if constexpr (sizeof(T) == 4) {
    return __uint_as_float(one);
  } else {
    const float2 two = floats_of<T>(one);
    return fmaxf(two.x, two.y);
  }
}

template <typename T, int kPieces>
__device__ __forceinline__ float exp_sum(const Raw<T> (&raw)[kPieces], float top) {
  const ExpFrom<T> exp_from(top);
  float sum = 0;
#pragma unroll
  for (int i = 0; i < kPieces; ++i) {
    float value[Raw<T>::kCount];
    raw[i].get(value);
#pragma unroll
    for (const float x : value) sum += exp_from(x);
  }
  return sum;
}

// Of the logits themselves.
template <typename T, int kPieces>
__device__ __forceinline__ float total_of(const Raw<T> (&raw)[kPieces], int first, int step,
                                          int columns) {
  constexpr int kCount = Raw<T>::kCount;
  float total = 0;
#pragma unroll
  for (int i = 0; i < kPieces; ++i) {
    float value[kCount];
    raw[i].get(value);
#pragma unroll
    for (int k = 0; k < kCount; ++k)
      if ((first + i * step) * kCount + k < columns) total += value[k];
  }
  return total;
}

// d loss / d logits = scale (softmax - what the target's distribution has). What stands behind the
// columns in the last piece meets weights of zero, or nothing.
template <HeadForm kForm, typename T, int kPieces>
__device__ __forceinline__ void store_gradient(const Raw<T> (&raw)[kPieces], T* row, int first,
                                               int step, int pieces, float top, float sum,
                                               float scale, LabelFloats label, int target) {
  constexpr int kCount = Raw<T>::kCount;
  const float factor = scale / sum;
  const ExpFrom<T> exp_from(top);
#pragma unroll
  for (int i = 0; i < kPieces; ++i) {
    const int piece = first + i * step;
    if (piece >= pieces) continue;
    float gradient[kCount];
    raw[i].get(gradient);
#pragma unroll
    for (float& x : gradient) x = factor * exp_from(x);
    if constexpr (kForm == HeadForm::smooth) {
#pragma unroll
      for (int k = 0; k < kCount; ++k) gradient[k] -= scale * label.off;
    }
    if (target / kCount == piece) {
#pragma unroll
      for (int k = 0; k < kCount; ++k)
        if (piece * kCount + k == target)
          gradient[k] -= kForm == HeadForm::smooth ? scale * label.on : scale;
    }
    *reinterpret_cast<uint4*>(row + piece * kCount) = packed<T>(gradient);
  }
}

// The rows of a launch.
template <typename T>
struct Rows {
  T* logits;
  Int stride;  // from row to row
  const int* targets;
  LabelFloats label;
  HeadCopy copy;
  const float* scale;
  float* losses;
  Int count;
  int columns;

  __host__ __device__ int pieces() const { return (columns + Raw<T>::kCount - 1) / Raw<T>::kCount; }
};

// A row whose word is generated with log-probability `log_p` or copied. Returns the factor of the
// gradient of its logits; one thread `writes` its loss and the gradients of its gate and mass.
template <bool kGradients, typename T>
__device__ __forceinline__ float mix_row(const Rows<T>& rows, Int number, float log_p,
                                         bool writes) {
  constexpr auto kFloor = (float)kMassFloor;
  const float gate = rows.copy.gate[number], mass = rows.copy.mass[number];
  const float softplus = log1pf(expf(-fabsf(gate)));
  const float log_gate = fminf(gate, 0.0f) - softplus;
  const float generated = log_gate + log_p;
  const float copied = fminf(-gate, 0.0f) - softplus + logf(mass < kFloor ? kFloor : mass);
  // A NaN comes through the difference.
  const float log_all = fmaxf(generated, copied) + log1pf(expf(-fabsf(generated - copied)));
  if (writes) rows.losses[number] = -log_all;
  if (!kGradients) return 0;
  const float scale = *rows.scale, share = expf(generated - log_all);
  if (writes) {
    rows.copy.dgate[number] = scale * (expf(log_gate) - share);
    rows.copy.dmass[number] = mass < kFloor ? 0.0f : -scale * expf(copied - log_all) / mass;
  }
  return scale * share;
}

// The same for any row whose target is one of the columns; its largest logit, sum, logit at the
// target and, where it is smoothed, total are known.
template <bool kGradients, HeadForm kForm, typename T>
__device__ __forceinline__ float finish_row(const Rows<T>& rows, Int number, float top, float sum,
                                            float total, float at_target, bool writes) {
  if constexpr (kForm == HeadForm::copy) {
    return mix_row<kGradients>(rows, number, (at_target - top) - logf(sum), writes);
  } else {
    float wanted = at_target;
    if constexpr (kForm == HeadForm::smooth)
      wanted = rows.label.on * at_target + rows.label.off * total;
    if (writes) rows.losses[number] = (top - wanted) + logf(sum);
    return kGradients ? *rows.scale : 0.0f;
  }
}

// A row whose target is none of the columns: its logits have no gradient, and it has no loss unless
// the word can be copied.
template <bool kGradients, HeadForm kForm, typename T>
__device__ __forceinline__ void ignore_row(const Rows<T>& rows, Int number, int target, int thread,
                                           int threads) {
  if (thread == 0) {
    if (kForm == HeadForm::copy && target >= 0) {
      mix_row<kGradients>(rows, number, -INFINITY, true);
    } else {
      rows.losses[number] = 0;
      if (kForm == HeadForm::copy && kGradients)
        rows.copy.dgate[number] = rows.copy.dmass[number] = 0;
    }
  }
  if (!kGradients) return;
  T* const row = rows.logits + number * rows.stride;
  for (int piece = thread; piece < rows.pieces(); piece += threads)
    *reinterpret_cast<uint4*>(row + piece * Raw<T>::kCount) = make_uint4(0, 0, 0, 0);
}

// kThreads threads to a row, which has at most kThreads * kKeptPieces pieces.
template <typename T, int kThreads, bool kGradients, HeadForm kForm>
__global__ void __launch_bounds__(kThreads == kWarp ? kWarp * kWarpsInBlock : kThreads)
    kept_rows(Rows<T> rows) {
  __shared__ float shared[kWarp];
  const Int number =
      kThreads == kWarp ? (Int)blockIdx.x * kWarpsInBlock + threadIdx.x / kWarp : blockIdx.x;
  if (number >= rows.count) return;
  const int thread = threadIdx.x % kThreads, target = rows.targets[number];
  if (target < 0 || target >= rows.columns)
    return ignore_row<kGradients, kForm>(rows, number, target, thread, kThreads);
  T* const row = rows.logits + number * rows.stride;
  const float at_target = to_float(row[target]);  // before anything is written over it
  Raw<T> raw[kKeptPieces];
  load_pieces(raw, row, thread, kThreads, rows.pieces(), rows.columns);
  float top = max_of(raw);
  top = kThreads == kWarp ? warp_max(top) : block_max(top, shared);
  float sum = exp_sum(raw, top);
  sum = kThreads == kWarp ? warp_sum(sum) : block_sum(sum, shared);
  float total = 0;
  if constexpr (kForm == HeadForm::smooth) {
    total = total_of(raw, thread, kThreads, rows.columns);
    total = kThreads == kWarp ? warp_sum(total) : block_sum(total, shared);
  }
  const float scale =
      finish_row<kGradients, kForm>(rows, number, top, sum, total, at_target, thread == 0);
  if (!kGradients) return;
  __syncwarp();
  store_gradient<kForm>(raw, row, thread, kThreads, rows.pieces(), top, sum, scale, rows.label,
                        target);
}

// Rows that fill shared memory, two of them a multiprocessor, so that one is loaded while the other
// is worked on. A thread reads back only what it has brought.
template <typename T, HeadForm kForm>
__global__ void __launch_bounds__(kBlockThreads, 2) shared_rows(Rows<T> rows) {
  constexpr int kCount = Raw<T>::kCount;
  extern __shared__ uint4 kept[];
  __shared__ float shared[kWarp];
  const Int number = blockIdx.x;
  const int thread = threadIdx.x, target = rows.targets[number], pieces = rows.pieces();
  if (target < 0 || target >= rows.columns)
    return ignore_row<true, kForm>(rows, number, target, thread, kBlockThreads);
  T* const row = rows.logits + number * rows.stride;
  const float at_target = to_float(row[target]);
  for (int piece = thread; piece < pieces; piece += kBlockThreads)
    copy_async<16>(kept + piece, row + piece * kCount);
  wait_all_copies();
  if (thread == (pieces - 1) % kBlockThreads) {
    Raw<T> raw{kept[pieces - 1]};
#pragma unroll
    for (int k = 0; k < kCount; ++k)
      if ((pieces - 1) * kCount + k >= rows.columns) raw.set(k, -INFINITY);
    kept[pieces - 1] = raw.bits;
  }
  float top = -INFINITY, sum = 0, total = 0;
#pragma unroll 4
  for (int piece = thread; piece < pieces; piece += kBlockThreads) {
    const Raw<T> raw[1] = {{kept[piece]}};
    top = fmaxf(top, max_of(raw));
    if constexpr (kForm == HeadForm::smooth) total += total_of(raw, piece, 0, rows.columns);
  }
  top = block_max(top, shared);
#pragma unroll 4
  for (int piece = thread; piece < pieces; piece += kBlockThreads) {
    const Raw<T> raw[1] = {{kept[piece]}};
    sum += exp_sum(raw, top);
  }
  sum = block_sum(sum, shared);
  if constexpr (kForm == HeadForm::smooth) total = block_sum(total, shared);
  const float scale =
      finish_row<true, kForm>(rows, number, top, sum, total, at_target, thread == 0);
#pragma unroll 4
  for (int piece = thread; piece < pieces; piece += kBlockThreads) {
    const Raw<T> raw[1] = {{kept[piece]}};
    store_gradient<kForm>(raw, row, piece, 0, pieces, top, sum, scale, rows.label, target);
  }
}

// Rows of any length: maximum and sum in one pass, the gradient in a second.
template <typename T, bool kGradients, HeadForm kForm>
__global__ void __launch_bounds__(kBlockThreads) long_rows(Rows<T> rows) {
  __shared__ float shared[kWarp];
  const Int number = blockIdx.x;
  const int thread = threadIdx.x, target = rows.targets[number], pieces = rows.pieces();
  if (target < 0 || target >= rows.columns)
    return ignore_row<kGradients, kForm>(rows, number, target, thread, kBlockThreads);
  T* const row = rows.logits + number * rows.stride;
  const float at_target = to_float(row[target]);
  constexpr int kStep = kKeptPieces * kBlockThreads;
  float top = -INFINITY, sum = 0, total = 0;
  for (int first = thread; first < pieces; first += kStep) {
    Raw<T> raw[kKeptPieces];
    load_pieces(raw, row, first, kBlockThreads, pieces, rows.columns);
    const float next = fmaxf(top, max_of(raw));
    // Against 0 while there is nothing but -inf: a difference of two of them would be NaN.
    const float base = next > -INFINITY ? next : 0.0f;
    sum = sum * exp_for<T>(top - base) + exp_sum(raw, base);
    if constexpr (kForm == HeadForm::smooth)
      total += total_of(raw, first, kBlockThreads, rows.columns);
    top = next;
  }
  const float own_top = top;
  top = block_max(top, shared);
  sum = block_sum(sum * exp_for<T>(own_top - top), shared);
  if constexpr (kForm == HeadForm::smooth) total = block_sum(total, shared);
  const float scale =
      finish_row<kGradients, kForm>(rows, number, top, sum, total, at_target, thread == 0);
  if constexpr (kGradients)
    for (int first = thread; first < pieces; first += kStep) {
      Raw<T> raw[kKeptPieces];
      load_pieces(raw, row, first, kBlockThreads, pieces, rows.columns);
      store_gradient<kForm>(raw, row, first, kBlockThreads, pieces, top, sum, scale, rows.label,
                            target);
    }
}

__global__ void __launch_bounds__(kSumThreads)
    sum_losses(const float* losses, Int count, const float* scale, float* loss) {
  __shared__ double shared[kSumThreads];
  const Int fours = count / 4;
  double sum = 0;
#pragma unroll 4
  for (Int i = threadIdx.x; i < fours; i += kSumThreads) {
    const float4 four = reinterpret_cast<const float4*>(losses)[i];
    sum += ((double)four.x + (double)four.y) + ((double)four.z + (double)four.w);
  }
  for (Int i = 4 * fours + threadIdx.x; i < count; i += kSumThreads) sum += (double)losses[i];
  shared[threadIdx.x] = sum;
  __syncthreads();
  for (int half = kSumThreads / 2; half > 0; half /= 2) {
    if (threadIdx.x < half) shared[threadIdx.x] += shared[threadIdx.x + half];
    __syncthreads();
  }
  if (threadIdx.x == 0) *loss = (float)(shared[0] * (double)*scale);
}

constexpr int kRoundThreads = 256;

template <typename T>
__global__ void __launch_bounds__(kRoundThreads) round_to(const float* from, T* to, Int count) {
  constexpr int kCount = Pack<T>::kCount;
  const Int first = ((Int)blockIdx.x * kRoundThreads + threadIdx.x) * kCount;
  if (first + kCount <= count) {
    const Pack<float> low = load_pack(from + first), high = load_pack(from + first + kCount / 2);
    Pack<T> pack;
#pragma unroll
    for (int k = 0; k < kCount / 2; ++k) {
      pack.value[k] = low.value[k];
      pack.value[k + kCount / 2] = high.value[k];
    }
    store_pack(to + first, pack);
  } else {
    for (Int i = first; i < count; ++i) to[i] = from_float<T>(from[i]);
  }
}

template <typename T, int kThreads, bool kGradients, HeadForm kForm>
void launch_kept(const Rows<T>& rows, cudaStream_t stream) {
  constexpr bool kWarpRows = kThreads == kWarp;
  const Int blocks = kWarpRows ? (rows.count + kWarpsInBlock - 1) / kWarpsInBlock : rows.count;
  constexpr int kInBlock = kWarpRows ? kWarp * kWarpsInBlock : kThreads;
  kept_rows<T, kThreads, kGradients, kForm><<<(unsigned)blocks, kInBlock, 0, stream>>>(rows);
}

template <HeadForm kForm, typename T>
void launch_rows(const Rows<T>& rows, bool gradients, int64_t shared_bytes, cudaStream_t stream) {
  const int pieces = rows.pieces();
  const auto blocks = (unsigned)rows.count;
  const size_t row_bytes = pieces * sizeof(uint4);
  if (pieces <= kWarp * kKeptPieces)
    gradients ? launch_kept<T, kWarp, true, kForm>(rows, stream)
              : launch_kept<T, kWarp, false, kForm>(rows, stream);
  else if (!gradients)
    long_rows<T, false, kForm><<<blocks, kBlockThreads, 0, stream>>>(rows);
  else if (pieces <= kBlockThreads / 2 * kKeptPieces)
    launch_kept<T, kBlockThreads / 2, true, kForm>(rows, stream);
  else if (pieces <= kBlockThreads * kKeptPieces)
    launch_kept<T, kBlockThreads, true, kForm>(rows, stream);
  else if (row_bytes <= (size_t)shared_bytes)
    shared_rows<T, kForm><<<blocks, kBlockThreads, row_bytes, stream>>>(rows);
  else
    long_rows<T, true, kForm><<<blocks, kBlockThreads, 0, stream>>>(rows);
}

}  // namespace

cudaError_t allow_head_rows(DType dtype, HeadForm form, int64_t shared_bytes) {
  return with_type(dtype, [&]<typename T>(T*) {
    auto* const kernel = form == HeadForm::copy     ? shared_rows<T, HeadForm::copy>
                         : form == HeadForm::smooth ? shared_rows<T, HeadForm::smooth>
                                                    : shared_rows<T, HeadForm::plain>;
    const cudaError_t status = cudaFuncSetAttribute(
        kernel, cudaFuncAttributePreferredSharedMemoryCarveout, cudaSharedmemCarveoutMaxShared);
    if (status != cudaSuccess) return status;
    return cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                (int)shared_bytes);
  });
}

void launch_head_rows(DType dtype, HeadForm form, void* logits, int64_t row_stride,
                      const int32_t* targets, LabelFloats label, const HeadCopy& copy,
                      const float* scale, float* losses, int64_t rows, int64_t columns,
                      bool gradients, int64_t shared_bytes, cudaStream_t stream) {
  if (rows == 0) return;
  with_type(dtype, [&]<typename T>(T*) {
    const Rows<T> all{static_cast<T*>(logits),
                      row_stride,
                      targets,
                      label,
                      copy,
                      scale,
                      losses,
                      rows,
                      (int)columns};
    if (form == HeadForm::copy)
      launch_rows<HeadForm::copy>(all, gradients, shared_bytes, stream);
    else if (form == HeadForm::smooth)
      launch_rows<HeadForm::smooth>(all, gradients, shared_bytes, stream);
    else
      launch_rows<HeadForm::plain>(all, gradients, shared_bytes, stream);
  });
}

void launch_head_loss(const float* losses, int64_t count, const float* scale, float* loss,
                      cudaStream_t stream) {
  sum_losses<<<1, kSumThreads, 0, stream>>>(losses, count, scale, loss);
}

void launch_head_round(const float* from, void* to, DType dtype, int64_t count,
                       cudaStream_t stream) {
  if (count == 0) return;
  constexpr int64_t kInBlock = kRoundThreads * Pack<__half>::kCount;
  const auto blocks = (unsigned)((count + kInBlock - 1) / kInBlock);
  if (dtype == DType::bf16)
    round_to<<<blocks, kRoundThreads, 0, stream>>>(from, static_cast<__nv_bfloat16*>(to), count);
  else
    round_to<<<blocks, kRoundThreads, 0, stream>>>(from, static_cast<__half*>(to), count);
}

}  // namespace millrace::cuda
