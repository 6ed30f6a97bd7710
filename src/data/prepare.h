// A data set's files into tokens on disk: read by one thread, tokenized by several, written in
// order. Done once; what comes out is kept (dataset.h).
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "data/ordered_work.h"
#include "data/record_reader.h"
#include "data/tokenizer.h"

namespace millrace {

// How a tokenizer comes about: from a file, or learned from the training text.
struct TokenizerOptions {
  // char, byte, word, bpe, unigram, ids, or the path of a tokenizer.json or of a .model.
  std::string kind = "char";
  int64_t vocab_size = 8000;  // of word, bpe, unigram and ids
  int64_t min_frequency = 2;  // of words
  bool lower_case = false;    // words
  bool is_file() const { return kind.ends_with(".json") || kind.ends_with(".model"); }
};
const std::vector<std::string>& tokenizer_kinds();  // that are no files

// A stage of the work and how much of its bytes are done; called often.
using ProgressFunction =
    std::function<void(const char* stage, int64_t bytes_done, int64_t bytes_all)>;

struct Prepared {
  RecordCounts counts;
  PlainTextCounts plain_text;
  OrderedWorkTimes times;  // of tokenizing
  double seconds = 0;
};

// `bytes_all`: of all files, for progress.
std::unique_ptr<Tokenizer> make_tokenizer(const TokenizerOptions& options,
                                          const RecordOptions& records,
                                          const std::vector<SplitFiles>& sources, int threads,
                                          int64_t bytes_all, const ProgressFunction& progress);

// What the store of a split's target texts is called.
std::string target_texts_name(SplitName split);

// Writes a token store for each split that has tokens into `folder`, which exists and is empty; of
// pairs that are not trained on the targets' texts too, in a store of bytes. Records end with the
// tokenizer's end token when it has one.
Prepared write_token_stores(const fs::path& folder, const std::string& key,
                            const Tokenizer& tokenizer, RecordOptions records,
                            const std::vector<SplitFiles>& sources, int threads, int64_t bytes_all,
                            const ProgressFunction& progress);

}  // namespace millrace
