#include "train/text_evaluation.h"

#include <algorithm>
#include <array>

#include "train/bleu.h"
#include "train/chrf.h"
#include "train/rouge.h"
#include "train/weights.h"

namespace millrace {
namespace {

// The pairs of a split, one by one.
class PairsInOrder {
 public:
  PairsInOrder(const Dataset& data, const Split& split) : data_(data), split_(split) {}
  int64_t size() const { return split_.tokens->records() / 2; }
  std::vector<int32_t> source(int64_t i) const { return field(*split_.tokens, 2 * i); }
  // With the words that the vocabulary lacks, where the tokenizer keeps them.
  std::string source_text(int64_t i) const { return text(2 * i); }
  std::string target_text(int64_t i) const { return text(2 * i + 1); }

 private:
  std::string text(int64_t number) const {
    std::vector<int32_t> ids = field(*split_.open, number);
    if (!ids.empty() && ids.back() == data_.end_id) ids.pop_back();
    return data_.tokenizer().decode_stored(ids);
  }
  static std::vector<int32_t> field(const TokenArray& tokens, int64_t number) {
    std::array<int64_t, 2> begins;
    tokens.record_begins(number, begins);
    std::vector<int32_t> ids(static_cast<size_t>(begins[1] - begins[0]));
    if (!ids.empty()) tokens.read(begins[0], ids);
    return ids;
  }
  const Dataset& data_;
  const Split& split_;
};

}  // namespace

Metrics evaluate_texts(const Model& model, const Settings& settings, const Dataset& data,
                       Backend& backend, const fs::path& folder, const TextEvaluation& options) {
  if (!model.takes().pairs || !data.validation.tokens) return {};
  const MaxLengths most = model.max_lengths();
  BeamSearch beam(model, options.at_once, most.source, most.target, options.beam,
                  settings.pass_options(), backend);
  load_model(folder, beam.session(), model);
  beam.refresh();
  const PairsInOrder pairs(data, data.validation);
  const Tokenizer& tokenizer = data.tokenizer();
  const TargetTokens target{data.target_start(), data.end_id, tokenizer.unknown_id(),
                            std::min(model.vocab_size(), tokenizer.vocab_size())};
  const int64_t count = options.most > 0 ? std::min(options.most, pairs.size()) : pairs.size();
  Bleu bleu;
  Chrf chrf;
  Rouge rouge;
  for (int64_t first = 0; first < count; first += options.at_once) {
    const int64_t here = std::min(options.at_once, count - first);
    std::vector<BeamSource> sources(static_cast<size_t>(here));
    std::vector<std::vector<std::string>> rare(sources.size());
    for (size_t i = 0; i < sources.size(); ++i) {
      const int64_t number = first + static_cast<int64_t>(i);
      sources[i] = model.takes().open_words ? source_to_copy(tokenizer, pairs.source_text(number),
                                                             {"data.validation"}, rare[i])
                                            : BeamSource{pairs.source(number), {}};
      if (sources[i].ids.empty()) sources[i].ids.push_back(data.end_id);
    }
    const auto found = beam.search(sources, target);
    for (size_t i = 0; i < sources.size(); ++i) {
      const std::string hypothesis = tokenizer.decode_extended(found[i].tokens, rare[i]),
                        reference = pairs.target_text(first + static_cast<int64_t>(i));
      bleu.add(hypothesis, reference);
      chrf.add(hypothesis, reference);
      rouge.add(hypothesis, reference);
    }
  }
  const Rouge::Scores scores = rouge.mean();
  return {{"eval/bleu", bleu.score()},
          {"eval/chrf", chrf.score()},
          {"eval/rouge1", scores.rouge1.f1},
          {"eval/rouge2", scores.rouge2.f1},
          {"eval/rougeL", scores.rougeL.f1}};
}

}  // namespace millrace
