// Each block walks over tiles of 128 x 256 with three warpgroups: two multiply 64 rows each and
// leave the sums, rounded to halves, in shared memory; of the third, a warp asks the bulk engine
// for tiles of A and B, and three turn the sums of the tile before into results. Every tile is made
// by one block in one order: the same bits always.
#include "cuda/device.cuh"
#include "cuda/gelu_gemm_sm90.h"
#include "cuda/hopper.cuh"

namespace millrace::cuda {
namespace {

constexpr int kM = 128, kN = 256, kK = 64, kStages = 3;
constexpr int kThreads = 3 * kWarpgroup, kFinishing = 3;  // warps
constexpr int kMostBias = 4096;
// 16 bytes more than a row: neighbouring rows begin at other banks.
constexpr int kTileRow = kN + 8;
constexpr int kTileBytes = (kM + kN) * kK * 2;  // of A and B in a stage

struct Args {
  const void* bias;  // null: none
  const void* aux_in;
  void *aux_out, *d;
  int m, n, k;
};

template <typename T>
struct Shared {
  alignas(1024) T a[kStages][kM * kK];
  alignas(1024) T b[kStages][kN * kK];
  alignas(16) T tile[kM * kTileRow];
  alignas(16) T bias[kMostBias];
  uint64_t full[kStages], empty[kStages];  // tiles of A and B
  uint64_t made, taken;                    // the tile of sums
};

// (1 + tanh u) / 2 is sigmoid(2 u), for two numbers and with their squares given. Errors of a few
// units in the last place of a float: results are rounded to halves. What counts here is how often
// the special function units are asked: three times for two numbers.
__device__ __forceinline__ void gelu_sigmoids(const float (&x)[2], const float (&square)[2],
                                              float (&result)[2]) {
  constexpr float kScale = -1.59576912160573071176f * 1.44269504088896340736f;  // of exp2
  float sum[2], inverse;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    // Above 2^60 nothing is left of 1 / (1 + power); the product of both stays finite.
    const float exponent = fminf(x[i] * fmaf(square[i], kScale * 0.044715f, kScale), 60.0f);
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(sum[i]) : "f"(exponent));
    sum[i] += 1.0f;
  }
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(inverse) : "f"(sum[0] * sum[1]));
  result[0] = inverse * sum[1];
  result[1] = inverse * sum[0];
}
__device__ __forceinline__ void gelu(float (&x)[2]) {
  const float square[2] = {x[0] * x[0], x[1] * x[1]};
  float s[2];
  gelu_sigmoids(x, square, s);
#pragma unroll
  for (int i = 0; i < 2; ++i) x[i] *= s[i];
}
// y times the derivative at x.
__device__ __forceinline__ void gelu_slope(const float (&x)[2], float (&y)[2]) {
  constexpr float kScale = 1.59576912160573071176f;
  const float square[2] = {x[0] * x[0], x[1] * x[1]};
  float s[2];
  gelu_sigmoids(x, square, s);
#pragma unroll
  for (int i = 0; i < 2; ++i)
    y[i] *= fmaf(x[i] * fmaf(square[i], kScale * 0.134145f, kScale), fmaf(-s[i], s[i], s[i]), s[i]);
}

// Two halves as they stand in a word.
template <typename T>
__device__ __forceinline__ void split(uint32_t word, float (&two)[2]) {
  if constexpr (__is_same(T, __nv_bfloat16)) {
    two[0] = __uint_as_float(word << 16);
    two[1] = __uint_as_float(word & 0xffff0000u);
  } else {
    const float2 both = __half22float2(reinterpret_cast<const __half2&>(word));
    two[0] = both.x;
    two[1] = both.y;
  }
}
template <typename T>
__device__ __forceinline__ uint32_t pair(float low, float high) {
  if constexpr (__is_same(T, __nv_bfloat16)) {
    const __nv_bfloat162 two = __floats2bfloat162_rn(low, high);
    return reinterpret_cast<const uint32_t&>(two);
  } else {
    const __half2 two = __floats2half2_rn(low, high);
    return reinterpret_cast<const uint32_t&>(two);
  }
}

