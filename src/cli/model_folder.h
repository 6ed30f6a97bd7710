// A trained model on disk: which folder a person means, and what stands in it.
#pragma once
#include <memory>
#include <string>

#include "core/file.h"
#include "data/tokenizer.h"
#include "model/model.h"

namespace millrace {

// The folder with config.json and the weights: `folder` itself, or the newest checkpoint of a run
// folder (checkpoints/checkpoint-<highest>).
fs::path resolve_model_folder(const fs::path& folder);

std::unique_ptr<Model> load_model_config(const fs::path& folder);
// Error when there is no tokenizer.json, or it is of a kind that Millrace does not read.
std::unique_ptr<Tokenizer> load_tokenizer(const fs::path& folder);

}  // namespace millrace
