// Matrix products: C[m,n] = op(A) op(B) (+ C), row-major. The result is cut into tiles, each a
// single-threaded product on one thread of the team: no partial sums across threads, so the bits do
// not depend on their number, and an epilogue can run on a tile while it is in cache. A tile is
// computed by our own kernel (cpu/packed_gemm.h), or by oneDNN where that was measured to be
// clearly faster for the shape, which is remembered on disk.
#pragma once
#include <cstdint>
#include <string>
#include <type_traits>

#include "cpu/packed_gemm.h"
#include "cpu/parallel.h"

namespace millrace::cpu {

struct GemmShape {
  int64_t m = 0, n = 0, k = 0;
  bool ta = false, tb = false;  // A is stored [k,m] / B is stored [n,k]
  friend auto operator<=>(const GemmShape&, const GemmShape&) = default;
};

enum class GemmEntry : uint8_t {
  sgemm,   // dnnl_sgemm
  matmul,  // oneDNN's matmul primitive
  packed,  // cpu/packed_gemm.h
  bf16,    // the same with operands rounded to bf16; asked for, never chosen by measurement
};

struct GemmTiling {
  int64_t m = 1, n = 1;
};

struct GemmChoice {
  GemmEntry entry = GemmEntry::packed;
  GemmTiling tile;  // of oneDNN's entries: their bits depend on it
  // Our own kernel: its bits depend on no tiling.
  bool own() const { return entry == GemmEntry::packed || entry == GemmEntry::bf16; }
  std::string str() const;  // "packed", "sgemm 128x384"
};

// The remembered choice, measuring it first if this machine has not seen the shape. With measuring
// switched off (tests of plan texts), a fixed rule answers.
GemmChoice gemm_choice(const GemmShape& shape);
void gemm_set_measuring(bool on);
// While off, a shape that is not remembered gets the fixed rule's choice, for the rest of the
// process. Whether it was on.
bool gemm_set_timing(bool on);
bool gemm_measuring();
// The choices this process has made, as lines of text; pinned ones come before remembered and
// measured ones. Lines that are not choices are passed over.
std::string gemm_choices();
void gemm_pin_choices(const std::string& text);

// One tile: rows [i0,i1), columns [j0,j1). `beta` 0 or 1. `done`, where given, gets every part of
// it, numbered as in the whole product, and is the one who writes C.
void gemm_tile(const GemmShape& shape, const GemmChoice& choice, const float* a, const float* b,
               float* c, float beta, int64_t i0, int64_t i1, int64_t j0, int64_t j1,
               const BlockDone& done = {});

// The tiling of the packed kernels, whose bits do not depend on it: little copying for each tile,
// enough tiles for the threads.
GemmTiling packed_tiling(const GemmShape& shape, int64_t workers, bool bf16);

struct NoEpilogue {};

// The whole product; `epilogue(block)`, where given, gets each part of it on the thread that
// computed it, while it is in cache, and is the one who writes C.
template <typename Epilogue = NoEpilogue>
void gemm(const GemmShape& s, const GemmChoice& choice, const float* a, const float* b, float* c,
          float beta = 0, const Epilogue& epilogue = {}) {
  const GemmTiling tile = choice.own()
                              ? packed_tiling(s, parallel_width(), choice.entry == GemmEntry::bf16)
                              : choice.tile;
  const int64_t across = pieces(s.n, tile.n), down = pieces(s.m, tile.m);
  parallel_tasks(across * down, [&](int64_t task) {
    const int64_t i0 = task / across * tile.m, j0 = task % across * tile.n;
    const int64_t i1 = std::min(s.m, i0 + tile.m), j1 = std::min(s.n, j0 + tile.n);
    BlockDone done;
    if constexpr (!std::is_same_v<Epilogue, NoEpilogue>)
      done = {[](const void* context, const ProductBlock& block) {
                (*static_cast<const Epilogue*>(context))(block);
              },
              &epilogue};
    gemm_tile(s, choice, a, b, c, beta, i0, i1, j0, j1, done);
  });
}

// Brings the kernels' code and buffers into memory, so that what the process holds can be counted.
void gemm_warm_up(bool bf16);

// Best rate seen over a few large square products, in FLOP/s: the ceiling that shares are printed
// against.
double measure_gemm_ceiling(bool bf16);

}  // namespace millrace::cpu
