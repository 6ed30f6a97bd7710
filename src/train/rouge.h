// ROUGE-1, ROUGE-2 and ROUGE-L (Lin 2004, "ROUGE: A Package for Automatic Evaluation of
// Summaries"): words, pairs of words, and the longest common subsequence of words, with one
// reference for each text; numbers as the PyPI package rouge-score has them. A corpus has the mean
// of its pairs.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace millrace {

// From 0 to 100.
struct RougeScore {
  double precision = 0, recall = 0, f1 = 0;
};

class Rouge {
 public:
  struct Scores {
    RougeScore rouge1, rouge2, rougeL;
  };
  // `stem`: words are compared without their endings (train/porter_stemmer.h).
  explicit Rouge(bool stem = false) : stem_(stem) {}
  void add(std::string_view hypothesis, std::string_view reference);
  Scores mean() const;

 private:
  bool stem_;
  int64_t pairs_ = 0;
  Scores sums_;
};

// The words that ROUGE counts: runs of a-z and 0-9 in the text in lower case. Of other scripts
// nothing is left.
std::vector<std::string> tokenize_rouge(std::string_view text, bool stem = false);

}  // namespace millrace
