// The frequencies of rotary positions, for the card and every kernel.
#pragma once
#include <cmath>
#include <cstdint>
#include <numbers>

#include "graph/attrs.h"

namespace millrace {

// How far pair `d` of a head of width `width` turns in one step of position. Attributes:
//   theta    base of the frequencies
//   factor   linear scaling (Chen et al., arXiv 2306.15595): positions count for 1 / factor
//   original_length, low_frequency, high_frequency: with them the scaling is Llama 3.1's. Pairs
//     that turn less than `low_frequency` times in the length the model was first trained with are
//     slowed down by `factor`, those that turn more than `high_frequency` times are not, and in
//     between it goes over linearly.
inline double rope_frequency(const Attrs& attrs, int64_t d, int64_t width) {
  const double plain = std::pow(attrs.number("theta", 10000),
                                -2.0 * static_cast<double>(d) / static_cast<double>(width)),
               factor = attrs.number("factor", 1), slow = plain / factor;
  const double length = attrs.number("original_length", 0);
  if (!(length > 0)) return slow;
  const double low = attrs.number("low_frequency"), high = attrs.number("high_frequency"),
               turns = length * plain / (2 * std::numbers::pi);
  if (turns < low) return slow;
  if (turns > high) return plain;
  const double share = (turns - low) / (high - low);
  return (1 - share) * slow + share * plain;
}

}  // namespace millrace
