// How many n-grams two texts have, and how many of them they share: what BLEU, chrF and ROUGE are
// made of.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace millrace {

// Of one length. An n-gram is shared as often as the text has it that has it less often.
struct NgramCounts {
  int64_t hypothesis = 0, reference = 0, shared = 0;
};

// Adds the n-grams of a pair to counts[n - 1], for every length n up to counts.size().
void count_ngrams(std::span<const uint32_t> hypothesis, std::span<const uint32_t> reference,
                  std::span<NgramCounts> counts);

// Words as numbers: equal ones where the words are equal, in either text.
struct NumberedWords {
  std::vector<uint32_t> hypothesis, reference;
};
NumberedWords number_words(std::span<const std::string> hypothesis,
                           std::span<const std::string> reference);

}  // namespace millrace
