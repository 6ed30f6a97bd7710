// Byte-level BPE as Hugging Face's tokenizer.json describes it (GPT-2, Llama 3 and their kin): text
// is cut at added tokens, then into words (word_splitter.h), and in each word the pair of the
// lowest rank is merged, the leftmost first, until no pair is left that has one. Ids are those of
// the reference implementation, the PyPI package `tokenizers`. With `byte_fallback` words consist
// of characters instead of bytes (character_form.h).
#pragma once
#include <memory>
#include <string>
#include <string_view>

#include "data/tokenizer.h"

namespace millrace {

// Error with `source_name` and the key when the file is none, or asks for what is not known here.
std::unique_ptr<Tokenizer> make_byte_bpe_tokenizer(std::string_view tokenizer_json,
                                                   const std::string& source_name);

}  // namespace millrace
