// dataset.json: what a data set in the cache consists of. See dataset.h; the stores of its splits
// are folders beside it.
#pragma once
#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/file.h"
#include "data/record_reader.h"

namespace millrace {

struct DatasetHeader {
  std::string key;
  std::array<bool, kSplits> splits{};  // which have a store
  int64_t file_bytes = 0;
  RecordCounts counts = {};
  bool trajectories = false;  // then the rest is nothing
  bool records = false;
  int64_t fields = 1;
  int64_t vocab_size = 0, stored_size = 0;  // as the tokenizer has them
  int32_t unknown_id = -1, start_id = -1;
  std::vector<int32_t> end_ids = {};  // the first is the one that was put there
  std::string tokenizer_file = {}, tokenizer_xxh3 = {}, tokenizer_name = {};
};

// Error when they are not what dataset_header_text wrote, or contradict themselves.
DatasetHeader read_dataset_header(std::string_view text, const fs::path& name);
std::string dataset_header_text(const DatasetHeader& header);

}  // namespace millrace
