// A tokenizer as GGUF keeps it, for llama.cpp.
#pragma once
#include <vector>

#include "data/tokenizer.h"
#include "io/gguf.h"

namespace millrace {

// `vocab_size` is the model's: ids that the tokenizer does not have are unused ones. One that
// llama.cpp has no counterpart of (characters, words, bytes) becomes its kind `none`: the model
// then takes and gives ids. `opening`: what is put before a prompt; of one token llama.cpp does it.
std::vector<GgufEntry> gguf_tokenizer(const Tokenizer& tokenizer, int64_t vocab_size,
                                      std::span<const int32_t> opening);

}  // namespace millrace
