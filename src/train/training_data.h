// The data of a run: tokens, and the batches that training and validation read of them.
#pragma once
#include <memory>
#include <string>

#include "data/batches.h"
#include "data/tokenizer_folder.h"
#include "train/program.h"
#include "train/settings.h"

namespace millrace {

struct TrainingData {
  Dataset set;
  std::unique_ptr<Batches> batches;     // null: what is evaluated was read alone
  std::unique_ptr<Batches> validation;  // in order, of the split below; null: there is none
  SplitName evaluated = SplitName::validation;
  // Validation takes every one, or one of so many, where only its time matters (doctor/profile.h).
  int64_t validation_stride = 1;
  StateParts parts = {};                // of trajectories
  TokenizerCompanions companions = {};  // of a tokenizer that is a file

  int64_t validation_batches() const {  // that are taken
    return validation
               ? (validation->batches_per_epoch() + validation_stride - 1) / validation_stride
               : 0;
  }
  // What is read and in which order, to notice that a run is continued on something else.
  std::string digest() const { return set.key + ", " + batches->order(); }
  ProgramShapes shapes() const;
  // How rows of training begin and a source ends, for a model that takes these: one that reads
  // pairs apart needs no telling.
  PromptForm prompt_form(const Settings& settings, Takes takes) const {
    const bool ends = set.fields == 2 && settings.data.separator == "end";
    return {set.records && set.start_id >= 0 && !takes.pairs, ends && !takes.pairs};
  }
  RunLength run_length(const Settings& settings) const;
  // What sample text starts with: as a record does when it is trained on, else the first tokens of
  // the validation text.
  std::vector<int32_t> sample_prompt(const Settings& settings, Takes takes) const;
};

// For a model that takes these.
DataOptions data_options(const Settings& settings, const Takes& takes = {});
// How training reads a data set, for a model that takes these.
BatchOptions batch_options(const Dataset& set, const Settings& settings, Takes takes);
// Shapes a data set for a model that takes these. Validation reads the split `evaluated`.
TrainingData make_training_data(Dataset set, const Settings& settings, Takes takes,
                                DataObserver& observer,
                                SplitName evaluated = SplitName::validation);

}  // namespace millrace
