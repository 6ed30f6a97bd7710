// Orders without tables: a permutation of [0, size) as a pure function of (seed, stream, epoch).
// Any place of it can be asked for at once, so that data order has nothing to save, resumes in
// O(1) and is the same for any number of workers.
#pragma once
#include <cstdint>

namespace millrace {

class Permutation {
 public:
  // Sizes from 0 to 2^62. Orders of different streams have nothing to do with each other; neither
  // have those of different epochs.
  Permutation(int64_t size, uint64_t seed, uint64_t stream);

  // What stands at `index`, 0 to size - 1.
  int64_t at(int64_t index, int64_t epoch) const;

  int64_t size() const { return size_; }

 private:
  int64_t size_;
  uint64_t key_;
  int half_bits_ = 1;  // it works on pairs of words of this many bits
};

}  // namespace millrace
