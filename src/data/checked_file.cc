#include "data/checked_file.h"

#include <xxhash.h>

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>

#include "core/text.h"

namespace millrace {
namespace {

constexpr const char* kDamaged = "damaged data cache";

fs::path sums_path(const fs::path& path) { return path.string() + ".xxh3"; }

}  // namespace

Error damaged_cache(const fs::path& path, const std::string& expected, const std::string& got) {
  return Error({.what = kDamaged,
                .where = path.string(),
                .expected = expected,
                .got = got,
                .remedy = "remove the folder; it is made again"});
}

bool is_damaged_cache(const Error& error) { return error.fields().what == kDamaged; }

void CheckedFileWriter::write(std::string_view bytes) {
  while (!bytes.empty()) {
    const size_t room = static_cast<size_t>(CheckedFile::kBlock) - block_.size(),
                 n = std::min(room, bytes.size());
    block_ += bytes.substr(0, n);
    bytes.remove_prefix(n);
    if (block_.size() == static_cast<size_t>(CheckedFile::kBlock)) flush();
  }
}

void CheckedFileWriter::flush() {
  if (block_.empty()) return;
  sums_.push_back(XXH3_64bits(block_.data(), block_.size()));
  file_.write(block_);
  block_.clear();
}

void CheckedFileWriter::close() {
  flush();
  file_.sync();
  file_.close();
  sums_.push_back(XXH3_64bits(sums_.data(), sums_.size() * sizeof(uint64_t)));
  write_new_file(sums_path(file_.path()),
                 {reinterpret_cast<const char*>(sums_.data()), sums_.size() * sizeof(uint64_t)});
}

CheckedFile::CheckedFile(const fs::path& path, int64_t bytes) : file_(path), bytes_(bytes) {
  if (const int64_t size = file_.size(); size != bytes)
    throw damaged_cache(path, fmt::format("{} bytes", with_commas(bytes)),
                        fmt::format("{} bytes", with_commas(size)));
  const auto blocks = static_cast<size_t>((bytes + kBlock - 1) / kBlock);
  const std::string sums = read_file(sums_path(path), int64_t{1} << 32);
  sums_.resize(blocks + 1);
  if (sums.size() != sums_.size() * sizeof(uint64_t))
    throw damaged_cache(sums_path(path), "a checksum for each block", "another length");
  std::memcpy(sums_.data(), sums.data(), sums.size());
  const uint64_t own = sums_.back();
  sums_.pop_back();
  if (XXH3_64bits(sums_.data(), sums_.size() * sizeof(uint64_t)) != own)
    throw damaged_cache(sums_path(path), "what was written", "other bytes");
  checked_ = std::vector<std::atomic<bool>>(blocks);
}

void CheckedFile::read(int64_t offset, std::span<std::byte> out) const {
  const auto size = static_cast<int64_t>(out.size());
  MR_CHECK(offset >= 0 && size <= bytes_ - offset, "{} bytes at {} of {}", size, offset, bytes_);
  if (size == 0) return;
  for (int64_t block = offset / kBlock; block <= (offset + size - 1) / kBlock; ++block)
    if (!checked_[static_cast<size_t>(block)].load(std::memory_order_acquire)) check(block);
  file_.read_at(offset, out);
}

void CheckedFile::check_all() const {
  for (size_t block = 0; block < sums_.size(); ++block) check(static_cast<int64_t>(block));
}

void CheckedFile::check(int64_t block) const {
  thread_local std::vector<std::byte> bytes(static_cast<size_t>(kBlock));
  const auto size = static_cast<size_t>(std::min(kBlock, bytes_ - block * kBlock));
  file_.read_at(block * kBlock, {bytes.data(), size});
  if (XXH3_64bits(bytes.data(), size) != sums_[static_cast<size_t>(block)])
    throw damaged_cache(file_.path(), "what was written",
                        fmt::format("other bytes in MiB {}", block));
  checked_[static_cast<size_t>(block)].store(true, std::memory_order_release);
}

void write_checked_json(const fs::path& path, nlohmann::json object) {
  object["xxh3"] = digest_of(object.dump(1)).xxh3;
  write_new_file(path, object.dump(1) + "\n");
}

nlohmann::json read_checked_json(const fs::path& path) {
  const std::string text = read_file(path, 64 << 20);
  try {
    nlohmann::json object = nlohmann::json::parse(text);
    const auto sum = object.at("xxh3").get<std::string>();
    object.erase("xxh3");
    if (digest_of(object.dump(1)).xxh3 == sum) return object;
  } catch (const nlohmann::json::exception&) {
    // Below.
  }
  throw damaged_cache(path, "what was written", "other bytes");
}

}  // namespace millrace
