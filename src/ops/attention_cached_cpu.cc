// Attention over a key/value cache. The query heads that share a key/value head are rows of one
// problem, so that each cache row is read once for all of them; blocks of 64 keys go by with a
// running maximum and sum (arXiv 2205.14135). With few rows, as in decoding, the products run
// straight over the cache: bringing a block into another layout would cost as much as they do.
#include "cpu/kernel.h"
#include "cpu/parallel.h"
#include "cpu/small_gemm.h"
#include "cpu/softmax_lanes.h"
#include "cpu/vector_math.h"
#include "ops/attention_cached.h"

namespace millrace::cpu::MR_ISA {
namespace {

constexpr int64_t kMaxWidth = 256;         // of a head; bounds the scratch of a thread
constexpr int64_t kKeys = 64, kRows = 64;  // of a block
constexpr int64_t kFloats = 64 * 128;      // one operand in a block
constexpr int64_t kFew = 4;                // rows that go without copies of the block
constexpr int64_t kTasks = 32;             // worth cutting finer to reach
// A tile of rows reads up to kTileRows - 1 columns, zeros, behind the last key of its first row.
constexpr int64_t kScoreStride = kKeys + kLanes;
static_assert(kTileRows <= kLanes);

std::string decline(const OpSite& site) {
  const int64_t width = site.attrs.integer("head_dim");
  return width <= kMaxWidth ? "" : fmt::format("head_dim {} over {}", width, kMaxWidth);
}

struct Problem : CachedAttentionSite {
  explicit Problem(const Call& call)
      : CachedAttentionSite(cached_attention_site(call.site)),
        qkv(call.in(0)),
        keys(call.out(1)),
        values(call.out(2)),
        out(call.out(0)),
        positions(call.ids(3)),
        stride(G * K),
        past(history ? call.ids(4) : nullptr) {}
  int64_t position(int64_t b) const { return clamped(positions[b]); }
  int64_t cache_at(int64_t b, int64_t g, int64_t j) const { return row_at(own(b), g, j); }
  // Where sequence b finds token j.
  int64_t found_at(int64_t b, int64_t g, int64_t j) const {
    return row_at(j < position(b) ? holder(past, b, j) : own(b), g, j);
  }
  int64_t row_at(int64_t r, int64_t g, int64_t j) const { return (r * C + j) * stride + g * K; }

