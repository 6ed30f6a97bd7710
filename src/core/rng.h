// Philox4x32-10, the counter-based generator of Salmon et al., "Parallel random numbers: as easy as
// 1, 2, 3" (SC 2011). A draw is a pure function of (seed, purpose, step, element): nothing to save,
// nothing to share, the same for any number of threads, workers and ranks.
#pragma once
#include <array>
#include <cmath>
#include <cstdint>

namespace millrace {

using Philox = std::array<uint32_t, 4>;

inline Philox philox(uint64_t key, Philox c) {
  auto k0 = static_cast<uint32_t>(key), k1 = static_cast<uint32_t>(key >> 32);
  for (int round = 0; round < 10; ++round) {
    const uint64_t p0 = uint64_t{0xD2511F53u} * c[0], p1 = uint64_t{0xCD9E8D57u} * c[2];
    c = {static_cast<uint32_t>(p1 >> 32) ^ c[1] ^ k0, static_cast<uint32_t>(p1),
         static_cast<uint32_t>(p0 >> 32) ^ c[3] ^ k1, static_cast<uint32_t>(p0)};
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return c;
}

// What the numbers are for; part of the counter, so no two uses share a stream.
enum class RandomUse : uint32_t { init = 1, sampler, grammar, generate, dropout, test, split };

// A sequential reader over one stream, for host code that wants "the next number".
class RandomStream {
 public:
  // From block `position` of the stream on; a block is four words of 32 bits.
  RandomStream(uint64_t seed, RandomUse use, uint64_t stream = 0, uint64_t position = 0)
      : seed_(seed), use_(static_cast<uint32_t>(use)), stream_(stream), position_(position) {}

  uint32_t next_u32() {
    if (left_ == 0) {
      block_ = philox(seed_, {static_cast<uint32_t>(position_), static_cast<uint32_t>(stream_),
                              static_cast<uint32_t>(stream_ >> 32),
                              use_ ^ static_cast<uint32_t>(position_ >> 32) << 8});
      ++position_;
      left_ = 4;
    }
    return block_[static_cast<size_t>(4 - left_--)];
  }
  uint64_t next_u64() {
    const uint64_t high = next_u32();
    return high << 32 | next_u32();
  }
  // Uniform in [0, 1), 53 bits.
  double uniform() { return static_cast<double>(next_u64() >> 11) * 0x1p-53; }
  // Uniform integer in [0, n) by multiply-shift; bias below 2^-32 for n < 2^32.
  uint64_t below(uint64_t n) {
    return static_cast<uint64_t>((static_cast<unsigned __int128>(next_u64()) * n) >> 64);
  }
  // Standard normal by Box-Muller; takes one block when only normals are drawn.
  double normal() {
    const double u = 1.0 - uniform(), v = uniform();
    return std::sqrt(-2.0 * std::log(u)) * std::cos(6.283185307179586 * v);
  }

 private:
  uint64_t seed_;
  uint32_t use_;
  uint64_t stream_;
  uint64_t position_;
  Philox block_{};
  int left_ = 0;
};

}  // namespace millrace
