// Matrix products: C[m,n] = op(A) op(B) (+ C), row-major, through oneDNN. The result is cut into
// tiles, each a single-threaded product on one thread of the team: no partial sums across threads,
// so the bits do not depend on their number, and an epilogue can run on a tile while it is in
// cache. Which tiling and which oneDNN entry is fastest is measured per shape and remembered on
// disk.
#pragma once
#include <cstdint>
#include <string>

#include "cpu/parallel.h"

namespace millrace::cpu {

struct GemmShape {
  int64_t m = 0, n = 0, k = 0;
  bool ta = false, tb = false;  // A is stored [k,m] / B is stored [n,k]
  friend auto operator<=>(const GemmShape&, const GemmShape&) = default;
};

enum class GemmEntry : uint8_t { sgemm, matmul };  // dnnl_sgemm, or the matmul primitive

struct GemmChoice {
  GemmEntry entry = GemmEntry::sgemm;
  int64_t tile_m = 128, tile_n = 384;
  std::string str() const;  // "sgemm 128x384"
};

// The remembered choice, measuring it first if this machine has not seen the shape. With measuring
// switched off (tests of plan texts), a fixed rule answers.
GemmChoice gemm_choice(const GemmShape& shape);
void gemm_set_measuring(bool on);
bool gemm_measuring();
// The choices this process has made, as lines of text; pinned ones come before remembered and
// measured ones. Lines that are not choices are passed over.
std::string gemm_choices();
void gemm_pin_choices(const std::string& text);

// One tile: rows [i0,i1), columns [j0,j1). `beta` 0 or 1.
void gemm_tile(const GemmShape& shape, const GemmChoice& choice, const float* a, const float* b,
               float* c, float beta, int64_t i0, int64_t i1, int64_t j0, int64_t j1);

struct NoEpilogue {
  void operator()(int64_t, int64_t, int64_t, int64_t) const {}
};

// The whole product; after each tile `epilogue(i0, i1, j0, j1)` runs on the thread that computed
// it.
template <typename Epilogue = NoEpilogue>
void gemm(const GemmShape& s, const GemmChoice& choice, const float* a, const float* b, float* c,
          float beta = 0, const Epilogue& epilogue = {}) {
  const int64_t across = (s.n + choice.tile_n - 1) / choice.tile_n,
                down = (s.m + choice.tile_m - 1) / choice.tile_m;
  parallel_tasks(across * down, [&](int64_t task) {
    const int64_t i0 = task / across * choice.tile_m, j0 = task % across * choice.tile_n;
    const int64_t i1 = std::min(s.m, i0 + choice.tile_m), j1 = std::min(s.n, j0 + choice.tile_n);
    gemm_tile(s, choice, a, b, c, beta, i0, i1, j0, j1);
    epilogue(i0, i1, j0, j1);
  });
}

// Brings oneDNN's generated code and buffers into memory, so that what the process holds can be
// counted.
void gemm_warm_up();

// Best rate seen over a few large square products, in FLOP/s: the ceiling that shares are printed
// against.
double measure_sgemm_ceiling();

}  // namespace millrace::cpu
