// Tokenizers: text to token ids and back. `byte` has the 256 bytes as its vocabulary and takes
// anything; `char` has the characters (Unicode code points) of its training text; byte-level BPE
// comes from a tokenizer.json (byte_bpe.h).
#pragma once
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/file.h"

namespace millrace {

class Tokenizer {
 public:
  virtual ~Tokenizer() = default;
  virtual std::string name() const = 0;
  virtual int64_t vocab_size() const = 0;
  // Appends the ids of `text` to `out`, in linear time. `source_name` (a file, a flag) is for the
  // message when the text holds what this tokenizer does not know.
  virtual void encode(std::string_view text, const std::string& source_name,
                      std::vector<int32_t>& out) const = 0;
  // Error when an id is outside the vocabulary.
  virtual std::string decode(std::span<const int32_t> ids) const = 0;
  virtual std::string to_json() const = 0;
};

std::unique_ptr<Tokenizer> make_byte_tokenizer();
// The vocabulary is the sorted code points of the text. Error when it is not UTF-8.
std::unique_ptr<Tokenizer> make_char_tokenizer(std::string_view training_text,
                                               const std::string& source_name);
// Reads what to_json() wrote, or a tokenizer.json of Hugging Face; takes nothing on trust.
std::unique_ptr<Tokenizer> tokenizer_from_json(std::string_view json,
                                               const std::string& source_name);
std::unique_ptr<Tokenizer> read_tokenizer(const fs::path& file);

void check_token_id(int32_t id, int64_t vocab_size);
// Error with file, line, column and byte offset at the first byte that is not strict UTF-8
// (RFC 3629: no overlong forms, no surrogates, nothing above U+10FFFF).
void check_utf8(std::string_view text, const std::string& source_name);

}  // namespace millrace
