// A trained model on disk: which folder a person means, and what stands in it.
#pragma once
#include <memory>
#include <optional>
#include <string>

#include "core/file.h"
#include "data/normalisation.h"
#include "data/tokenizer.h"
#include "model/model.h"

namespace millrace {

// The folder of a model a person names: a checkpoint or Hugging Face folder as it is, or a run: its
// best checkpoint by checkpoint.metric, else its newest.
fs::path find_model_folder(const fs::path& runs, const std::string& what);

// The same for model.init_from, which `where` is the place of.
fs::path find_initial_folder(const fs::path& runs, const std::string& what,
                             const std::string& where);

// The model of a folder, and which family it is of. Of a folder of low-rank additions: the model
// that they are added to.
std::unique_ptr<Model> load_model_config(const fs::path& folder, std::string* family = nullptr);
// Error (config) when its weights are damaged, or not those of the model. Returns what is to be
// said of tensors that the model has no place for; empty: there are none. The second looks at the
// values.
std::string check_folder(const fs::path& folder, const Model& model);
void check_folder_values(const fs::path& folder, const Model& model);
// Where a folder keeps its tokenizer; nothing: it has none.
std::optional<fs::path> tokenizer_file(const fs::path& folder);
// What stands around a prompt of a folder's model: before it what its tokenizer puts before a text
// or, of our own, what rows of its training began with; behind it what a source ended with.
struct PromptFrame {
  std::vector<int32_t> before, behind;
};
PromptFrame prompt_frame(const fs::path& folder, const Tokenizer& tokenizer);
// How the states that a folder's model reads are scaled; Error (config) when it does not say.
Normalisation load_normalisation(const fs::path& folder, const Model& model);
// Error when there is no tokenizer.json, or it is of a kind that Millrace does not read. With a
// model also when that has fewer tokens.
std::unique_ptr<Tokenizer> load_tokenizer(const fs::path& folder, const Model* model = nullptr);

}  // namespace millrace
