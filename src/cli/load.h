// From a config file and overrides to everything a command works with.
#pragma once
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "data/text_source.h"
#include "io/schema.h"
#include "model/model.h"
#include "train/settings.h"

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
  TextData data;
};

// Parses the config and the overrides alone.
std::unique_ptr<LoadedRun> load_settings(const RunRequest& request);
// Parses, checks and resolves; reads the data for the vocabulary. Creates nothing on disk.
std::unique_ptr<LoadedRun> load_run(const RunRequest& request);

}  // namespace millrace
