#include "train/text_evaluation.h"

#include <algorithm>
#include <array>

#include "train/bleu.h"
#include "train/chrf.h"
#include "train/rouge.h"
#include "train/weights.h"

namespace millrace {
namespace {

// Fields 2 i and 2 i + 1 of a split, without the target's end token.
class PairsInOrder {
 public:
  PairsInOrder(const Dataset& data, const Split& split) : data_(data), tokens_(*split.tokens) {}
  int64_t size() const { return tokens_.records() / 2; }
  std::vector<int32_t> source(int64_t i) const { return field(2 * i); }
  std::vector<int32_t> target(int64_t i) const {
    std::vector<int32_t> ids = field(2 * i + 1);
    if (!ids.empty() && ids.back() == data_.end_id) ids.pop_back();
    return ids;
  }

 private:
  std::vector<int32_t> field(int64_t number) const {
    std::array<int64_t, 2> begins;
    tokens_.record_begins(number, begins);
    std::vector<int32_t> ids(static_cast<size_t>(begins[1] - begins[0]));
    if (!ids.empty()) tokens_.read(begins[0], ids);
    return ids;
  }
  const Dataset& data_;
  const TokenArray& tokens_;
};

}  // namespace

Metrics evaluate_texts(const Model& model, const Settings& settings, const Dataset& data,
                       Backend& backend, const fs::path& folder, const TextEvaluation& options) {
  if (!model.takes().pairs || !model.can_generate() || !data.validation.tokens) return {};
  const MaxLengths most = model.max_lengths();
  BeamSearch beam(model, options.at_once, most.source, most.target, options.beam,
                  settings.pass_options(), backend);
  load_model(folder, beam.session(), model);
  beam.refresh();
  const PairsInOrder pairs(data, data.validation);
  const Tokenizer& tokenizer = data.tokenizer();
  const TargetTokens target{data.target_start(), data.end_id,
                            std::min(model.vocab_size(), tokenizer.vocab_size())};
  const int64_t count = options.most > 0 ? std::min(options.most, pairs.size()) : pairs.size();
  Bleu bleu;
  Chrf chrf;
  Rouge rouge;
  for (int64_t first = 0; first < count; first += options.at_once) {
    const int64_t here = std::min(options.at_once, count - first);
    std::vector<std::vector<int32_t>> sources;
    for (int64_t i = 0; i < here; ++i) sources.push_back(pairs.source(first + i));
    for (auto& source : sources)
      if (source.empty()) source.push_back(data.end_id);
    const auto found = beam.search(sources, target);
    for (int64_t i = 0; i < here; ++i) {
      const std::string hypothesis = tokenizer.decode(found[static_cast<size_t>(i)].tokens),
                        reference = tokenizer.decode(pairs.target(first + i));
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
