// Validation in constant memory: everything once and in order, one batch at a time.
#pragma once
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "exec/session.h"
#include "model/model.h"
#include "train/report.h"
#include "train/settings.h"
#include "train/training_data.h"

namespace millrace {

// What a summed loss is multiplied with, and beside it that of classes: Model::build_loss.
struct LossScales {
  float loss = 1, classes = 1;
  // The mean over what is scored, and the mean over the parts that have a class.
  static LossScales means(int64_t scored, int64_t labelled);
};

// Puts a batch where the plan reads it.
void write_batch(Session& session, size_t plan, const Batch& batch, LossScales scales);

// All validation batches with the weights the session holds: the mean loss of what is scored and
// its perplexity or, of trajectories, displacement errors and how many classes are right, both
// means in the loss. `first_plan` and those behind it are
// evaluation graphs, by shape. Nothing when `stop` said so in between; NaN when there is nothing to
// validate on.
std::optional<Metrics> validate(const TrainingData& data, Session& session, size_t first_plan,
                                const std::function<bool()>& stop,
                                const EvaluationProgress& progress);
// What they are called, for a model that takes these.
std::vector<std::string> metric_names(const Takes& takes);

// All validation batches, with the weights of a folder.
Metrics evaluate_model(const Model& model, const Settings& settings, const TrainingData& data,
                       Backend& backend, const fs::path& folder,
                       const EvaluationProgress& progress);

}  // namespace millrace
