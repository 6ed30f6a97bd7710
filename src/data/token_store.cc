#include "data/token_store.h"

#include <xxhash.h>

#include <algorithm>
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
constexpr const char *kMeta = "meta.json", *kTokens = "tokens.bin", *kRecords = "records.bin",
                     *kSums = "blocks.bin";

int width_for(int64_t vocab_size) { return vocab_size <= 65536 ? 2 : 4; }

Error damaged(const fs::path& path, const std::string& expected, const std::string& got) {
  return Error({.what = "damaged data cache",
                .where = path.string(),
                .expected = expected,
                .got = got,
                .remedy = "remove the folder; it is made again"});
}

int64_t blocks_of(int64_t bytes) { return (bytes + CheckedFile::kBlock - 1) / CheckedFile::kBlock; }

}  // namespace

// --- writing

struct TokenStoreWriter::Blocks {
  explicit Blocks(const fs::path& path) : file(path, OutputFile::Mode::truncate) {}
  void write(std::string_view bytes) {
    while (!bytes.empty()) {
      const size_t room = static_cast<size_t>(CheckedFile::kBlock) - block.size(),
                   n = std::min(room, bytes.size());
      block += bytes.substr(0, n);
      bytes.remove_prefix(n);
      if (block.size() == static_cast<size_t>(CheckedFile::kBlock)) flush();
    }
  }
  void flush() {
    if (block.empty()) return;
    sums.push_back(XXH3_64bits(block.data(), block.size()));
    file.write(block);
    block.clear();
  }
  void close() {
    flush();
    file.sync();
    file.close();
  }
  OutputFile file;
  std::string block;
  std::vector<uint64_t> sums;
};

TokenStoreWriter::TokenStoreWriter(const fs::path& folder, std::string key, int64_t vocab_size)
    : folder_(folder), staging_(folder.string() + ".making"), width_(width_for(vocab_size)) {
  info_.key = std::move(key);
  info_.vocab_size = vocab_size;
  if (fs::exists(staging_)) remove_folder(staging_);
  create_folders(staging_);
  tokens_ = std::make_unique<Blocks>(staging_ / kTokens);
  records_ = std::make_unique<Blocks>(staging_ / kRecords);
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
  std::string sums;
  for (const Blocks* file : {tokens_.get(), records_.get()})
    sums.append(reinterpret_cast<const char*>(file->sums.data()),
                file->sums.size() * sizeof(uint64_t));
  write_new_file(staging_ / kSums, sums);
  Json meta{{"format", kFormat},
            {"key", info_.key},
            {"vocab_size", info_.vocab_size},
            {"tokens", info_.tokens},
            {"records", info_.records},
            {"skipped", info_.skipped},
            {"blocks_xxh3", digest_of(sums).xxh3}};
  const std::string text = meta.dump(1);
  meta["xxh3"] = digest_of(text).xxh3;
  write_new_file(staging_ / kMeta, meta.dump(1) + "\n");
  sync_folder(staging_);
  if (fs::exists(folder_)) remove_folder(folder_);
  rename_path(staging_, folder_);
  staging_.clear();
  sync_folder(folder_.parent_path());
}

// --- reading

CheckedFile::CheckedFile(const fs::path& path, int64_t bytes, std::vector<uint64_t> sums)
    : file_(path), bytes_(bytes), sums_(std::move(sums)), checked_(sums_.size()) {
  if (const int64_t size = file_.size(); size != bytes)
    throw damaged(path, fmt::format("{} bytes", with_commas(bytes)),
                  fmt::format("{} bytes", with_commas(size)));
}

void CheckedFile::read(int64_t offset, std::span<std::byte> out) const {
  const auto size = static_cast<int64_t>(out.size());
  MR_CHECK(offset >= 0 && size <= bytes_ - offset, "{} bytes at {} of {}", size, offset, bytes_);
  if (size == 0) return;
  for (int64_t block = offset / kBlock; block <= (offset + size - 1) / kBlock; ++block)
    if (!checked_[static_cast<size_t>(block)].load(std::memory_order_acquire)) check(block);
  file_.read_at(offset, out);
}

