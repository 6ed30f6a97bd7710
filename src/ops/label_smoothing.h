// Attribute `smoothing` of the cross-entropies: the loss is taken against a distribution that gives
// a share of the probability to all V classes alike (Szegedy et al., arXiv 1512.00567, section 7;
// as PyTorch's label_smoothing).
#pragma once
#include <algorithm>
#include <string>

#include "graph/attrs.h"

namespace millrace {

// The target class has the probability on + off, every other one off.
struct LabelShares {
  LabelShares(const Attrs& attrs, int64_t V) {
    const double smoothing = attrs.number("smoothing", 0);
    on = 1 - smoothing;
    off = smoothing / static_cast<double>(std::max<int64_t>(1, V));
  }
  double on, off;
};

// What a row's loss subtracts from its log-sum-exp: the mean of its logits under that distribution.
// `total` is their sum; without smoothing it does not count, even where it is infinite.
template <typename T>
T wanted_logit(const LabelShares& label, T at_target, T total) {
  if (label.off == 0) return at_target;
  return static_cast<T>(label.on) * at_target + static_cast<T>(label.off) * total;
}

// "smoothing 1.5 outside [0, 1)" or "".
inline std::string check_smoothing(const Attrs& attrs) {
  const double smoothing = attrs.number("smoothing", 0);
  return smoothing >= 0 && smoothing < 1 ? ""
                                         : fmt::format("smoothing {} outside [0, 1)", smoothing);
}

}  // namespace millrace
