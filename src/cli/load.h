// From a config file and overrides to everything a command works with.
#pragma once
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "io/schema.h"
#include "model/model.h"
#include "train/settings.h"
#include "train/training_data.h"

namespace millrace {

struct RunRequest {
  std::string config;                  // path; empty: the built-in quickstart
  std::vector<std::string> overrides;  // a.b=c
  std::string dataset = {};            // --dataset: a name in the config's section `datasets`
  int64_t settled_batch = 0;           // what `training.batch_size: auto` stands for; 0: open
  SplitName evaluated = SplitName::validation;
  bool bare = false;  // there is no config but the overrides
  // eval: the model's folder. A split with files of its own is read as the folder says, and nothing
  // else is read.
  fs::path model = {};
};

struct LoadedRun {
  std::string config_text;  // as given
  Settings settings;
  std::unique_ptr<Model> model;
  Schema schema;  // refers to settings and model
  TrainingData data;
  bool batch_is_open = false;  // training.batch_size is auto, and a stand-in for now
  std::string weights_note;    // of model.init_from (check_folder)
};

// Where runs are and what this one is called, before it is found: all that overrides of a run that
// is there can say without its config.
struct RunPlace {
  std::string folder = Settings().runs_folder, name = {};
};
RunPlace run_place(const std::vector<std::string>& overrides);
// Parses the config and the overrides alone.
std::unique_ptr<LoadedRun> load_settings(const RunRequest& request);
// Parses, checks and resolves; opens the data, which is tokenized when it is not in the cache yet.
// Creates nothing else on disk.
std::unique_ptr<LoadedRun> load_run(const RunRequest& request, DataObserver& observer);
// The same for looking at the data: batches are missing when the model does not read such data.
std::unique_ptr<LoadedRun> load_data(const RunRequest& request, DataObserver& observer);
// The model of a config alone, for data that is open already: what a change of a length or a size
// makes of it.
std::unique_ptr<LoadedRun> load_model(const RunRequest& request, const Dataset& set);
// Settles `training.batch_size: auto`: everything that follows from it is made anew but the data.
void take_batch(LoadedRun& run, int64_t batch, const std::string& reason);

}  // namespace millrace
