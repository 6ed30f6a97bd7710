#include "train/chrf.h"

#include "train/text_signs.h"

namespace millrace {
namespace {

std::vector<uint32_t> signs_of(std::string_view text) {
  std::vector<uint32_t> signs;
  signs.reserve(text.size());
  for (size_t at = 0; at < text.size();) {
    const TextSign sign = text_sign_at(text, at);
    if (!sign.space) signs.push_back(sign.value);
    at += sign.bytes;
  }
  return signs;
}

}  // namespace

void Chrf::add(std::string_view hypothesis, std::string_view reference) {
  decltype(counts_) pair{};
  count_ngrams(signs_of(hypothesis), signs_of(reference), pair);
  for (size_t n = 0; n < pair.size(); ++n) {
    // A reference too short to have an n-gram says nothing about the hypothesis's.
    if (pair[n].reference == 0) continue;
    counts_[n].hypothesis += pair[n].hypothesis;
    counts_[n].reference += pair[n].reference;
    counts_[n].shared += pair[n].shared;
  }
}

double Chrf::score() const {
  constexpr double kBetaSquared = 4;
  double precision = 0, recall = 0, orders = 0;
  for (const NgramCounts& counts : counts_) {
    if (counts.hypothesis == 0 || counts.reference == 0) continue;  // no texts of this length
    const auto shared = static_cast<double>(counts.shared);
    precision += shared / static_cast<double>(counts.hypothesis);
    recall += shared / static_cast<double>(counts.reference);
    ++orders;
  }
  if (precision + recall == 0) return 0;
  precision /= orders;
  recall /= orders;
  return 100 * ((1 + kBetaSquared) * precision * recall / (kBetaSquared * precision + recall));
}

}  // namespace millrace
