// Attention in blocks that stay in cache, after FlashAttention-2 (Dao, arXiv 2307.08691): forward
// walks the key blocks of a query block with a running maximum and sum; backward walks the query
// blocks of a key block. Masked blocks are skipped, and inside a block on the diagonal masked tiles
// are skipped. Head widths are padded with zeros to whole vectors inside the blocks.
#include "cpu/dropout_mask.h"
#include "cpu/kernel.h"
#include "cpu/parallel.h"
#include "cpu/small_gemm.h"
#include "cpu/softmax_lanes.h"
#include "cpu/vector_math.h"
#include "graph/scalar_functions.h"
#include "ops/attention.h"

namespace millrace::cpu::MR_ISA {
namespace {

constexpr int64_t kMaxWidth = 256;  // of a head; bounds the scratch of a thread
constexpr int64_t kBlock = 64;      // keys of a block; queries too, backward
constexpr int64_t kQueries = 128;   // queries of a block, forward
// One operand in a block: all that a block needs stays in an L2 cache of 256 KB.
constexpr int64_t kForwardFloats = 64 * 128, kBackwardFloats = 64 * 64;
// Rows of scores have a vector to spare: a tile of rows reads up to kTileRows - 1 columns, zeros,
// behind the last key of its first row.
constexpr int64_t kScoreStride = kBlock + kLanes;
static_assert(kTileRows <= kLanes);
constexpr int64_t kTasks = 32;   // worth cutting finer to reach: enough for the cores of a socket
constexpr int64_t kMaxRuns = 4;  // bounds the workspace of the backward pass to three times dq

// Wider heads get shorter blocks, so that a block stays within `floats`.
int64_t block_of(int64_t width, int64_t limit, int64_t floats) {
  while (limit * padded(width) > floats) limit /= 2;
  return limit;
}

std::string decline(const OpSite& site) {
  const int64_t width = site.attrs.integer("head_dim");
  return width <= kMaxWidth ? "" : fmt::format("head_dim {} over {}", width, kMaxWidth);
}

// One site with its data: where heads lie, which scores are masked, what dropout leaves.
struct Problem : AttentionSite {
  Problem(const Call& call, size_t tensors)
      : AttentionSite(attention_site(call.site, tensors)),
        q(call.in(0)),
        kv(call.in(kv_input)),
        q_stride(q_row()),
        kv_stride(kv_row()),
        factor(static_cast<float>(scale)),
        keep_factor(static_cast<float>(keep_scale(dropout))),
        threshold(keep_threshold(dropout)) {
    if (mask == Mask::lengths) lengths = call.ids(mask_input);
    if (mask == Mask::segments) segments = call.ids(mask_input);
    if (dropout > 0) key = call.ids(key_input);
  }

  int64_t keys(int64_t b) const { return lengths ? std::clamp<int64_t>(lengths[b], 0, S) : S; }
  // No query of [i, i + ni) shares a segment with a key of [j, j + nj): their ranges do not meet.
  bool apart(int64_t b, int64_t i, int64_t ni, int64_t j, int64_t nj) const {
    if (!segments) return false;
    const auto [qlow, qhigh] = std::minmax_element(segments + b * T + i, segments + b * T + i + ni);
    const auto [klow, khigh] = std::minmax_element(segments + b * T + j, segments + b * T + j + nj);
    return *qhigh < *klow || *khigh < *qlow;
  }
  // Puts -inf where query i and the keys from j belong to different segments.
  void mask_segments(int64_t b, int64_t i, int64_t j, int64_t n, float* score) const {
    if (!segments) return;
    const int32_t own = segments[b * T + i];
    const int32_t* other = segments + b * T + j;
#pragma omp simd
    for (int64_t x = 0; x < n; ++x) score[x] = other[x] == own ? score[x] : kMinusInfinity;
  }

  // keep[x]: what dropout multiplies the probability of query i and key j + x with.
  void keep_row(int64_t b, int64_t h, int64_t i, int64_t j, int64_t n, float* keep) const {
    keep_factors(key, stream, pair_at(b, h, i, j), n, threshold, keep_factor, keep);
  }

