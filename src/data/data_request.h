// What a config's data section asks for, resolved: which files, read how, and the key under which
// the cache keeps what is made of them.
#pragma once
#include <array>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "data/dataset.h"

namespace millrace {

struct DataRequest {
  RecordOptions records;
  std::vector<SplitFiles> sources;
  bool grammar = false;
  std::array<int64_t, kSplits> grammar_chars{};  // by split, when it is the grammar's
  std::vector<FileStamp> stamps;                 // of all files, the tokenizer's last
  int64_t file_bytes = 0;                        // of the data
  nlohmann::json choices;                        // everything besides content that changes a token
};

// Error when the options contradict each other or a file is not there. Nothing is read but a
// tokenizer, when its size says how wide tokens are.
DataRequest make_data_request(const DataOptions& options);

// Of the content of all files and the choices; when none of the files has another stamp since the
// last time, what was remembered then. Remembers it.
std::string key_of(const DataRequest& request, DataObserver& observer);

// Error when a file has another stamp than when the request was made.
void check_unchanged(const DataRequest& request);

fs::path data_cache_folder();

}  // namespace millrace
