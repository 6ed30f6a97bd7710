// BLEU (Papineni et al. 2002, "BLEU: a Method for Automatic Evaluation of Machine Translation") of
// a corpus with one reference for each text, by the settings that papers report: sacrebleu's
// defaults (Post 2018, "A Call for Clarity in Reporting BLEU Scores"): case kept, tokens of
// mteval-v13a, up to 4-grams, exponential smoothing.
#pragma once
#include <array>
#include <string>
#include <string_view>
#include <vector>

#include "train/ngrams.h"

namespace millrace {

class Bleu {
 public:
  void add(std::string_view hypothesis, std::string_view reference);
  double score() const;  // of all pairs, 0 to 100
  // The same without the lengths that no hypothesis has an n-gram of: for single lines, which would
  // often be 0 else (sacrebleu's effective order).
  double sentence_score() const;

 private:
  double score_up_to(size_t orders) const;
  size_t orders_present() const;

  std::array<NgramCounts, 4> counts_{};
};

// The words that BLEU counts, as the script mteval-v13a of NIST cuts them for languages of the
// West.
std::vector<std::string> tokenize_13a(std::string_view text);

}  // namespace millrace
