#include "cli/model_folder.h"

#include "cli/load.h"
#include "core/error.h"
#include "train/checkpoint.h"
#include "train/run_folder.h"

namespace millrace {

fs::path find_model_folder(const fs::path& runs, const std::string& what) {
  for (const fs::path& given : {fs::path(what), runs / what})
    if (fs::is_regular_file(given / "config.json")) return given;
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

std::unique_ptr<Model> load_model_config(const fs::path& folder) {
  const fs::path file = folder / "config.json";
  return model_from_external_config(read_file(file, 16 << 20), file.string());
}

std::unique_ptr<Tokenizer> load_tokenizer(const fs::path& folder) {
  fs::path file = folder / kTokenizerFiles[0];
  for (const char* name : kTokenizerFiles)
    if (!fs::exists(file)) file = folder / name;
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
