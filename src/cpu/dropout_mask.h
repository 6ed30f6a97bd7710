// Dropout factors in bulk: keep_element of graph/scalar_functions.h for a run of elements, with the
// Philox blocks side by side in vector lanes. A 32-bit word stands in each 64-bit lane, where one
// instruction gives the whole product that a round needs; bits above the word are never looked at.
#pragma once
#include <immintrin.h>

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "core/rng.h"

namespace millrace::cpu::MR_ISA {

constexpr int64_t kWords = 4;
typedef uint64_t Words __attribute__((vector_size(kWords * sizeof(uint64_t))));

inline Words multiply_low(Words a, Words b) {
  return reinterpret_cast<Words>(
      _mm256_mul_epu32(reinterpret_cast<__m256i>(a), reinterpret_cast<__m256i>(b)));
}

// The draws of kWords Philox blocks from `block` on, in element order.
inline void draw_blocks(const int32_t* key, int64_t stream, int64_t block, uint16_t* draws) {
  Words at;
  for (int64_t l = 0; l < kWords; ++l) at[l] = static_cast<uint64_t>(block + l);
  const auto words = [&](int i) { return static_cast<uint32_t>(key[i]); };
  Words c0 = at, c1 = (at >> 32) ^ (static_cast<uint64_t>(RandomUse::dropout) << 24);
  Words c2 = Words{} + static_cast<uint32_t>(stream), c3 = Words{} + words(2);
  uint32_t k0 = words(0), k1 = words(1) ^ words(3) << 8;
#pragma GCC unroll 10
  for (int round = 0; round < 10; ++round) {
    const Words p0 = multiply_low(c0, Words{} + 0xD2511F53u);
    const Words p1 = multiply_low(c2, Words{} + 0xCD9E8D57u);
    c0 = (p1 >> 32) ^ c1 ^ k0;
    c1 = p1;
    c2 = (p0 >> 32) ^ c3 ^ k1;
    c3 = p0;
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  const Words low = (c0 & 0xffffffff) | c1 << 32, high = (c2 & 0xffffffff) | c3 << 32;
  for (int64_t l = 0; l < kWords; ++l) {
    const uint64_t both[2] = {low[l], high[l]};
    std::memcpy(draws + 8 * l, both, sizeof both);
  }
}

// to[x] = `factor` where element + x is kept, else 0, for x < n.
inline void keep_factors(const int32_t* key, int64_t stream, int64_t element, int64_t n,
                         uint32_t threshold, float factor, float* to) {
  constexpr int64_t kStep = 2 * kWords;  // blocks: two vectors hide each other's latency
  alignas(64) uint16_t draws[8 * kStep];
  for (int64_t block = element >> 3; block * 8 < element + n; block += kStep) {
    draw_blocks(key, stream, block, draws);
    draw_blocks(key, stream, block + kWords, draws + 8 * kWords);
    const int64_t begin = std::max(element, block * 8);
    const int64_t count = std::min(element + n, (block + kStep) * 8) - begin;
    const uint16_t* from = draws + (begin - block * 8);
    float* target = to + (begin - element);
#pragma omp simd
    for (int64_t x = 0; x < count; ++x) target[x] = from[x] >= threshold ? factor : 0.0f;
  }
}

}  // namespace millrace::cpu::MR_ISA