  const float* qkv;
  float *keys, *values, *out;
  const int32_t* positions;
  int64_t stride;
  const int32_t* past;
};

float dot(const float* x, const float* y, int64_t n) {
  Lanes sums{};
  int64_t d = 0;
  for (; d + kLanes <= n; d += kLanes) sums += load<Lanes>(x + d) * load<Lanes>(y + d);
  float sum = across(sums, [](Lanes a, Lanes b) { return a + b; });
  for (; d < n; ++d) sum += x[d] * y[d];
  return sum;
}

// o[0, n) += p[0] v[0] + … + p[count - 1] v[count - 1], rows of v `stride` apart.
void add_rows(float* o, const float* p, const float* v, int64_t stride, int64_t count, int64_t n) {
  int64_t j = 0;
  for (; j + 4 <= count; j += 4, v += 4 * stride) {
    for (int64_t r = 0; r < 4; ++r) prefetch_row(v + (kRowsAhead + r) * stride, n);
    const float *v0 = v, *v1 = v + stride, *v2 = v1 + stride, *v3 = v2 + stride;
    const float p0 = p[j], p1 = p[j + 1], p2 = p[j + 2], p3 = p[j + 3];
#pragma omp simd
    for (int64_t d = 0; d < n; ++d) o[d] += (p0 * v0[d] + p1 * v1[d]) + (p2 * v2[d] + p3 * v3[d]);
  }
  for (; j < count; ++j, v += stride) {
    const float p0 = p[j];
#pragma omp simd
    for (int64_t d = 0; d < n; ++d) o[d] += p0 * v[d];
  }
}

// Rows [r0, r0 + nr) of a key/value head: row r is new token r / group() and query head
// r % group() of the head's own.
void attend(const Problem& p, int64_t b, int64_t g, int64_t r0, int64_t nr, int64_t block) {
  alignas(64) float q[kFloats], o[kFloats];   // [nr][wide]
  alignas(64) float kt[kFloats], v[kFloats];  // [K][block], [block][wide]
  alignas(64) float s[kRows * kScoreStride];  // [nr][kScoreStride]
  float top[kRows], sum[kRows];
  const int64_t wide = padded(p.K), group = p.group();
  const bool few = nr <= kFew;
  auto token = [&](int64_t i) { return (r0 + i) / group; };
  auto head = [&](int64_t i) { return g * group + (r0 + i) % group; };
  for (int64_t i = 0; i < nr; ++i) {
    copy_rows(1, p.K, p.qkv + (b * p.T + token(i)) * p.row() + head(i) * p.K, 0, q + i * wide, wide,
              static_cast<float>(p.scale));
    top[i] = kMinusInfinity;
    sum[i] = 0;
  }
  std::fill_n(o, nr * wide, 0.0f);

  const int64_t position = p.position(b), end = p.seen(position, token(nr - 1));
  for (int64_t j0 = 0; j0 < end; j0 += block) {
    const int64_t nj = std::min(block, end - j0);
    const float *keys = p.keys + p.cache_at(b, g, j0), *values = p.values + p.cache_at(b, g, j0);
    // Row i sees keys [0, seen(i)) of this block; rows stand in the order of time.
    auto seen = [&](int64_t i) {
      return std::clamp<int64_t>(p.seen(position, token(i)) - j0, 0, nj);
    };
    int64_t first = 0;
    while (seen(first) == 0) ++first;
    if (few) {
      for (int64_t j = 0; j < nj; ++j) {
        const float* key = keys + j * p.stride;
        if (p.history)
          key = p.keys + p.found_at(b, g, j0 + j);
        else
          prefetch_row(key + kRowsAhead * p.stride, p.K);
        for (int64_t i = first; i < nr; ++i) s[i * kScoreStride + j] = dot(q + i * wide, key, p.K);
      }
    } else if (p.history) {
      for (int64_t j = 0; j < nj; ++j)
        copy_transposed(1, p.K, p.keys + p.found_at(b, g, j0 + j), 0, kt + j, block, 1.0f);
      auto scores = [&](int64_t, int64_t last) { return GemmPart{seen(last - 1), 0, p.K}; };
      small_gemm<Left::rows>(first, nr, q, wide, kt, block, s, kScoreStride, false, scores);
    } else {
      copy_transposed(nj, p.K, keys, p.stride, kt, block, 1.0f);
      auto scores = [&](int64_t, int64_t last) { return GemmPart{seen(last - 1), 0, p.K}; };
      small_gemm<Left::rows>(first, nr, q, wide, kt, block, s, kScoreStride, false, scores);
    }
    for (int64_t i = first; i < nr; ++i) {
      float* row = s + i * kScoreStride;
      const int64_t n = seen(i), whole = padded(n);
      mask_tail(row, n);
      const float before = top[i];
      top[i] = row_max(row, whole, before);
      if (before != top[i] && sum[i] != 0) {
        const float shrink = vexp(before - top[i]);
        sum[i] *= shrink;
        multiply_row(o + i * wide, wide, shrink);
      }
      sum[i] += row_exp(row, whole, top[i]);
      store(row + whole, Lanes{});
    }
    if (few && p.history) {
      for (int64_t j = 0; j < nj; ++j) {
        const float* const value = p.values + p.found_at(b, g, j0 + j);
        for (int64_t i = first; i < nr; ++i)
          if (j < seen(i)) add_rows(o + i * wide, s + i * kScoreStride + j, value, 0, 1, p.K);
      }
    } else if (few) {
      for (int64_t i = first; i < nr; ++i)
        add_rows(o + i * wide, s + i * kScoreStride, values, p.stride, seen(i), p.K);
    } else {
      if (p.history)
        for (int64_t j = 0; j < nj; ++j)
          copy_rows(1, p.K, p.values + p.found_at(b, g, j0 + j), 0, v + j * wide, wide, 1.0f);
      else
        copy_rows(nj, p.K, values, p.stride, v, wide, 1.0f);
      auto sums = [&](int64_t, int64_t last) { return GemmPart{p.K, 0, seen(last - 1)}; };
      small_gemm<Left::rows>(first, nr, s, kScoreStride, v, wide, o, wide, true, sums);
    }
  }
  for (int64_t i = 0; i < nr; ++i) {
    const float factor = 1.0f / sum[i];
    float* to = p.out + ((b * p.T + token(i)) * p.H + head(i)) * p.K;
#pragma omp simd
    for (int64_t d = 0; d < p.K; ++d) to[d] = o[i * wide + d] * factor;
  }
}

void run(const Call& call) {
  const Problem p(call);
  if (call.in_shape(0).numel() == 0 && call.in_shape(1).numel() == 0) return;
  // Outside of tests and benchmarks the caches are updated where they stand.
  for (size_t cache : {size_t{1}, size_t{2}}) {
    const float* from = call.in(cache);
    float* to = call.out(cache);
    if (from != to)
      parallel_ranges(call.in_shape(cache).numel(), 1 << 16, [&](int64_t begin, int64_t end) {
        std::copy(from + begin, from + end, to + begin);
      });
  }
  parallel_ranges(p.B * p.T, 16, [&](int64_t begin, int64_t end) {
    for (int64_t x = begin; x < end; ++x) {
      const int64_t b = x / p.T, t = x % p.T, position = p.position(b);
      if (t >= p.kept(position)) continue;
      const int64_t to = p.cache_at(b, 0, position + t);
      const float* from = p.qkv + (b * p.T + t) * p.row() + p.H * p.K;
      std::copy_n(from, p.stride, p.keys + to);
      std::copy_n(from + p.stride, p.stride, p.values + to);
    }
  });
  int64_t block = kKeys;
  while (block * padded(p.K) > kFloats) block /= 2;
  const int64_t rows = p.T * p.group(), heads = p.B * p.G;
  int64_t cut = std::min(kRows, block);
  while (cut > kFew && heads * pieces(rows, cut) < kTasks) cut /= 2;
  const int64_t cuts = pieces(rows, cut);
  parallel_tasks(heads * cuts, [&](int64_t task) {
    // Last rows first: they have the most keys.
    const int64_t at = task % heads, r0 = (cuts - 1 - task / heads) * cut;
    attend(p, at / p.G, at % p.G, r0, std::min(cut, rows - r0), block);
  });
}

}  // namespace
}  // namespace millrace::cpu::MR_ISA

MR_CPU_KERNELS(attention_cached, {.name = "blocks", .decline = decline, .run = run})
