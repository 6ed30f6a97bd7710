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
};

struct LoadedRun {
  std::string config_text;  // as given
  Settings settings;
  std::unique_ptr<Model> model;
  Schema schema;  // refers to settings and model
  TrainingData data;
};

// Parses the config and the overrides alone.
std::unique_ptr<LoadedRun> load_settings(const RunRequest& request);
// Parses, checks and resolves; opens the data, which is tokenized when it is not in the cache yet.
// Creates nothing else on disk.
std::unique_ptr<LoadedRun> load_run(const RunRequest& request, DataObserver& observer);
// The same for looking at the data: batches are missing when the model does not read such data.
std::unique_ptr<LoadedRun> load_data(const RunRequest& request, DataObserver& observer);

}  // namespace millrace