  const float *q, *kv;
  int64_t q_stride, kv_stride;
  float factor, keep_factor;
  uint32_t threshold;
  const int32_t *lengths = nullptr, *segments = nullptr, *key = nullptr;
};

// Forward: queries [i0, i0 + ni) of one head against all its keys.
void forward_block(const Problem& p, int64_t b, int64_t h, int64_t i0, int64_t ni, float* out,
                   float* lse) {
  alignas(64) float kt[kForwardFloats], v[kForwardFloats];  // [K][block], [block][wide]
  alignas(64) float o[kForwardFloats];                      // [ni][wide]
  alignas(64) float s[kQueries * kScoreStride];             // [ni][kScoreStride]
  float top[kQueries], before[kQueries], sum[kQueries], keep[kBlock];
  const int64_t wide = padded(p.K), g = p.kv_head(h);
  const int64_t block = block_of(p.K, kBlock, kForwardFloats);
  const int64_t end = p.causal ? std::min(p.keys(b), i0 + ni) : p.keys(b);
  const float* q = p.q + p.q_at(b, h, i0);

  std::fill_n(o, ni * wide, 0.0f);
  std::fill_n(top, ni, kMinusInfinity);
  std::fill_n(sum, ni, 0.0f);
  for (int64_t j0 = 0; j0 < end; j0 += block) {
    const int64_t nj = std::min(block, end - j0);
    if (p.apart(b, i0, ni, j0, nj)) continue;
    // Query row i sees keys [0, seen(i)) of this block.
    auto seen = [&](int64_t i) {
      return p.causal ? std::clamp(i0 + i - j0 + 1, int64_t{0}, nj) : nj;
    };
    const int64_t first = p.causal ? std::max(int64_t{0}, j0 - i0) : 0;
    copy_transposed(nj, p.K, p.kv + p.k_at(b, g, j0), p.kv_stride, kt, block, p.factor);
    auto scores = [&](int64_t, int64_t last) {
      for (int64_t i = last; i < std::min(last + kTileRows, ni); ++i)
        prefetch_row(q + i * p.q_stride, p.K);
      return GemmPart{seen(last - 1), 0, p.K};
    };
    small_gemm<Left::rows>(first, ni, q, p.q_stride, kt, block, s, kScoreStride, false, scores);
    for (int64_t i = first; i < ni; ++i) {
      float* row = s + i * kScoreStride;
      const int64_t n = seen(i);
      p.mask_segments(b, i0 + i, j0, n, row);
      mask_tail(row, n);
      before[i] = top[i];
      top[i] = row_max(row, padded(n), top[i]);
    }
    // A loop of its own, so that the maximum of one row need not be waited for.
    for (int64_t i = first; i < ni; ++i) {
      float* row = s + i * kScoreStride;
      const int64_t n = seen(i), whole = padded(n);
      if (before[i] != top[i] && sum[i] != 0) {
        const float shrink = vexp(before[i] - top[i]);
        sum[i] *= shrink;
        multiply_row(o + i * wide, wide, shrink);
      }
      // While all keys are masked any finite base gives zeros.
      sum[i] += row_exp(row, whole, top[i] == kMinusInfinity ? 0.0f : top[i]);
      if (p.key) {
        p.keep_row(b, h, i0 + i, j0, whole, keep);
        multiply_row(row, whole, keep);
      }
      store(row + whole, Lanes{});
    }
    copy_rows(nj, p.K, p.kv + p.v_at(b, g, j0), p.kv_stride, v, wide, 1.0f);
    auto values = [&](int64_t, int64_t last) { return GemmPart{p.K, 0, seen(last - 1)}; };
    small_gemm<Left::rows>(first, ni, s, kScoreStride, v, wide, o, wide, true, values);
  }
  for (int64_t i = 0; i < ni; ++i) {
    const float factor = sum[i] == 0 ? 0.0f : 1.0f / sum[i];
    float* to = out + p.out_at(b, h, i0 + i);
#pragma omp simd
    for (int64_t d = 0; d < p.K; ++d) to[d] = o[i * wide + d] * factor;
  }
  float* rows = lse + p.row_at(b, h, i0);
#pragma omp simd
  for (int64_t i = 0; i < ni; ++i) rows[i] = sum[i] == 0 ? 0.0f : top[i] + vlog(sum[i]);
}

void run(const Call& call) {
  const Problem p(call, 1);
  int64_t queries = block_of(p.K, kQueries, kForwardFloats);
  if (p.B * p.H * pieces(p.T, queries) < kTasks) queries /= 2;
  const int64_t heads = p.B * p.H, cuts = pieces(p.T, queries);
  parallel_tasks(heads * cuts, [&](int64_t task) {
    // Last queries first: when causal they have the most keys.
    const int64_t head = task % heads, i0 = (cuts - 1 - task / heads) * queries;
    forward_block(p, head / p.H, head % p.H, i0, std::min(queries, p.T - i0), call.out(0),
                  call.out(1));
  });
}

// How the backward pass is cut: a task is one key/value head and a run of its key blocks. Runs but
// the first leave their share of dq in the workspace, to be added in order.
struct Cut {
  explicit Cut(const AttentionSite& s) : block(block_of(s.K, kBlock, kBackwardFloats)) {
    const int64_t heads = std::max(int64_t{1}, s.B * s.G);
    const int64_t wanted = std::min(kMaxRuns, pieces(kTasks, heads));
    run = std::max(int64_t{1}, pieces(pieces(s.S, block), wanted)) * block;
    runs = std::max(int64_t{1}, pieces(s.S, run));
  }
  int64_t block, run, runs;
};

int64_t grad_workspace(const OpSite& site) {
  const AttentionSite s = attention_site(site, 4);
  const int64_t runs = Cut(s).runs, rows = s.B * s.H * s.T;
  return (runs * rows + (runs - 1) * rows * s.K) * static_cast<int64_t>(sizeof(float));
}

struct Backward {
  Problem p;
  Cut cut;
  const float *out, *lse, *dout;
  float *dq, *dkv;
  float* deltas;  // [runs][B,H,T]: sum over d of dout * out; each run its own, so that none waits
  float* shares;  // [runs - 1][B,T,H,K]

