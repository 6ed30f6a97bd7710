#include "train/rouge.h"

#include <algorithm>
#include <array>
#include <span>

#include "train/ngrams.h"
#include "train/porter_stemmer.h"

namespace millrace {
namespace {

RougeScore score_of(int64_t shared, size_t hypothesis, size_t reference) {
  if (shared == 0) return {};
  const double precision = static_cast<double>(shared) / static_cast<double>(hypothesis);
  const double recall = static_cast<double>(shared) / static_cast<double>(reference);
  return {100 * precision, 100 * recall, 100 * (2 * precision * recall / (precision + recall))};
}

RougeScore score_of(const NgramCounts& counts) {
  return score_of(counts.shared, static_cast<size_t>(counts.hypothesis),
                  static_cast<size_t>(counts.reference));
}

// One row of the table of lengths is enough for the last of them.
int64_t longest_common_subsequence(std::span<const uint32_t> a, std::span<const uint32_t> b) {
  std::vector<int64_t> row(b.size() + 1);
  for (const uint32_t word : a) {
    int64_t diagonal = 0;
    for (size_t j = 0; j < b.size(); ++j) {
      const int64_t above = row[j + 1];
      row[j + 1] = word == b[j] ? diagonal + 1 : std::max(above, row[j]);
      diagonal = above;
    }
  }
  return row.back();
}

void operator+=(RougeScore& sum, const RougeScore& score) {
  sum.precision += score.precision;
  sum.recall += score.recall;
  sum.f1 += score.f1;
}

RougeScore divided(const RougeScore& sum, double count) {
  return {sum.precision / count, sum.recall / count, sum.f1 / count};
}

}  // namespace

std::vector<std::string> tokenize_rouge(std::string_view text, bool stem) {
  std::vector<std::string> words;
  bool inside = false;
  auto put = [&](char c) {
    if (!inside) words.emplace_back();
    inside = true;
    words.back() += c;
  };
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if ((c >= 'a' && c <= 'z') || (c >= '0' && c <= '9')) {
      put(c);
    } else if (c >= 'A' && c <= 'Z') {
      put(static_cast<char>(c - 'A' + 'a'));
    } else if (text.substr(i).starts_with("\u212A")) {  // the Kelvin sign, in lower case a k
      put('k');
      i += 2;
    } else {
      // I with a dot is i and a combining dot in lower case. No other sign has ASCII in it then.
      if (text.substr(i).starts_with("\u0130")) put('i');
      inside = false;
    }
  }
  if (stem)
    for (std::string& word : words)
      if (word.size() > 3) word = porter_stem(std::move(word));
  return words;
}

void Rouge::add(std::string_view hypothesis, std::string_view reference) {
  const NumberedWords words =
      number_words(tokenize_rouge(hypothesis, stem_), tokenize_rouge(reference, stem_));
  std::array<NgramCounts, 2> counts{};
  count_ngrams(words.hypothesis, words.reference, counts);
  sums_.rouge1 += score_of(counts[0]);
  sums_.rouge2 += score_of(counts[1]);
  sums_.rougeL += score_of(longest_common_subsequence(words.hypothesis, words.reference),
                           words.hypothesis.size(), words.reference.size());
  ++pairs_;
}

Rouge::Scores Rouge::mean() const {
  if (pairs_ == 0) return {};
  const auto pairs = static_cast<double>(pairs_);
  return {divided(sums_.rouge1, pairs), divided(sums_.rouge2, pairs), divided(sums_.rougeL, pairs)};
}

}  // namespace millrace