template <Activation kActivation, bool kRowsOfK, typename T>
__device__ void load_tiles(Shared<T>& shared, const CUtensorMap& a, const CUtensorMap& b,
                           const Args& args, int tiles, int across) {
  int stage = 0, parity = 0;
  const int steps = (args.k + kK - 1) / kK;
  for (int tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
    const int row = tile / across * kM, column = tile % across * kN;
    // What the finishing warps will read of this tile, into the second-level cache.
    const int rows = min(kM, args.m - row), bytes = 2 * min(kN, args.n - column);
    const int rows_each = (rows + steps - 1) / steps;
    for (int step = 0; step < steps; ++step) {
      if constexpr (kActivation == Activation::gelu_grad)
        for (int i = step * rows_each; i < min(rows, (step + 1) * rows_each); ++i)
          prefetch_bytes(
              static_cast<const T*>(args.aux_in) + static_cast<int64_t>(row + i) * args.n + column,
              bytes);
      barrier_wait(&shared.empty[stage], parity ^ 1);
      uint64_t* const full = &shared.full[stage];
      barrier_expect(full, kTileBytes);
      load_tile(shared.a[stage], &a, step * kK, row, full);
      if constexpr (kRowsOfK) {
#pragma unroll
        for (int part = 0; part < kN / 64; ++part)
          load_tile(shared.b[stage] + part * 64 * kK, &b, column + part * 64, step * kK, full);
      } else {
        load_tile(shared.b[stage], &b, step * kK, column, full);
      }
      if (++stage == kStages) {
        stage = 0;
        parity ^= 1;
      }
    }
  }
}

template <bool kRowsOfK, typename T>
__device__ void multiply_tiles(Shared<T>& shared, const Args& args, int tiles, int across,
                               int half) {
  const int thread = threadIdx.x % kWarpgroup, warp = thread / kWarp, lane = thread % kWarp;
  const int steps = (args.k + kK - 1) / kK;
  int stage = 0, parity = 0, tile_parity = 0;
  for (int tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
    const int column = tile % across * kN;
    float sums[128];
#pragma unroll
    for (int j = 0; j < kN / 8; ++j) {
      float two[2] = {};
      if (args.bias != nullptr)
        split<T>(*reinterpret_cast<const uint32_t*>(shared.bias + column + 8 * j + lane % 4 * 2),
                 two);
      sums[4 * j] = sums[4 * j + 2] = two[0];
      sums[4 * j + 1] = sums[4 * j + 3] = two[1];
    }
    const auto multiply_step = [&] {
      barrier_wait(&shared.full[stage], parity);
      products_begin();
#pragma unroll
      for (int part = 0; part < kK / 16; ++part) {
        const uint64_t a =
            matrix_descriptor(shared.a[stage] + half * 64 * kK + part * 16, 16, 1024);
        const uint64_t b =
            kRowsOfK ? matrix_descriptor(shared.b[stage] + part * 16 * 64, 64 * kK * 2, 1024)
                     : matrix_descriptor(shared.b[stage] + part * 16, 16, 1024);
        multiply<T, kRowsOfK>(sums, a, b);
      }
      products_commit();
      const int now = stage;
      if (++stage == kStages) {
        stage = 0;
        parity ^= 1;
      }
      return now;
    };
    hold(sums);
    int before = multiply_step();
    for (int step = 1; step < steps; ++step) {
      const int now = multiply_step();
      // The step before this one is over: its tiles may be overwritten.
      products_wait<1>();
      if (thread == 0) barrier_arrive(&shared.empty[before]);
      before = now;
    }
    products_wait<0>();
    hold(sums);
    if (thread == 0) barrier_arrive(&shared.empty[before]);

    barrier_wait(&shared.taken, tile_parity ^ 1);
    tile_parity ^= 1;
    T* const place = shared.tile + (half * 64 + warp * 16 + lane % 16) * kTileRow + lane / 16 * 8;
#pragma unroll
    for (int j = 0; j < kN / 8; j += 2) {
      const uint32_t part[4] = {
          pair<T>(sums[4 * j], sums[4 * j + 1]), pair<T>(sums[4 * j + 2], sums[4 * j + 3]),
          pair<T>(sums[4 * j + 4], sums[4 * j + 5]), pair<T>(sums[4 * j + 6], sums[4 * j + 7])};
      store_matrices(place + 8 * j, part);
    }
    __syncwarp();
    if (lane == 0) barrier_arrive(&shared.made);
  }
}

