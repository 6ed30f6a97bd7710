#include "data/token_store.h"

#include <cstring>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "core/text.h"
#include "io/quote.h"

namespace millrace {
namespace {

using Json = nlohmann::json;

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
  write_checked_json(staging_ / kMeta, {{"format", kFormat},
                                        {"key", info_.key},
                                        {"vocab_size", info_.vocab_size},
                                        {"tokens", info_.tokens},
                                        {"records", info_.records}});
  sync_folder(staging_);
  if (fs::exists(folder_)) remove_folder(folder_);
  rename_path(staging_, folder_);
  staging_.clear();
  sync_folder(folder_.parent_path());
}

TokenStore::TokenStore(const fs::path& folder, const std::string& key) {
  const fs::path meta_path = folder / kMeta;
  const Json meta = read_checked_json(meta_path);
  try {
    if (meta.at("format") != kFormat)
      throw damaged_cache(meta_path, fmt::format("format {}", kFormat),
                          printable(meta.at("format").dump(), 40));
    auto number = [&](const char* name, int64_t least, int64_t most) {
      const Json& value = meta.at(name);
      if (!value.is_number_integer() || value < least || value > most)
        throw damaged_cache(meta_path, fmt::format("{} from {} to {}", name, least, most),
                            printable(value.dump(), 40));
      return value.get<int64_t>();
    };
    info_.key = meta.at("key").get<std::string>();
    info_.vocab_size = number("vocab_size", 1, int64_t{1} << 31);
    info_.tokens = number("tokens", 0, kMost);
    info_.records = number("records", 0, kMost);
  } catch (const Json::exception&) {
    throw damaged_cache(meta_path, "what was written", "other bytes");
  }
  if (info_.key != key) throw damaged_cache(meta_path, "key " + key, "key " + info_.key);
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
  for (size_t i = 0; i < out.size(); ++i)
    if (out[i] < (i == 0 ? 0 : out[i - 1]) || out[i] > info_.tokens)
      throw damaged_cache(records_->path(), fmt::format("increasing places up to {}", info_.tokens),
                          fmt::format("{}", out[i]));
}

}  // namespace millrace
