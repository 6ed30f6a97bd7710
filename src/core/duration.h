// How long, in the unit people think in: "500" or "500 steps", "1e9 tokens", "2 epochs", "10
// minutes".
#pragma once
#include <cstdint>
#include <string>
#include <string_view>

namespace millrace {

struct Duration {
  enum class Unit : uint8_t { steps, tokens, epochs, seconds };
  double count = 0;
  Unit unit = Unit::steps;

  std::string str() const;  // parse_duration reads it back
  friend bool operator==(const Duration&, const Duration&) = default;
};

// False when the text is not a duration; negative, not finite and over 1e15 are not.
bool parse_duration(std::string_view text, Duration* duration);

}  // namespace millrace
