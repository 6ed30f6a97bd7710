// Plain text from files or from the built-in grammar, and the token arrays that training and
// evaluation read.
#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "data/tokenizer.h"

namespace millrace {

inline constexpr const char* kBuiltinGrammar = "builtin:grammar";

// The text of one or more files, end to end.
struct TextSource {
  struct Part {
    std::string name;  // for messages
    size_t begin;
  };
  std::string text;
  std::vector<Part> parts;
};

// Each path is a file, a folder (its *.txt files) or a pattern (* ? []); files of a folder or a
// pattern come sorted by name, and what is packed by gzip or Zstandard is unpacked. `key` is the
// config key the paths were given under, for messages.
TextSource read_text_source(const std::vector<std::string>& paths, const std::string& key);

// An Error in the text names the file and the line it stands in.
std::vector<int32_t> encode_text(const TextSource& source, const Tokenizer& tokenizer);

struct TextDataOptions {
  std::vector<std::string> train = {};       // or {kBuiltinGrammar}
  std::vector<std::string> validation = {};  // empty: see validation_fraction
  double validation_fraction = 0.1;   // cut from the end of the training text; 0: no validation
  std::string tokenizer = "char";     // or "byte", or the path of a tokenizer.json
  int64_t max_chars = 0;              // of the training text, before the cut; 0: all of it
  int64_t grammar_chars = 3'000'000;  // training text that the grammar writes
  uint64_t seed = 0;                  // of the grammar
  int64_t window = 1;                 // T inputs and 1 more target: training.max_length + 1
};

struct TextData {
  std::unique_ptr<Tokenizer> tokenizer;
  std::vector<int32_t> train, validation;
  std::optional<double> entropy_per_token;  // nats; known for the grammar only
  std::string description;                  // one line for people
};

// Both parts hold at least one window, or validation is empty because none was asked for. The
// grammar's validation text is another draw, not a piece of the training text.
TextData load_text_data(const TextDataOptions& options);

}  // namespace millrace
