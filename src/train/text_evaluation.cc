#include "train/text_evaluation.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

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
  std::string source_text(int64_t i) const {
    std::vector<int32_t> ids = field(*split_.open, 2 * i);
    if (!ids.empty() && ids.back() == data_.end_id) ids.pop_back();
    return data_.tokenizer().decode_stored(ids);
  }
  // As the data has it, whatever the tokenizer would give back of it: what `generate` writes is
  // measured against the same.
  std::string target_text(int64_t i) const {
    std::string text;
    for (const int32_t byte : field(*split_.target_texts, i))
      text += static_cast<char>(static_cast<uint8_t>(byte));
    return text;
  }

 private:
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

// Texts beside what they should be.
struct TextScores {
  Bleu bleu;
  Chrf chrf;
  Rouge rouge;
  int64_t texts = 0;

  void add(const std::string& hypothesis, const std::string& reference) {
    bleu.add(hypothesis, reference);
    chrf.add(hypothesis, reference);
    rouge.add(hypothesis, reference);
    ++texts;
  }
  Metrics metrics() const {
    const Rouge::Scores scores = rouge.mean();
    Metrics all{{"eval/bleu", bleu.score()},
                {"eval/chrf", chrf.score()},
                {"eval/rouge1", scores.rouge1.f1},
                {"eval/rouge2", scores.rouge2.f1},
                {"eval/rougeL", scores.rougeL.f1}};
    if (texts == 0)
      for (auto& [name, value] : all) value = NAN;
    return all;
  }
};

}  // namespace

std::vector<std::string> text_metric_names() {
  std::vector<std::string> names;
  for (const auto& [name, value] : TextScores().metrics()) names.push_back(name);
  return names;
}

BeamOptions validation_search(const Settings& settings) {
  return {.beam = settings.eval_beam,
          .length_penalty = settings.eval_length_penalty,
          .no_repeat_ngram = settings.eval_no_repeat_ngram,
          .min_length = settings.eval_min_tokens};
}

std::optional<Metrics> evaluate_texts(const Model& model, const TrainingData& training_data,
                                      BeamSearch& beam, int64_t most,
                                      const std::function<bool()>& stop,
                                      const EvaluationProgress& progress) {
  TextScores scores;
  const Dataset& data = training_data.set;
  const SplitName split = training_data.evaluated;
  if (!data.has(split)) return scores.metrics();
  const PairsInOrder pairs(data, data.split(split));
  const std::string where = fmt::format("data.{}", split_name(split));
  const Tokenizer& tokenizer = data.tokenizer();
  const TargetTokens target{data.target_start(), data.end_id, tokenizer.unknown_id(),
                            std::min(model.vocab_size(), tokenizer.vocab_size())};
  const int64_t count = std::min(most, pairs.size()), at_once = beam.room().sources;
  for (int64_t first = 0; first < count; first += at_once) {
    if (stop()) return std::nullopt;
    progress("writing texts", first, count);
    std::vector<BeamSource> sources(static_cast<size_t>(std::min(at_once, count - first)));
    std::vector<std::vector<std::string>> rare(sources.size());
    for (size_t i = 0; i < sources.size(); ++i) {
      const int64_t number = first + static_cast<int64_t>(i);
      sources[i] = model.takes().open_words
                       ? source_to_copy(tokenizer, pairs.source_text(number), {where}, rare[i])
                       : BeamSource{pairs.source(number), {}};
      // A prompt begins as rows of training do.
      if (!model.takes().pairs && data.start_id >= 0)
        sources[i].ids.insert(sources[i].ids.begin(), data.start_id);
      if (sources[i].ids.empty()) sources[i].ids.push_back(data.end_id);
    }
    const auto found = beam.search(sources, target);
    for (size_t i = 0; i < sources.size(); ++i)
      scores.add(tokenizer.decode_extended(found[i].tokens, rare[i]),
                 pairs.target_text(first + static_cast<int64_t>(i)));
  }
  return scores.metrics();
}

Metrics evaluate_texts(const Model& model, const Settings& settings, const TrainingData& data,
                       Backend& backend, const fs::path& folder, const TextEvaluation& options,
                       const EvaluationProgress& progress) {
  const int64_t at_once =
      options.at_once > 0 ? options.at_once : sources_at_once(backend, model, options.beam.beam);
  BeamSession own(model, room_for_all(model, at_once), options.beam, settings.pass_options(),
                  backend);
  load_model(folder, own.session(), model);
  own.refresh();
  constexpr int64_t kAll = std::numeric_limits<int64_t>::max();
  return *evaluate_texts(
      model, data, own.beam(), options.most > 0 ? options.most : kAll, [] { return false; },
      progress);
}

}  // namespace millrace
