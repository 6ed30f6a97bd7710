// The shape of a batch: one Plan for each.
#pragma once
#include <cstdint>

namespace millrace {

struct BatchShape {
  int64_t batch = 1;    // B
  int64_t length = 1;   // T
  bool packed = false;  // rows hold several sequences
  int64_t source = 0;   // S, of pairs whose source and target stand apart
  int64_t beams = 1;    // in generation: rows that one source has
  int64_t sources() const { return batch / beams; }
  int64_t places() const { return batch * (length + source); }
  bool operator==(const BatchShape&) const = default;
};

}  // namespace millrace
