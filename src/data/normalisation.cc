#include "data/normalisation.h"

#include <cmath>

#include "data/checked_json.h"

namespace millrace {

std::string Normalisation::text() const {
  return checked_json_text({{"mean", mean}, {"deviation", deviation}});
}

Normalisation read_normalisation(std::string_view text, const fs::path& name) {
  constexpr size_t kMostChannels = 1 << 16;
  const CheckedJson file(text, name);
  auto numbers = [&](const char* key, bool positive) {
    std::vector<double> list;
    for (const nlohmann::json& part : file.list(key)) {
      const double value = part.is_number() ? part.get<double>() : NAN;
      if (!std::isfinite(value) || (positive && !(value > 0)))
        throw file.refuse(fmt::format("{}: finite numbers{}", key, positive ? " above 0" : ""),
                          "another value");
      list.push_back(value);
    }
    return list;
  };
  Normalisation n{numbers("mean", false), numbers("deviation", true)};
  if (n.mean.empty() || n.mean.size() > kMostChannels || n.mean.size() != n.deviation.size())
    throw file.refuse("a mean and a deviation for each channel",
                      fmt::format("{} and {}", n.mean.size(), n.deviation.size()));
  return n;
}

ChangeStatistics::ChangeStatistics(int64_t channels)
    : mean_(static_cast<size_t>(channels)), squares_(static_cast<size_t>(channels)) {}

void ChangeStatistics::add_path(std::span<const float> values) {
  const size_t channels = mean_.size();
  for (size_t i = channels; i < values.size(); i += channels) {
    ++count_;
    for (size_t c = 0; c < channels; ++c) {
      const double change = static_cast<double>(values[i + c]) - values[i - channels + c],
                   gap = change - mean_[c];
      mean_[c] += gap / static_cast<double>(count_);
      squares_[c] += gap * (change - mean_[c]);
    }
  }
}

Normalisation ChangeStatistics::result() const {
  Normalisation n{mean_, std::vector<double>(mean_.size(), 1)};
  for (size_t c = 0; c < mean_.size(); ++c)
    if (squares_[c] > 0) n.deviation[c] = std::sqrt(squares_[c] / static_cast<double>(count_));
  return n;
}

}  // namespace millrace
