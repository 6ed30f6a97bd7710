// Tokens on disk, made once and read in place: a folder with the ids of all records end to end
// (tokens.bin, uint16 or uint32, as numpy.fromfile reads them), where each record begins
// (records.bin, uint64, one more than there are records), and meta.json, which is written last. A
// folder appears under its name only when it is whole.
#pragma once
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "data/checked_file.h"
#include "data/token_array.h"

namespace millrace {

struct TokenStoreInfo {
  std::string key;  // of what the tokens were made of
  int64_t vocab_size = 0, tokens = 0, records = 0;
  bool operator==(const TokenStoreInfo&) const = default;
};
// meta.json. Error when it is not what was written, or contradicts itself.
TokenStoreInfo read_token_store_header(std::string_view text, const fs::path& name);
std::string token_store_header_text(const TokenStoreInfo& info);

class TokenStoreWriter {
 public:
  // Stages beside `folder`. What another writer left there unfinished is removed.
  TokenStoreWriter(const fs::path& folder, std::string key, int64_t vocab_size);
  ~TokenStoreWriter();  // without commit() nothing is left
  TokenStoreWriter(const TokenStoreWriter&) = delete;
  TokenStoreWriter& operator=(const TokenStoreWriter&) = delete;

  void add(std::span<const int32_t> tokens);  // to the record at hand
  void end_record();
  const TokenStoreInfo& info() const { return info_; }
  void commit();  // all on disk and under its name, replacing what was there

 private:
  fs::path folder_, staging_;
  TokenStoreInfo info_;
  int width_;
  std::unique_ptr<CheckedFileWriter> tokens_, records_;
  std::string bytes_;
};

class TokenStore : public TokenArray {
 public:
  // Error when the folder is missing, not whole, or of another key.
  TokenStore(const fs::path& folder, const std::string& key);
  const TokenStoreInfo& info() const { return info_; }
  int64_t tokens() const override { return info_.tokens; }
  int64_t records() const override { return info_.records; }
  void read(int64_t begin, std::span<int32_t> out) const override;  // each below info().vocab_size
  void record_begins(int64_t first, std::span<int64_t> out) const override;

 private:
  TokenStoreInfo info_;
  int64_t width_ = 2;
  std::unique_ptr<CheckedFile> tokens_, records_;
};

}  // namespace millrace
