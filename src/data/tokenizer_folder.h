// What stands beside a tokenizer in a folder of Hugging Face: which tokens open and close texts,
// what is put around a prompt, and small files that other programs want (a chat template).
#pragma once
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "data/tokenizer.h"

namespace millrace {

inline constexpr const char* kTokenizerConfigFile = "tokenizer_config.json";
inline constexpr const char* kGenerationConfigFile = "generation_config.json";

// By tokenizer_config.json, generation_config.json and, where that is silent, config.json. Error
// (config) when one of them is damaged.
DeclaredTokens declared_tokens(const fs::path& folder);
// The ids of such a config, which may have any other keys; `bos_token` and `eos_token` too.
DeclaredTokens read_declared_tokens(std::string_view json, const std::string& source_name);

// By name, as they are: the two above and what goes with them from folder to folder, whatever
// becomes of the weights. A file that is none, a pipe or a folder, is passed over.
using TokenizerCompanions = std::map<std::string, std::string>;
TokenizerCompanions tokenizer_companions(const fs::path& folder);

// What a prompt is to look like that is text, so that it begins and ends as rows did in training.
struct PromptForm {
  bool start = false;  // the start token is put before it
  bool end = false;    // the end token behind it, as between source and target
  bool operator==(const PromptForm&) const = default;
};
PromptForm read_prompt_form(std::string_view tokenizer_config, const std::string& source_name);

// The companions of a tokenizer whose prompts have this form: they say so, and what ends a text.
// `opens`: its own file says what stands before a text, and a config that is silent stays so.
TokenizerCompanions companions_of(const Tokenizer& tokenizer, bool opens, PromptForm form,
                                  TokenizerCompanions before);

// The tokenizer.json of Hugging Face as one that puts these tokens before and behind every text
// itself, -1 for none; nothing: the file is of another kind, or its post processor is one that is
// left alone.
std::optional<std::string> with_frame(const TokenizerFile& file, const Tokenizer& tokenizer,
                                      int32_t start, int32_t end);

}  // namespace millrace
