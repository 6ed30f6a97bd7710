// The shape of a batch: one Plan for each.
#pragma once
#include <cstdint>

namespace millrace {

// A sequence of states: a context of any length, which is only read, then the last `previous`
// states before the `current` ones, which are predicted. 0: there are no states but tokens.
struct StateParts {
  int64_t previous = 0, current = 0;
  int64_t least() const { return previous + current; }  // states of a sequence
  // Places of a row that a sequence of so many states takes: each holds a change from one state to
  // the next, and the next change is its target.
  static int64_t places(int64_t states) { return states - 2; }
  bool operator==(const StateParts&) const = default;
};

struct BatchShape {
  int64_t batch = 1;    // B
  int64_t length = 1;   // T
  bool packed = false;  // rows hold several sequences
  int64_t source = 0;   // S, of pairs whose source and target stand apart
  int64_t beams = 1;    // in generation: rows that one source has
  // Of packed rows: how long the sequence that a place belongs to is, on the mean over an epoch;
  // 0 where nobody knows. So much of a row is seen by a place, which nothing but costs depend on.
  double sequence_length = 0;
  int64_t sources() const { return batch / beams; }
  int64_t places() const { return batch * (length + source); }
  bool operator==(const BatchShape&) const = default;
};

}  // namespace millrace
