// How far predicted paths are from those that were taken.
#pragma once
#include <cstddef>
#include <optional>
#include <span>
#include <vector>

#include "data/batches.h"
#include "exec/session.h"
#include "model/model.h"
#include "train/report.h"

namespace millrace {

// Predicts the current states of a batch from those before them alone: each from what was predicted
// of the ones before. `plan` is an evaluation graph that has run on the batch. What it takes the
// targets to be, [B,T,C], as they are normalised; batch.states then holds the predicted ones.
std::vector<float> roll_out(Session& session, size_t plan, const StateParts& parts, Batch& batch);

// How the states that a folder's model was trained on were scaled.
Normalisation normalisation_of(const fs::path& folder, const Model& model);

// Average and final displacement errors (Pellegrini et al. 2009), in the units of the data: the
// distance of a predicted state from the true one, over all predicted states and over the last of
// each sequence.
class DisplacementErrors {
 public:
  DisplacementErrors(const StateParts& parts, const Normalisation& normalisation)
      : parts_(parts), normalisation_(normalisation) {}
  void add(const Batch& batch, const std::vector<float>& predicted);
  Metrics metrics() const;  // eval/ade and eval/fde

 private:
  StateParts parts_;
  const Normalisation& normalisation_;
  double sum_ = 0, last_sum_ = 0;
  int64_t sequences_ = 0;
};

// The likeliest class of each place [.., classes].
std::vector<int32_t> likeliest_classes(const std::vector<float>& logits, size_t places);

// How many of the classes that parts have are the likeliest.
class ClassHits {
 public:
  void add(const std::vector<int32_t>& targets, const std::vector<float>& logits);
  int64_t labelled() const { return labelled_; }
  double share() const { return static_cast<double>(hits_) / static_cast<double>(labelled_); }

 private:
  int64_t hits_ = 0, labelled_ = 0;
};

// What follows on a path.
struct PredictedPath {
  std::vector<float> states;  // [current, channels]
  int32_t label = -1;         // of the current part; -1: the model has no classes
};

// What follows on paths.
class PathPrediction {
 public:
  // Weights and normalisation of a folder; so many paths at a time.
  PathPrediction(const Model& model, int64_t at_once, const fs::path& folder,
                 const PassOptions& passes, Backend& backend);
  const StateParts& parts() const { return parts_; }
  int64_t channels() const { return normalisation_.channels(); }
  // Of each path [points, channels] the next StateParts::current points; it must have at least
  // StateParts::previous. At most `at_once` of them.
  std::vector<PredictedPath> next(std::span<const std::span<const float>> paths);

 private:
  StateParts parts_;
  Normalisation normalisation_;
  int64_t max_states_, classes_;
  BatchShape shape_;
  Plan plan_, refresh_;
  std::optional<Session> session_;
  Batch batch_;
};

}  // namespace millrace