  // Where this run's dq goes.
  float* dq_of(int64_t r, int64_t b, int64_t h, int64_t t) const {
    return r == 0 ? dq + p.q_at(b, h, t)
                  : shares + (r - 1) * p.B * p.T * p.H * p.K + p.out_at(b, h, t);
  }
  int64_t first_query(int64_t r) const { return p.causal ? r * cut.run : 0; }
  float* delta(int64_t r, int64_t b, int64_t h) const {
    return deltas + ((r * p.B + b) * p.H + h) * p.T;
  }

  void run_keys(int64_t r, int64_t b, int64_t g) const;
  void fill_delta(int64_t r, int64_t b, int64_t h) const;
  template <bool kKeep>
  void score_gradients(int64_t b, int64_t h, int64_t i, int64_t j, int64_t n, float d, float* s,
                       float* dp) const;
};

void Backward::fill_delta(int64_t r, int64_t b, int64_t h) const {
  float* to = delta(r, b, h);
  for (int64_t t = first_query(r); t < p.T; ++t) {
    const float *x = out + p.out_at(b, h, t), *y = dout + p.out_at(b, h, t);
    prefetch_row(x + kRowsAhead * p.H * p.K, p.K);
    prefetch_row(y + kRowsAhead * p.H * p.K, p.K);
    float sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t d = 0; d < p.K; ++d) sum += x[d] * y[d];
    to[t] = sum;
  }
}

// From scores and dP of one query row: s becomes the probabilities as they met v, dp becomes dS.
template <bool kKeep>
void Backward::score_gradients(int64_t b, int64_t h, int64_t i, int64_t j, int64_t n, float d,
                               float* s, float* dp) const {
  float keep[kBlock];
  if (kKeep) p.keep_row(b, h, i, j, padded(n), keep);
  const float sum = lse[p.row_at(b, h, i)];
  p.mask_segments(b, i, j, n, s);
  const int64_t whole = padded(n);
  mask_tail(s, n);
  for (int64_t x = 0; x < whole; x += kLanes) {
    const Lanes probability = exp_lanes(load<Lanes>(s + x) - sum), upper = load<Lanes>(dp + x);
    if constexpr (kKeep) {
      const Lanes kept = load<Lanes>(keep + x);
      store(s + x, probability * kept);
      store(dp + x, probability * (upper * kept - d));
    } else {
      store(s + x, probability);
      store(dp + x, probability * (upper - d));
    }
  }
  store(s + whole, Lanes{});
  store(dp + whole, Lanes{});
}

void Backward::run_keys(int64_t r, int64_t b, int64_t g) const {
  using Operand = float[kBackwardFloats];
  alignas(64) Operand kt, vt;                                             // [K][block]
  alignas(64) Operand k, dk, dv, q, d_o, d_q;                             // [block][wide]
  alignas(64) float s[kBlock * kScoreStride], dp[kBlock * kScoreStride];  // [block][kScoreStride]
  const int64_t wide = padded(p.K), block = cut.block, group = p.H / p.G;
  // The first key block writes dq, later ones add to it; unless it may be masked away.
  const bool fill = p.segments || p.keys(b) <= r * cut.run;
  for (int64_t h = g * group; h < (g + 1) * group; ++h) {
    fill_delta(r, b, h);
    for (int64_t t = first_query(r); t < p.T && fill; ++t)
      std::fill_n(dq_of(r, b, h, t), p.K, 0.0f);
  }

  for (int64_t j0 = r * cut.run; j0 < std::min(p.S, (r + 1) * cut.run); j0 += block) {
    const int64_t all = std::min(block, p.S - j0), nj = std::min(all, p.keys(b) - j0);
    const bool add = fill || j0 > r * cut.run;
    std::fill_n(dk, all * wide, 0.0f);
    std::fill_n(dv, all * wide, 0.0f);
    if (nj > 0) {
      const float *k_from = p.kv + p.k_at(b, g, j0), *v_from = p.kv + p.v_at(b, g, j0);
      copy_transposed(nj, p.K, k_from, p.kv_stride, kt, block, 1.0f);
      copy_transposed(nj, p.K, v_from, p.kv_stride, vt, block, 1.0f);
      copy_rows(nj, p.K, k_from, p.kv_stride, k, wide, p.factor);
    }
    for (int64_t h = g * group; h < (g + 1) * group && nj > 0; ++h)
      for (int64_t i0 = p.causal ? j0 : 0; i0 < p.T; i0 += block) {
        const int64_t ni = std::min(block, p.T - i0);
        if (p.apart(b, i0, ni, j0, nj)) continue;
        const bool diagonal = p.causal && i0 == j0;
        auto seen = [&](int64_t i) { return diagonal ? std::min(nj, i + 1) : nj; };
        auto scores = [&](int64_t, int64_t last) { return GemmPart{seen(last - 1), 0, p.K}; };
        copy_rows(ni, p.K, p.q + p.q_at(b, h, i0), p.q_stride, q, wide, p.factor);
        small_gemm<Left::rows>(0, ni, q, wide, kt, block, s, kScoreStride, false, scores);
        copy_rows(ni, p.K, dout + p.out_at(b, h, i0), p.H * p.K, d_o, wide, 1.0f);
        small_gemm<Left::rows>(0, ni, d_o, wide, vt, block, dp, kScoreStride, false, scores);
        for (int64_t i = 0; i < ni; ++i) {
          float *s_row = s + i * kScoreStride, *dp_row = dp + i * kScoreStride;
          const float d = delta(r, b, h)[i0 + i];
          if (p.key)
            score_gradients<true>(b, h, i0 + i, j0, seen(i), d, s_row, dp_row);
          else
            score_gradients<false>(b, h, i0 + i, j0, seen(i), d, s_row, dp_row);
        }
        auto by_keys = [&](int64_t from, int64_t) {
          return GemmPart{p.K, diagonal ? std::min(from, ni) : 0, ni};
        };
        small_gemm<Left::columns>(0, nj, s, kScoreStride, d_o, wide, dv, wide, true, by_keys);
        small_gemm<Left::columns>(0, nj, dp, kScoreStride, q, wide, dk, wide, true, by_keys);
        auto by_queries = [&](int64_t, int64_t last) { return GemmPart{p.K, 0, seen(last - 1)}; };
        small_gemm<Left::rows>(0, ni, dp, kScoreStride, k, wide, d_q, wide, false, by_queries);
        for (int64_t i = 0; i < ni; ++i) {
          float* to = dq_of(r, b, h, i0 + i);
          const float* from = d_q + i * wide;
          if (!add) {
            std::copy_n(from, p.K, to);
            continue;
          }
#pragma omp simd
          for (int64_t d = 0; d < p.K; ++d) to[d] += from[d];
        }
      }
    for (int64_t j = 0; j < all; ++j) {
      std::copy_n(dk + j * wide, p.K, dkv + p.k_at(b, g, j0 + j));
      std::copy_n(dv + j * wide, p.K, dkv + p.v_at(b, g, j0 + j));
    }
  }
}

void grad_run(const Call& call) {
  const Problem p(call, 4);
  const Cut cut(p);
  float* deltas = call.scratch();
  float* shares = deltas + cut.runs * p.B * p.H * p.T;
  const Backward w{.p = p,
                   .cut = cut,
                   .out = call.in(1),
                   .lse = call.in(2),
                   .dout = call.in(3),
                   .dq = call.out(0),
                   .dkv = call.out(p.kv_output),
                   .deltas = deltas,
                   .shares = shares};
  const int64_t heads = p.B * p.G;
  parallel_tasks(cut.runs * heads, [&](int64_t task) {
    // First keys first: when causal they have the most queries.
    w.run_keys(task / heads, task % heads / p.G, task % p.G);
  });
  if (cut.runs == 1) return;
  const int64_t grain = std::max(int64_t{1}, 32768 / (p.H * p.K));
  parallel_ranges(p.B * p.T, grain, [&](int64_t begin, int64_t end) {
    for (int64_t x = begin; x < end; ++x)
      for (int64_t r = 1; r < cut.runs && w.first_query(r) <= x % p.T; ++r) {
        float* to = w.dq_of(0, x / p.T, 0, x % p.T);
        const float* from = w.dq_of(r, x / p.T, 0, x % p.T);
#pragma omp simd
        for (int64_t d = 0; d < p.H * p.K; ++d) to[d] += from[d];
      }
  });
}

}  // namespace
}  // namespace millrace::cpu::MR_ISA

MR_CPU_KERNELS(attention, {.name = "blocks", .decline = decline, .run = run})
MR_CPU_KERNELS(attention_grad, {.name = "blocks",
                                .decline = decline,
                                .workspace_bytes = grad_workspace,
                                .run = grad_run})
