// A trained model on disk: which folder a person means, and what stands in it.
#pragma once
#include <memory>
#include <string>

#include "core/file.h"
#include "data/tokenizer.h"
#include "model/model.h"

namespace millrace {

// The folder of a model a person names: a checkpoint or Hugging Face folder as it is, or a run: its
// best checkpoint by checkpoint.metric, else its newest.
fs::path find_model_folder(const fs::path& runs, const std::string& what);

std::unique_ptr<Model> load_model_config(const fs::path& folder);
// Error when there is no tokenizer.json, or it is of a kind that Millrace does not read.
std::unique_ptr<Tokenizer> load_tokenizer(const fs::path& folder);

}  // namespace millrace
