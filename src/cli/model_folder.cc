#include "cli/model_folder.h"

#include <charconv>

#include "core/error.h"

namespace millrace {

fs::path resolve_model_folder(const fs::path& folder) {
  std::error_code ignored;  // what cannot be read is reported as not there
  if (fs::is_regular_file(folder / "config.json", ignored)) return folder;
  fs::path newest;
  int64_t highest = -1;
  for (const auto& entry : fs::directory_iterator(folder / "checkpoints", ignored)) {
    const std::string name = entry.path().filename().string();
    constexpr std::string_view kPrefix = "checkpoint-";
    int64_t step = -1;
    const char *begin = name.data() + std::min(kPrefix.size(), name.size()),
               *end = name.data() + name.size();
    if (!name.starts_with(kPrefix) || std::from_chars(begin, end, step).ptr != end ||
        step <= highest || !fs::is_regular_file(entry.path() / "config.json", ignored))
      continue;
    highest = step;
    newest = entry.path();
  }
  if (highest < 0)
    throw Error({.code = ErrorCode::config,
                 .what = "no model in " + folder.string(),
                 .where = "command line: " + folder.string(),
                 .expected = "a checkpoint or Hugging Face folder (config.json and weights), or a "
                             "run folder with checkpoints",
                 .got = fs::is_directory(folder, ignored) ? "a folder without config.json"
                        : fs::exists(folder, ignored)     ? "a file"
                                                          : "nothing there",
                 .remedy = "millrace train makes one under runs/"});
  return newest;
}

std::unique_ptr<Model> load_model_config(const fs::path& folder) {
  const fs::path file = folder / "config.json";
  return model_from_external_config(read_file(file, 16 << 20), file.string());
}

std::unique_ptr<Tokenizer> load_tokenizer(const fs::path& folder) {
  const fs::path file = folder / "tokenizer.json";
  try {
    return tokenizer_from_json(read_file(file, 256 << 20), file.string());
  } catch (const Error& e) {
    ErrorFields fields = e.fields();
    fields.code = ErrorCode::config;
    fields.remedy = "give the prompt as --prompt-ids 1,2,3 and take ids back with --ids";
    throw Error(fields);
  }
}

}  // namespace millrace