// A warp takes every third row, a lane eight columns of it; four rows are under way at a time, and
// the next four are on their way from memory.
template <Activation kActivation, typename T>
__device__ void finish_tiles(Shared<T>& shared, const Args& args, int tiles, int across) {
  constexpr int kAtOnce = 4, kBatches = (kM + kFinishing * kAtOnce - 1) / (kFinishing * kAtOnce);
  constexpr bool kSlope = kActivation == Activation::gelu_grad;
  const int warp = threadIdx.x / kWarp - 1, lane = threadIdx.x % kWarp;
  const uint32_t row_packs = static_cast<uint32_t>(args.n) / 8;
  const auto row_of = [&](int batch, int i) { return (batch * kAtOnce + i) * kFinishing + warp; };
  int parity = 0;
  for (int tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
    const int first_row = tile / across * kM, column = tile % across * kN + lane * 8;
    const int rows = column < args.n ? min(kM, args.m - first_row) : 0;
    const uint32_t begin =
        static_cast<uint32_t>(first_row) * row_packs + static_cast<uint32_t>(column) / 8;
    uint4 product[kAtOnce], point[kAtOnce];
    const auto load_points = [&](int batch) {
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i)
        if (const int row = row_of(batch, i); kSlope && row < rows)
          point[i] = __ldcs(static_cast<const uint4*>(args.aux_in) + begin + row * row_packs);
    };
    const auto load_products = [&](int batch) {
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i)  // rows behind the last lie in shared memory too
        product[i] =
            *reinterpret_cast<const uint4*>(shared.tile + row_of(batch, i) * kTileRow + lane * 8);
    };
    load_points(0);
    barrier_wait(&shared.made, parity);
    parity ^= 1;
    load_products(0);
#pragma unroll 2
    for (int batch = 0; batch < kBatches; ++batch) {
      uint4 from[kAtOnce], at[kAtOnce];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        from[i] = product[i];
        at[i] = point[i];
      }
      if (batch + 1 < kBatches) {
        load_points(batch + 1);
        load_products(batch + 1);
      }
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        const uint32_t(&words)[4] = reinterpret_cast<const uint32_t(&)[4]>(from[i]);
        const uint32_t(&points)[4] = reinterpret_cast<const uint32_t(&)[4]>(at[i]);
        uint32_t results[4];
#pragma unroll
        for (int k = 0; k < 4; ++k) {
          float value[2], x[2];
          split<T>(words[k], value);
          if constexpr (kSlope) {
            split<T>(points[k], x);
            gelu_slope(x, value);
          } else {
            gelu(value);
          }
          results[k] = pair<T>(value[0], value[1]);
        }
        if (const int row = row_of(batch, i); row < rows) {
          const uint32_t place = begin + row * row_packs;
          if constexpr (kActivation == Activation::gelu_kept)
            __stcs(static_cast<uint4*>(args.aux_out) + place, from[i]);
          __stcs(static_cast<uint4*>(args.d) + place,
                 make_uint4(results[0], results[1], results[2], results[3]));
        }
      }
    }
    __syncwarp();
    if (lane == 0) barrier_arrive(&shared.taken);
  }
}

template <Activation kActivation, bool kRowsOfK, typename T>
__global__ void __launch_bounds__(kThreads, 1)
    gelu_gemm(const __grid_constant__ CUtensorMap a, const __grid_constant__ CUtensorMap b,
              const Args args) {
  extern __shared__ std::byte memory[];
  // Tiles with a swizzle begin at multiples of 1024 bytes.
  const uint32_t off = (1024 - shared_address(memory) % 1024) % 1024;
  auto& shared = *reinterpret_cast<Shared<T>*>(memory + off);
  const int group = threadIdx.x / kWarpgroup;
  const int down = (args.m + kM - 1) / kM, across = (args.n + kN - 1) / kN, tiles = down * across;
  if (threadIdx.x == 0) {
    for (int i = 0; i < kStages; ++i) {
      barrier_init(&shared.full[i], 1);
      barrier_init(&shared.empty[i], 2);
    }
    barrier_init(&shared.made, 8);  // warps
    barrier_init(&shared.taken, kFinishing);
    barriers_made();
    prefetch_map(&a);
    prefetch_map(&b);
  }
  if (args.bias != nullptr)
    for (int i = threadIdx.x; i < across * kN; i += kThreads)
      shared.bias[i] = i < args.n ? static_cast<const T*>(args.bias)[i] : from_float<T>(0.0f);
  __syncthreads();
  if (group == 0) {
    give_registers<120>();
    if (threadIdx.x >= kWarp)
      finish_tiles<kActivation>(shared, args, tiles, across);
    else if (threadIdx.x == 0)
      load_tiles<kActivation, kRowsOfK>(shared, a, b, args, tiles, across);
  } else {
    take_registers<192>();
    multiply_tiles<kRowsOfK>(shared, args, tiles, across, group - 1);
  }
}

