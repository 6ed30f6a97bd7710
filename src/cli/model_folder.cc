#include "cli/model_folder.h"

#include <fmt/ranges.h>

#include "cli/load.h"
#include "core/error.h"
#include "data/tokenizer_folder.h"
#include "io/quote.h"
#include "model/tuning.h"
#include "train/checkpoint.h"
#include "train/model_weights.h"
#include "train/run_folder.h"
#include "train/trajectory_evaluation.h"
#include "train/weights.h"

namespace millrace {
namespace {

// The folder of a model itself, as it is named.
std::optional<fs::path> find_named(const fs::path& runs, const std::string& what) {
  for (const fs::path& given : {fs::path(what), runs / what})
    for (const ModelFileNames& names : {kWholeModel, kAdapterModel})
      if (fs::is_regular_file(given / names.config)) return given;
  return std::nullopt;
}

fs::path best_checkpoint(const fs::path& run) {
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

// What `f` finds wrong with a folder that a person named is an error of that name.
template <typename F>
auto of_folder(const fs::path& folder, const F& f) {
  try {
    return f();
  } catch (const Error& e) {
    ErrorFields fields = e.fields();
    fields.code = ErrorCode::config;
    if (fields.where.find(folder.string()) == std::string::npos)
      fields.where = folder.string() + ": " + fields.where;
    throw Error(fields);
  }
}

}  // namespace

fs::path find_model_folder(const fs::path& runs, const std::string& what) {
  if (const auto named = find_named(runs, what)) return *named;
  return best_checkpoint(RunFolder::find(runs, what));
}

fs::path find_initial_folder(const fs::path& runs, const std::string& what,
                             const std::string& where) {
  const fs::path given = what;
  if (fs::is_directory(given) && !fs::exists(given / kWholeModel.config) &&
      !fs::exists(given / kAdapterModel.config) && !fs::exists(given / "config.resolved.yaml") &&
      !RunFolder::newest(given, ""))
    throw Error({.code = ErrorCode::config,
                 .what = "the folder has no model",
                 .where = where,
                 .expected = "config.json beside safetensors weights",
                 .got = (given / kWholeModel.config).string() + " is not there",
                 .remedy = "name a Hugging Face folder, a run or a checkpoint"});
  if (const auto named = find_named(runs, what)) return *named;
  fs::path run;
  auto refuse = [&](const Error& e) {
    ErrorFields fields = e.fields();
    fields.code = ErrorCode::config;
    fields.where = where;
    fields.expected = "a Hugging Face folder; or " + fields.expected;
    return fields;
  };
  try {
    run = RunFolder::find(runs, what);
  } catch (const Error& e) {
    ErrorFields fields = refuse(e);
    fields.what = "no model at " + quote(what);
    fields.remedy =
        "nothing is downloaded: fetch the folder of Hugging Face first (config.json, "
        "tokenizer.json, *.safetensors) and name it; `millrace runs` lists the runs";
    throw Error(fields);
  }
  try {
    return best_checkpoint(run);
  } catch (const Error& e) {
    throw Error(refuse(e));
  }
}

std::string check_folder(const fs::path& folder, const Model& model) {
  constexpr size_t kNamed = 3;
  auto unused = of_folder(folder, [&] { return check_weights(folder, model); });
  if (unused.empty()) return "";
  const size_t count = unused.size();
  if (count > kNamed) unused.resize(kNamed);
  return fmt::format("{} {} of {} left out, the model has no place for {}: {}{}", count,
                     count == 1 ? "tensor" : "tensors", folder.string(), count == 1 ? "it" : "them",
                     printable(fmt::format("{}", fmt::join(unused, ", ")), 300),
                     count > kNamed ? ", ..." : "");
}

void check_folder_values(const fs::path& folder, const Model& model) {
  of_folder(folder, [&] { check_values(folder, model); });
}

std::unique_ptr<Model> load_model_config(const fs::path& folder, std::string* family) {
  if (fs::exists(folder / kAdapterModel.config))
    return load_model_config(ModelWeights(folder).whole_folder(), family);
  const fs::path file = folder / kWholeModel.config;
  return model_from_external_config(read_file(file, 16 << 20), file.string(), family);
}

std::optional<fs::path> tokenizer_file(const fs::path& folder) {
  std::optional<fs::path> found, readable;
  int64_t size = 0;
  for (const char* name : kTokenizerFiles) {
    if (!fs::exists(folder / name)) continue;
    if (!found) found = folder / name;
    try {
      const int64_t tokens = read_tokenizer(folder / name)->vocab_size();
      // Llama 2 has both. Of one vocabulary it is the model of SentencePiece, which is the
      // original; where it lacks tokens that were added since, the other one.
      if (!readable || tokens == size) readable = folder / name;
      size = tokens;
    } catch (const Error&) {
    }
  }
  if (readable) return readable;
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

std::unique_ptr<Tokenizer> load_tokenizer(const fs::path& folder, const Model* model) {
  const fs::path file = tokenizer_file(folder).value_or(folder / kTokenizerFiles[0]);
  std::unique_ptr<Tokenizer> tokenizer;
  try {
    tokenizer = read_tokenizer(file);
  } catch (const Error& e) {
    ErrorFields fields = e.fields();
    fields.code = ErrorCode::config;
    throw Error(fields);
  }
  if (model && tokenizer->vocab_size() > model->vocab_size())
    throw Error(
        {.code = ErrorCode::config,
         .what = "the tokenizer does not match the weights",
         .where = file.string(),
         .expected = fmt::format("at most {} tokens, as the model has", model->vocab_size()),
         .got = fmt::format("{}", tokenizer->vocab_size()),
         .remedy = "the tokenizer that the weights were trained with"});
  return tokenizer;
}

}  // namespace millrace
