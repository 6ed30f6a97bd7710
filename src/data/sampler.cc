#include "data/sampler.h"

#include <algorithm>
#include <utility>

#include "core/error.h"
#include "core/rng.h"

namespace millrace {

WindowSampler::WindowSampler(int64_t tokens, int64_t T, uint64_t seed, bool random)
    : tokens_(tokens), T_(T), seed_(seed), random_(random) {
  MR_CHECK(T >= 1 && tokens > T, "{} tokens for windows of {}", tokens, T);
  windows_ = (tokens - 1) / T;
  while (half_bits_ < 31 && int64_t{1} << (2 * half_bits_) < windows_) ++half_bits_;
}

int64_t WindowSampler::begin_of(int64_t sample) const {
  MR_CHECK(sample >= 0, "sample {}", sample);
  if (!random_) return permuted(sample % windows_, sample / windows_) * T_;
  RandomStream stream(seed_, RandomUse::sampler, static_cast<uint64_t>(sample));
  return static_cast<int64_t>(stream.below(static_cast<uint64_t>(tokens_ - T_)));
}

// A permutation of [0, windows) without a table: a Feistel network permutes all pairs of half-words
// and is applied again while it lands outside ("cycle walking", Black and Rogaway, "Ciphers with
// arbitrary finite domains", CT-RSA 2002). The pairs number at most 4 * windows, so about four
// applications do on average.
int64_t WindowSampler::permuted(int64_t index, int64_t epoch) const {
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
      const uint32_t mixed = philox(seed_, {right, epoch_low, epoch_high, use})[0] & mask;
      left = std::exchange(right, left ^ mixed);
    }
    value = uint64_t{left} << half_bits_ | right;
  } while (value >= static_cast<uint64_t>(windows_));
  return static_cast<int64_t>(value);
}

std::vector<int64_t> sequential_begins(int64_t tokens, int64_t T, int64_t stride, int64_t limit) {
  MR_CHECK(T >= 1 && stride >= 1 && stride <= T && limit >= 0, "windows of {} every {}, limit {}",
           T, stride, limit);
  int64_t count = tokens > T ? (tokens - 1 - T) / stride + 1 : 0;
  if (limit > 0) count = std::min(count, limit);
  std::vector<int64_t> begins;
  for (int64_t i = 0; i < count; ++i) begins.push_back(i * stride);
  return begins;
}

void fill_batch(std::span<const int32_t> data, std::span<const int64_t> begins, int64_t T,
                int32_t* tokens, int32_t* targets) {
  for (const int64_t begin : begins) {
    MR_CHECK(begin >= 0 && begin < static_cast<int64_t>(data.size()) - T,
             "window at {} of {} tokens", begin, data.size());
    const auto window = data.subspan(static_cast<size_t>(begin), static_cast<size_t>(T) + 1);
    tokens = std::copy(window.begin(), window.end() - 1, tokens);
    targets = std::copy(window.begin() + 1, window.end(), targets);
  }
}

}  // namespace millrace
