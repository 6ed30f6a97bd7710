// How the changes between states are scaled: mean and deviation of each channel, over the data that
// a model is trained on. What a tokenizer is to text: kept with the data and with every checkpoint.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/file.h"

namespace millrace {

inline constexpr const char* kNormalisationFile = "normalisation.json";

struct Normalisation {
  std::vector<double> mean, deviation;  // by channel; deviations are above 0
  int64_t channels() const { return static_cast<int64_t>(mean.size()); }
  float normalised(float change, size_t channel) const {
    return static_cast<float>((static_cast<double>(change) - mean[channel]) / deviation[channel]);
  }
  float change(float normalised, size_t channel) const {
    return static_cast<float>(static_cast<double>(normalised) * deviation[channel] + mean[channel]);
  }
  bool operator==(const Normalisation&) const = default;

  std::string text() const;  // of its file
};
// Error when it is not what Normalisation::text wrote.
Normalisation read_normalisation(std::string_view text, const fs::path& name);

// Of all changes from one state of a path to the next.
class ChangeStatistics {
 public:
  explicit ChangeStatistics(int64_t channels);
  void add_path(std::span<const float> values);  // [points, channels]
  Normalisation result() const;                  // a channel that never changes has deviation 1

 private:
  int64_t count_ = 0;
  std::vector<double> mean_, squares_;  // Welford's: of large values nothing cancels
};

}  // namespace millrace
