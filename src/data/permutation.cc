#include "data/permutation.h"

#include <utility>

#include "core/error.h"
#include "core/rng.h"

namespace millrace {
namespace {

// Stream 0 keeps the seed itself, which is what WindowSampler has always used: the order of old
// runs stays. The others get a key of their own, because the counter has no room for a stream
// beside the epoch.
uint64_t key_of(uint64_t seed, uint64_t stream) {
  if (stream == 0) return seed;
  constexpr uint32_t kUse = static_cast<uint32_t>(RandomUse::sampler) ^ 0xFFu << 8;  // no round's
  const Philox words =
      philox(seed, {static_cast<uint32_t>(stream), static_cast<uint32_t>(stream >> 32), 0, kUse});
  return uint64_t{words[1]} << 32 | words[0];
}

}  // namespace

Permutation::Permutation(int64_t size, uint64_t seed, uint64_t stream)
    : size_(size), key_(key_of(seed, stream)) {
  MR_CHECK(size >= 0 && size <= int64_t{1} << 62, "a permutation of {}", size);
  while (int64_t{1} << (2 * half_bits_) < size_) ++half_bits_;
}

// A Feistel network permutes all pairs of half-words and is applied again while it lands outside
// ("cycle walking", Black and Rogaway, "Ciphers with arbitrary finite domains", CT-RSA 2002). The
// pairs number less than 4 * size (from size 2 on), so four applications do on average at worst.
int64_t Permutation::at(int64_t index, int64_t epoch) const {
  MR_CHECK(index >= 0 && index < size_, "index {} of {}", index, size_);
  if (size_ == 1) return 0;
  // Four rounds make a good permutation of large domains (Luby and Rackoff); tiny ones want more.
  constexpr uint32_t kRounds = 8;
  const auto mask = static_cast<uint32_t>((uint64_t{1} << half_bits_) - 1);
  const auto epoch_low = static_cast<uint32_t>(epoch);
  const auto epoch_high = static_cast<uint32_t>(epoch >> 32);
  auto value = static_cast<uint64_t>(index);
  do {
    auto left = static_cast<uint32_t>(value >> half_bits_);
    auto right = static_cast<uint32_t>(value) & mask;
    for (uint32_t round = 0; round < kRounds; ++round) {
      const auto use = static_cast<uint32_t>(RandomUse::sampler) ^ round << 8;
      const uint32_t mixed = philox(key_, {right, epoch_low, epoch_high, use})[0] & mask;
      left = std::exchange(right, left ^ mixed);
    }
    value = uint64_t{left} << half_bits_ | right;
  } while (value >= static_cast<uint64_t>(size_));
  return static_cast<int64_t>(value);
}

}  // namespace millrace
