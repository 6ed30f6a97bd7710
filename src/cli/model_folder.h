// What stands in the folder of a trained model. Which folder a person means: cli/resume.h.
#pragma once
#include <memory>
#include <string>

#include "core/file.h"
#include "data/tokenizer.h"
#include "model/model.h"

namespace millrace {

std::unique_ptr<Model> load_model_config(const fs::path& folder);
// Error when there is no tokenizer.json, or it is of a kind that Millrace does not read.
std::unique_ptr<Tokenizer> load_tokenizer(const fs::path& folder);

}  // namespace millrace
