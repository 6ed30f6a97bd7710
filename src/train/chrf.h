// chrF (Popović 2015, "chrF: character n-gram F-score for automatic MT evaluation") of a corpus
// with one reference for each text, by sacrebleu's defaults: up to 6-grams of code points without
// white space, case kept, recall weighs twice as much as precision.
#pragma once
#include <array>
#include <string_view>

#include "train/ngrams.h"

namespace millrace {

class Chrf {
 public:
  void add(std::string_view hypothesis, std::string_view reference);
  double score() const;  // of all pairs, 0 to 100

 private:
  std::array<NgramCounts, 6> counts_{};
};

}  // namespace millrace
