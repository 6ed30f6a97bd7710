// Tokens on disk, made once and read in place: a folder with the ids of all records end to end
// (tokens.bin, uint16 or uint32, as numpy.fromfile reads them), where each record begins
// (records.bin, uint64, one more than there are records), a checksum of every block of both, and
// meta.json, which is written last and names the rest. A folder appears under its name only when it
// is whole. Reading checks each block when it is first touched.
#pragma once
#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/file.h"

namespace millrace {

struct TokenStoreInfo {
  std::string key;  // of what the tokens were made of
  int64_t vocab_size = 0, tokens = 0, records = 0;
  int64_t skipped = 0;  // bad records that were passed over
};

class TokenStoreWriter {
 public:
  // Stages beside `folder`. What another writer left there unfinished is removed.
  TokenStoreWriter(const fs::path& folder, std::string key, int64_t vocab_size);
  ~TokenStoreWriter();  // without commit() nothing is left
  TokenStoreWriter(const TokenStoreWriter&) = delete;
  TokenStoreWriter& operator=(const TokenStoreWriter&) = delete;

  void add(std::span<const int32_t> tokens);  // to the record at hand
  void end_record();
  void skip_record() { ++info_.skipped; }
  int64_t tokens() const { return info_.tokens; }
  void commit();  // all on disk and under its name, replacing what was there

 private:
  struct Blocks;  // a file and the checksums of its blocks
  fs::path folder_, staging_;
  TokenStoreInfo info_;
  int width_;
  std::unique_ptr<Blocks> tokens_, records_;
  std::string bytes_;
};

// A file whose blocks have checksums. Error when a block is not what was written.
class CheckedFile {
 public:
  static constexpr int64_t kBlock = 1 << 20;
  CheckedFile(const fs::path& path, int64_t bytes, std::vector<uint64_t> sums);
  void read(int64_t offset, std::span<std::byte> out) const;
  const fs::path& path() const { return file_.path(); }

 private:
  void check(int64_t block) const;
  InputFile file_;
  int64_t bytes_;
  std::vector<uint64_t> sums_;
  mutable std::vector<std::atomic<bool>> checked_;
};

class TokenStore {
 public:
  // Error when the folder is missing, not whole, or of another key.
  TokenStore(const fs::path& folder, const std::string& key);
  const TokenStoreInfo& info() const { return info_; }
  // Ids [begin, begin + out.size()), each below info().vocab_size.
  void read(int64_t begin, std::span<int32_t> out) const;
  // Where record i begins, i up to and with info().records.
  int64_t record_begin(int64_t i) const;

 private:
  TokenStoreInfo info_;
  int64_t width_ = 2;
  std::unique_ptr<CheckedFile> tokens_, records_;
};

}  // namespace millrace
