// What a model writes for pairs of source, or prompt, and target, beside what it should have
// written: BLEU, chrF and ROUGE over the pairs that are evaluated, by beam search, many at a time,
// in constant memory.
#pragma once
#include "train/beam_search.h"
#include "train/evaluation.h"

namespace millrace {

struct TextEvaluation {
  BeamOptions beam;
  int64_t at_once = 0;  // sources; 0: as many as suit the device
  int64_t most = 0;     // pairs; 0: all
};

// The search of the texts that validation writes while a run trains.
BeamOptions validation_search(const Settings& settings);

// With the weights of a folder, of data that has pairs.
Metrics evaluate_texts(
    const Model& model, const Settings& settings, const TrainingData& data, Backend& backend,
    const fs::path& folder, const TextEvaluation& options,
    const EvaluationProgress& progress = [](const char*, int64_t, int64_t) {});
// With the weights that the search's session holds, of the first `most` pairs. Nothing when `stop`
// said so in between; NaN when there is nothing to validate on.
std::optional<Metrics> evaluate_texts(const Model& model, const TrainingData& data,
                                      BeamSearch& beam, int64_t most,
                                      const std::function<bool()>& stop,
                                      const EvaluationProgress& progress);
std::vector<std::string> text_metric_names();

}  // namespace millrace
