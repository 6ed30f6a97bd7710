#include "cli/model_folder.h"

#include "core/error.h"

namespace millrace {

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
