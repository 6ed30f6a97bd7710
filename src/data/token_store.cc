#include "data/token_store.h"

#include <cstring>

#include "core/error.h"
#include "data/checked_json.h"

namespace millrace {
namespace {

constexpr int64_t kFormat = 1;
constexpr int64_t kMost = int64_t{1} << 48;  // of anything: products of it stay in range
constexpr const char *kMeta = "meta.json", *kTokens = "tokens.bin", *kRecords = "records.bin";

int width_for(int64_t vocab_size) { return vocab_size <= 65536 ? 2 : 4; }

}  // namespace

TokenStoreWriter::TokenStoreWriter(const fs::path& folder, std::string key, int64_t vocab_size)
    : folder_(folder), staging_(folder.string() + ".making"), width_(width_for(vocab_size)) {
  info_.key = std::move(key);
  info_.vocab_size = vocab_size;
  if (fs::exists(staging_)) remove_folder(staging_);
  create_folders(staging_);
  tokens_ = std::make_unique<CheckedFileWriter>(staging_ / kTokens);
  records_ = std::make_unique<CheckedFileWriter>(staging_ / kRecords);
  const uint64_t first = 0;
  records_->write({reinterpret_cast<const char*>(&first), sizeof first});
}

TokenStoreWriter::~TokenStoreWriter() {
  tokens_.reset();
  records_.reset();
  try {
    if (!staging_.empty()) remove_folder(staging_);
  } catch (const Error&) {
    // The next writer removes it.
  }
}

void TokenStoreWriter::add(std::span<const int32_t> tokens) {
  bytes_.resize(tokens.size() * static_cast<size_t>(width_));
  for (size_t i = 0; i < tokens.size(); ++i) {
    MR_CHECK(tokens[i] >= 0 && tokens[i] < info_.vocab_size, "token {} of {}", tokens[i],
             info_.vocab_size);
    const auto id = static_cast<uint32_t>(tokens[i]);
    std::memcpy(bytes_.data() + i * static_cast<size_t>(width_), &id, static_cast<size_t>(width_));
  }
  tokens_->write(bytes_);
  info_.tokens += static_cast<int64_t>(tokens.size());
}

void TokenStoreWriter::end_record() {
  const auto end = static_cast<uint64_t>(info_.tokens);
  records_->write({reinterpret_cast<const char*>(&end), sizeof end});
  ++info_.records;
}

void TokenStoreWriter::commit() {
  tokens_->close();
  records_->close();
  write_new_file(staging_ / kMeta, token_store_header_text(info_));
  put_folder_in_place(staging_, folder_);
  staging_.clear();
}

std::string token_store_header_text(const TokenStoreInfo& info) {
  return checked_json_text({{"format", kFormat},
                            {"key", info.key},
                            {"vocab_size", info.vocab_size},
                            {"tokens", info.tokens},
                            {"records", info.records}});
}

TokenStoreInfo read_token_store_header(std::string_view text, const fs::path& name) {
  const CheckedJson meta(text, name);
  meta.integer("format", kFormat, kFormat);
  TokenStoreInfo info{.key = meta.text("key")};
  info.vocab_size = meta.integer("vocab_size", 0, int64_t{1} << 31);
  info.records = meta.integer("records", 0, kMost);
  // Every token is of a record, and of the vocabulary.
  info.tokens = meta.integer("tokens", 0, info.records > 0 && info.vocab_size > 0 ? kMost : 0);
  return info;
}

TokenStore::TokenStore(const fs::path& folder, const std::string& key) {
  const fs::path meta = folder / kMeta;
  info_ = read_token_store_header(read_header_file(meta), meta);
  check_key(info_.key, key, meta);
  width_ = width_for(info_.vocab_size);
  tokens_ = std::make_unique<CheckedFile>(folder / kTokens, info_.tokens * width_);
  records_ = std::make_unique<CheckedFile>(folder / kRecords, (info_.records + 1) * 8);
}

void TokenStore::read(int64_t begin, std::span<int32_t> out) const {
  // Narrow ids are read into the far end of their place and widened from the front.
  auto* to = reinterpret_cast<std::byte*>(out.data());
  const size_t bytes = out.size() * static_cast<size_t>(width_), rest = out.size_bytes() - bytes;
  tokens_->read(begin * width_, {to + rest, bytes});
  for (size_t i = 0; width_ == 2 && i < out.size(); ++i) {
    uint16_t id;
    std::memcpy(&id, to + rest + 2 * i, 2);
    out[i] = id;
  }
  for (const int32_t id : out)
    if (id < 0 || id >= info_.vocab_size)
      throw damaged_cache(tokens_->path(), fmt::format("ids below {}", info_.vocab_size),
                          fmt::format("{}", id));
}

void TokenStore::record_begins(int64_t first, std::span<int64_t> out) const {
  records_->read(first * 8, std::as_writable_bytes(out));
  check_begins(out, first, {.count = info_.records, .end = info_.tokens}, records_->path());
}

}  // namespace millrace