void CheckedFile::check(int64_t block) const {
  thread_local std::vector<std::byte> bytes(static_cast<size_t>(kBlock));
  const auto size = static_cast<size_t>(std::min(kBlock, bytes_ - block * kBlock));
  file_.read_at(block * kBlock, {bytes.data(), size});
  if (XXH3_64bits(bytes.data(), size) != sums_[static_cast<size_t>(block)])
    throw damaged(file_.path(), "what was written", fmt::format("other bytes in MiB {}", block));
  checked_[static_cast<size_t>(block)].store(true, std::memory_order_release);
}

TokenStore::TokenStore(const fs::path& folder, const std::string& key) {
  const fs::path meta_path = folder / kMeta;
  const std::string text = read_file(meta_path, 1 << 20);
  Json meta;
  try {
    meta = Json::parse(text);
    const std::string sum = meta.at("xxh3").get<std::string>();
    meta.erase("xxh3");
    if (digest_of(meta.dump(1)).xxh3 != sum)
      throw damaged(meta_path, "what was written", "other bytes");
    if (meta.at("format") != kFormat)
      throw damaged(meta_path, fmt::format("format {}", kFormat), meta.at("format").dump());
    auto number = [&](const char* name, int64_t least, int64_t most) {
      const Json& value = meta.at(name);
      if (!value.is_number_integer() || value < least || value > most)
        throw damaged(meta_path, fmt::format("{} from {} to {}", name, least, most),
                      printable(value.dump(), 40));
      return value.get<int64_t>();
    };
    info_.key = meta.at("key").get<std::string>();
    info_.vocab_size = number("vocab_size", 1, int64_t{1} << 31);
    info_.tokens = number("tokens", 0, kMost);
    info_.records = number("records", 0, kMost);
    info_.skipped = number("skipped", 0, kMost);
    width_ = width_for(info_.vocab_size);
  } catch (const Json::exception&) {
    throw damaged(meta_path, "what was written", "other bytes");
  }
  if (info_.key != key) throw damaged(meta_path, "key " + key, "key " + info_.key);
  const std::string sums = read_file(folder / kSums, int64_t{1} << 32);
  const int64_t token_bytes = info_.tokens * width_, record_bytes = (info_.records + 1) * 8,
                blocks = blocks_of(token_bytes);
  if (digest_of(sums).xxh3 != meta.at("blocks_xxh3") ||
      static_cast<int64_t>(sums.size()) != 8 * (blocks + blocks_of(record_bytes)))
    throw damaged(folder / kSums, "what was written", "other bytes");
  std::vector<uint64_t> all(sums.size() / 8);
  std::memcpy(all.data(), sums.data(), sums.size());
  const auto middle = all.begin() + static_cast<ptrdiff_t>(blocks);
  tokens_ = std::make_unique<CheckedFile>(folder / kTokens, token_bytes,
                                          std::vector<uint64_t>(all.begin(), middle));
  records_ = std::make_unique<CheckedFile>(folder / kRecords, record_bytes,
                                           std::vector<uint64_t>(middle, all.end()));
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
      throw damaged(tokens_->path(), fmt::format("ids below {}", info_.vocab_size),
                    fmt::format("{}", id));
}

int64_t TokenStore::record_begin(int64_t i) const {
  uint64_t begin;
  records_->read(i * 8, std::as_writable_bytes(std::span(&begin, 1)));
  if (begin > static_cast<uint64_t>(info_.tokens))
    throw damaged(records_->path(), fmt::format("places up to {}", info_.tokens),
                  fmt::format("{}", begin));
  return static_cast<int64_t>(begin);
}

}  // namespace millrace
