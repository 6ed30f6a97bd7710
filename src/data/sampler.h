// Which windows of a token array a training step reads. A window of length T is T inputs and, one
// place further, T targets. Where sample number i begins is a pure function of (seed, i): nothing
// to save, resume is O(1), and cutting samples into batches differently changes nothing.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

namespace millrace {

class WindowSampler {
 public:
  // random: every sample begins anywhere, independently of the others. Otherwise epochs: the
  // non-overlapping windows from the start of the data, each once per epoch, in an order of the
  // epoch's own. Needs tokens > T.
  WindowSampler(int64_t tokens, int64_t T, uint64_t seed, bool random);

  // `sample` counts from the start of the run: step * batch + place in the batch.
  int64_t begin_of(int64_t sample) const;

  // How many non-overlapping windows the data holds; also the length of an epoch of random ones.
  int64_t samples_per_epoch() const { return windows_; }

 private:
  int64_t permuted(int64_t index, int64_t epoch) const;

  int64_t tokens_, T_, windows_;
  uint64_t seed_;
  bool random_;
  int half_bits_ = 1;  // the permutation works on pairs of words of this many bits
};

// The non-overlapping windows from the start of the data, for evaluation; `limit` 0: all of them.
std::vector<int64_t> sequential_begins(int64_t tokens, int64_t T, int64_t stride, int64_t limit);

// Writes tokens [B,T] and targets [B,T], the token after each, for the B windows at `begins`.
void fill_batch(std::span<const int32_t> data, std::span<const int64_t> begins, int64_t T,
                int32_t* tokens, int32_t* targets);

}  // namespace millrace
