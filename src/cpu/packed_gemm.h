// Products by our own kernel, on the calling thread: B is copied, block by block, into the order in
// which the register tile of small_gemm.h reads it, and so is A where it is stored by columns. A
// sum runs over k in order, in one accumulator, however the product is cut: the bits follow from
// the operands alone.
#pragma once
#include <cstdint>

namespace millrace::cpu {

// The size of a block that is computed in one go: whole multiples of it waste nothing. Whole bands
// of rows fill the registers of every instruction set.
constexpr int64_t kPackedRows = 48, kPackedColumns = 384, kPackedBand = 12;

// A part of a product: rows [i0, i1) and columns [j0, j1).
struct ProductBlock {
  int64_t i0, i1, j0, j1;
  const float* values;
  int64_t stride;
  const float* row(int64_t i) const { return values + (i - i0) * stride; }
};

// Called for each block when it is complete, instead of writing it to C: it may lie elsewhere, in
// cache, and is gone afterwards.
struct BlockDone {
  void (*call)(const void* context, const ProductBlock& block) = nullptr;
  const void* context = nullptr;
  int64_t i0 = 0, j0 = 0;  // what the first row and column are called
};

// C[m,n] = op(A) op(B), or + C. Strides are those of the stored rows.
struct PackedProduct {
  int64_t m, n, k;
  const float* a;
  int64_t a_stride;
  bool ta;  // A is stored [k,m]
  const float* b;
  int64_t b_stride;
  bool tb;  // B is stored [n,k]
  float* c;
  int64_t c_stride;
  bool accumulate;
  BlockDone done = {};
};

namespace avx2 {
void multiply(const PackedProduct& product);
}
namespace avx512 {
void multiply(const PackedProduct& product);
}
// Operands are rounded to bf16, sums are f32; for machines with cpu::multiplies_bf16().
namespace avx512_bf16 {
void multiply(const PackedProduct& product);
}
}  // namespace millrace::cpu
