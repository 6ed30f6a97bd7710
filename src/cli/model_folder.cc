#include "cli/model_folder.h"

#include "cli/load.h"
#include "core/error.h"
#include "model/tuning.h"
#include "train/checkpoint.h"
#include "train/model_weights.h"
#include "train/run_folder.h"
#include "train/trajectory_evaluation.h"
#include "train/weights.h"

namespace millrace {

fs::path find_model_folder(const fs::path& runs, const std::string& what) {
  for (const fs::path& given : {fs::path(what), runs / what})
    for (const ModelFileNames& names : {kWholeModel, kAdapterModel})
      if (fs::is_regular_file(given / names.config)) return given;
  const fs::path run = RunFolder::find(runs, what);
  const CheckpointStore store(run / "checkpoints");
  const auto settings = load_settings({(run / "config.resolved.yaml").string(), {}});
  const CheckpointSettings& c = settings->settings.checkpoint;
  if (const auto best = store.best(c.metric, c.larger_is_better())) return best->folder;
  std::string damaged;
  if (const auto newest = store.newest([&](const std::string& text) { damaged = text; }))
    return newest->folder;
  throw Error({.code = ErrorCode::failure,
               .what = "the run has no checkpoint yet",
               .where = store.folder().string(),
               .expected = "a checkpoint",
               .got = damaged.empty() ? "none" : damaged,
               .remedy = "go on with `millrace train --resume " + run.string() + "`"});
}

fs::path find_initial_folder(const fs::path& runs, const std::string& what,
                             const std::string& where) {
  const fs::path given = what;
  if (fs::is_directory(given) && !fs::exists(given / kWholeModel.config) &&
      !fs::exists(given / kAdapterModel.config) && !fs::exists(given / "config.resolved.yaml"))
    throw Error({.code = ErrorCode::config,
                 .what = "the folder has no model",
                 .where = where,
                 .expected = "config.json beside safetensors weights",
                 .got = (given / kWholeModel.config).string() + " is not there",
                 .remedy = "name a Hugging Face folder, a run or a checkpoint"});
  try {
    return find_model_folder(runs, what);
  } catch (const Error& e) {
    ErrorFields fields = e.fields();
    fields.code = ErrorCode::config;
    fields.where = where;
    fields.expected = "a Hugging Face folder; or " + fields.expected;
    throw Error(fields);
  }
}

void check_folder(const fs::path& folder, const Model& model) {
  try {
    check_weights(folder, model);
  } catch (const Error& e) {
    ErrorFields fields = e.fields();
    fields.code = ErrorCode::config;
    if (fields.where.find(folder.string()) == std::string::npos)
      fields.where = folder.string() + ": " + fields.where;
    throw Error(fields);
  }
}

std::unique_ptr<Model> load_model_config(const fs::path& folder, std::string* family) {
  if (fs::exists(folder / kAdapterModel.config))
    return load_model_config(ModelWeights(folder).whole_folder(), family);
  const fs::path file = folder / kWholeModel.config;
  return model_from_external_config(read_file(file, 16 << 20), file.string(), family);
}

std::optional<fs::path> tokenizer_file(const fs::path& folder) {
  std::optional<fs::path> found;
  for (const char* name : kTokenizerFiles) {
    if (!fs::exists(folder / name)) continue;
    if (!found) found = folder / name;
    try {
      read_tokenizer(folder / name);
      return folder /
             name;  // the first that can be read: Llama 2 has both, and one is unknown here
    } catch (const Error&) {
    }
  }
  if (!found && fs::exists(folder / kAdapterModel.config))
    return tokenizer_file(ModelWeights(folder).whole_folder());
  return found;
}

PromptFrame prompt_frame(const fs::path& folder, const Tokenizer& tokenizer) {
  PromptFrame frame{tokenizer.opening(), {}};
  const auto file = tokenizer_file(folder);
  const fs::path config = file ? file->parent_path() / kTokenizerConfigFile : fs::path();
  if (!fs::is_regular_file(config)) return frame;
  const PromptForm form = read_prompt_form(read_file(config, 16 << 20), config.string());
  if (form.start && frame.before.empty() && tokenizer.start_id() >= 0)
    frame.before = {tokenizer.start_id()};
  if (form.end && tokenizer.end_id() >= 0) frame.behind = {tokenizer.end_id()};
  return frame;
}

Normalisation load_normalisation(const fs::path& folder, const Model& model) {
  try {
    return normalisation_of(folder, model);
  } catch (const Error& e) {
    ErrorFields fields = e.fields();
    fields.code = ErrorCode::config;
    fields.remedy = "name a run, or a checkpoint of one: it has the normalisation of its data";
    throw Error(fields);
  }
}

std::unique_ptr<Tokenizer> load_tokenizer(const fs::path& folder) {
  const fs::path file = tokenizer_file(folder).value_or(folder / kTokenizerFiles[0]);
  try {
    return read_tokenizer(file);
  } catch (const Error& e) {
    ErrorFields fields = e.fields();
    fields.code = ErrorCode::config;
    fields.remedy = "give the prompt as --prompt-ids 1,2,3 and take ids back with --ids";
    throw Error(fields);
  }
}

}  // namespace millrace
