// A data set: what a config's data section names, as tokens on disk. Made once and kept in the
// cache folder under a key of content, tokenizer and whatever else changes a token; a second start
// finds it without reading the files.
#pragma once
#include <array>
#include <cstdint>
#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "data/normalisation.h"
#include "data/prepare.h"
#include "data/token_array.h"
#include "data/trajectory_source.h"
#include "data/value_store.h"

namespace millrace {

inline constexpr const char* kBuiltinGrammar = "builtin:grammar";

struct DataOptions {
  std::vector<std::string> train = {};  // or {kBuiltinGrammar}
  std::vector<std::string> validation = {}, test = {};
  // Second files, line by line beside the first: pairs.
  std::vector<std::string> train_target = {}, validation_target = {}, test_target = {};
  std::string format = "auto";
  std::vector<std::string> fields = {};  // one, or two for pairs; of formats with names
  // Kept from the training data: the end of a long text, or a draw for each record; 0: none.
  double validation_fraction = 0.1, test_fraction = 0;
  TokenizerOptions tokenizer = {};
  int64_t max_chars = 0, max_records = 0;
  int64_t grammar_chars = 3'000'000;  // training text that the grammar writes
  bool skip_bad_records = false;
  bool joined_pairs = false;      // no end token between source and target
  ClassColumn class_column = {};  // of trajectories
  // What is evaluated, when it has files of its own: no others are looked for.
  std::optional<SplitName> only = {};
  uint64_t seed = 0;
  int threads = 0;  // that tokenize; 0: all
};

// What one of train, validation and test reads.
struct Split {
  std::shared_ptr<const TokenArray> tokens;  // null: there is none
  std::shared_ptr<const TokenArray> open;    // the same, with rare words by ids of their own
  int64_t begin = 0, end = 0;                // which of the tokens, for a long text
  // The targets of pairs that are not trained on, as they were given: their bytes.
  std::shared_ptr<const TokenArray> target_texts = {};
  int64_t size() const { return end - begin; }
};

// Who watches while a data set is made: the terminal in the program, nobody in tests.
class DataObserver {
 public:
  virtual ~DataObserver() = default;
  // `bytes_all` below 0: nothing more is told until the next stage begins.
  virtual void progress(const char* /*stage*/, int64_t /*bytes_done*/, int64_t /*bytes_all*/) {}
  virtual void note(const std::string& /*text*/) {}
};

// What is noted of damage that is about to be mended.
std::string again_text(const Error& error);

// Held by the process that makes something in the cache; others wait, and then find it made.
class CacheLock {
 public:
  CacheLock(const fs::path& what, DataObserver& observer);

 private:
  LockFile lock_;
};

struct Dataset {
  std::string key;       // the same tokens have the same
  bool records = false;  // sequences of their own; else one long text
  int fields = 1;        // of each record; 2: source and target
  int64_t vocab_size = 0;
  int32_t start_id = -1, end_id = -1;
  // What a target begins with where it stands apart from its source.
  int32_t target_start() const { return start_id >= 0 ? start_id : end_id; }
  Split train, validation, test;
  Split& split(SplitName name) {
    return name == SplitName::train ? train : name == SplitName::validation ? validation : test;
  }
  const Split& split(SplitName name) const { return const_cast<Dataset*>(this)->split(name); }
  // Instead of tokens: paths of points; null where a split has none.
  std::array<std::shared_ptr<const ValueStore>, kSplits> trajectories;
  // Those of the first split that has some; all are of one kind.
  const ValueStore* first_trajectories() const {
    for (const auto& store : trajectories)
      if (store) return store.get();
    return nullptr;
  }
  bool has_trajectories() const { return first_trajectories() != nullptr; }
  int64_t classes() const { return has_trajectories() ? first_trajectories()->classes() : 0; }
  // File, agent and first frame of a path of a split, for messages: the files are read again.
  std::function<std::string(SplitName, int64_t path)> place_of_path;
  bool has(SplitName name) const {
    return split(name).tokens || trajectories[static_cast<size_t>(name)];
  }
  Normalisation normalisation;               // of these: of all paths of data.train, if it was read
  std::optional<double> entropy_per_token;   // nats; known for the grammar only
  std::string source;                        // "input.txt", "12 files"
  std::array<std::string, kSplits> sources;  // the files of each split, for messages
  const std::string& source_of(SplitName name) const { return sources[static_cast<size_t>(name)]; }
  std::string tokenizer_name;
  RecordCounts counts;
  int64_t file_bytes = 0;
  std::optional<Prepared> prepared;  // when it was made just now
  fs::path folder;                   // in the cache; empty: in memory

  const Tokenizer& tokenizer() const { return *shared_tokenizer.get(); }
  // What a model needs beside its weights to read such data: the tokenizer, or the normalisation.
  TokenizerFile reading_file() const {
    return has_trajectories() ? TokenizerFile{kNormalisationFile, normalisation.text()}
                              : tokenizer().file();
  }
  std::shared_future<std::shared_ptr<const Tokenizer>> shared_tokenizer;

  std::string description() const;  // one line for people
};

// The observer must outlive the data set: damage on disk may be noticed, and mended, while it is
// read.
Dataset open_dataset(const DataOptions& options, DataObserver& observer);

// A long text that a program made itself.
Dataset dataset_in_memory(std::shared_ptr<const Tokenizer> tokenizer, std::vector<int32_t> train,
                          std::vector<int32_t> validation);

}  // namespace millrace