// A matrix of `rows` rows, in boxes of `box_rows` rows of 64 numbers.
bool describe(CUtensorMap& map, const void* data, DType dtype, int64_t rows, int64_t columns,
              int box_rows) {
  using Encode =
      CUresult (*)(CUtensorMap*, CUtensorMapDataType, cuuint32_t, void*, const cuuint64_t*,
                   const cuuint64_t*, const cuuint32_t*, const cuuint32_t*, CUtensorMapInterleave,
                   CUtensorMapSwizzle, CUtensorMapL2promotion, CUtensorMapFloatOOBfill);
  static const Encode encode = [] {
    void* function = nullptr;
    cudaDriverEntryPointQueryResult found{};
    const cudaError_t status = cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function,
                                                                12000, cudaEnableDefault, &found);
    return status == cudaSuccess && found == cudaDriverEntryPointSuccess
               ? reinterpret_cast<Encode>(function)
               : nullptr;
  }();
  if (!encode) return false;
  const cuuint64_t sizes[2] = {static_cast<cuuint64_t>(columns), static_cast<cuuint64_t>(rows)};
  const cuuint64_t strides[1] = {static_cast<cuuint64_t>(columns * 2)};
  const cuuint32_t box[2] = {64, static_cast<cuuint32_t>(box_rows)}, one[2] = {1, 1};
  const auto type =
      dtype == DType::bf16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 : CU_TENSOR_MAP_DATA_TYPE_FLOAT16;
  return encode(&map, type, 2, const_cast<void*>(data), sizes, strides, box, one,
                CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

template <Activation kActivation, bool kRowsOfK, typename T>
cudaError_t launch(const GemmSpec& spec, const GemmData& data, int multiprocessors,
                   cudaStream_t stream) {
  const auto kernel = gelu_gemm<kActivation, kRowsOfK, T>;
  constexpr int kBytes = sizeof(Shared<T>) + 1024;
  static const cudaError_t allowed =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes);
  if (allowed != cudaSuccess) return allowed;
  CUtensorMap a, b;
  if (!describe(a, data.a, spec.in, spec.m, spec.k, kM) ||
      !(kRowsOfK ? describe(b, data.b, spec.in, spec.k, spec.n, kK)
                 : describe(b, data.b, spec.in, spec.n, spec.k, kN)))
    return cudaErrorInvalidValue;
  const Args args{data.bias,
                  data.aux,
                  data.aux,
                  data.d,
                  static_cast<int>(spec.m),
                  static_cast<int>(spec.n),
                  static_cast<int>(spec.k)};
  const int64_t tiles = (spec.m + kM - 1) / kM * ((spec.n + kN - 1) / kN);
  const auto blocks =
      static_cast<unsigned>(tiles < multiprocessors ? tiles : int64_t{multiprocessors});
  kernel<<<blocks, kThreads, kBytes, stream>>>(a, b, args);
  return cudaGetLastError();
}

template <Activation kActivation>
cudaError_t launch(const GemmSpec& spec, const GemmData& data, int multiprocessors,
                   cudaStream_t stream) {
  const bool bf16 = spec.in == DType::bf16;
  const auto function =
      spec.tb
          ? (bf16 ? launch<kActivation, false, __nv_bfloat16> : launch<kActivation, false, __half>)
          : (bf16 ? launch<kActivation, true, __nv_bfloat16> : launch<kActivation, true, __half>);
  return function(spec, data, multiprocessors, stream);
}

}  // namespace

std::string decline_gelu_gemm(const GemmSpec& s, int sm) {
  const bool gelu = s.activation == Activation::gelu || s.activation == Activation::gelu_kept ||
                    s.activation == Activation::gelu_grad;
  if (sm != 90) return "only for compute capability 9.0";
  if (!gelu) return "no GELU";
  if (!is_half(s.in) || s.in != s.out) return "only for 16 bits";
  if (s.ta || s.batch != 1 || s.adds || s.scaled || s.lda || s.ldb || s.ldd) return "another form";
  if (s.n % 8 || s.k % 8 || s.alignment % 16 || s.empty() || s.k == 0) return "sizes";
  // Places are counted in 32 bits, eight numbers each.
  if (s.m > INT32_MAX / 2 || s.k > INT32_MAX / 2 || s.n > INT32_MAX / 2 ||
      (s.m + kM) * s.n / 8 > INT32_MAX)
    return "too large";
  if (s.bias && (s.n + kN - 1) / kN * kN > kMostBias) return "too many columns with a bias";
  return "";
}

cudaError_t launch_gelu_gemm(const GemmSpec& spec, const GemmData& data, int multiprocessors,
                             cudaStream_t stream) {
  switch (spec.activation) {
    case Activation::gelu:
      return launch<Activation::gelu>(spec, data, multiprocessors, stream);
    case Activation::gelu_kept:
      return launch<Activation::gelu_kept>(spec, data, multiprocessors, stream);
    case Activation::gelu_grad:
      return launch<Activation::gelu_grad>(spec, data, multiprocessors, stream);
    default:
      return cudaErrorInvalidValue;
  }
}

}  // namespace millrace::cuda
