#include "data/checked_file.h"

#include <xxhash.h>

#include <algorithm>
#include <cstring>

#include "core/text.h"

namespace millrace {
namespace {

constexpr const char* kDamaged = "damaged data cache";

fs::path sums_path(const fs::path& path) { return path.string() + ".xxh3"; }

// One for each block, and one of all of them.
int64_t sums_bytes(int64_t blocks) { return (blocks + 1) * static_cast<int64_t>(sizeof(uint64_t)); }

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
  write_new_file(sums_path(file_.path()), block_sums_bytes(std::move(sums_)));
}

std::string block_sums_bytes(std::vector<uint64_t> sums) {
  sums.push_back(XXH3_64bits(sums.data(), sums.size() * sizeof(uint64_t)));
  return {reinterpret_cast<const char*>(sums.data()), sums.size() * sizeof(uint64_t)};
}

std::vector<uint64_t> parse_block_sums(std::string_view bytes, int64_t blocks,
                                       const fs::path& name) {
  // Compared before anything is allocated for them.
  if (static_cast<int64_t>(bytes.size()) != sums_bytes(blocks))
    throw damaged_cache(name, fmt::format("{} bytes", with_commas(sums_bytes(blocks))),
                        fmt::format("{} bytes", with_commas(static_cast<int64_t>(bytes.size()))));
  std::vector<uint64_t> sums(static_cast<size_t>(blocks) + 1);
  std::memcpy(sums.data(), bytes.data(), bytes.size());
  const uint64_t own = sums.back();
  sums.pop_back();
  if (XXH3_64bits(sums.data(), sums.size() * sizeof(uint64_t)) != own)
    throw damaged_cache(name, "what was written", "other bytes");
  return sums;
}

CheckedFile::CheckedFile(const fs::path& path, int64_t bytes) : file_(path), bytes_(bytes) {
  if (const int64_t size = file_.size(); size != bytes)
    throw damaged_cache(path, fmt::format("{} bytes", with_commas(bytes)),
                        fmt::format("{} bytes", with_commas(size)));
  const int64_t blocks = (bytes + kBlock - 1) / kBlock;
  const fs::path sums = sums_path(path);
  sums_ = parse_block_sums(read_file(sums, sums_bytes(blocks)), blocks, sums);
  checked_ = std::vector<std::atomic<bool>>(sums_.size());
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

void check_begins(std::span<const int64_t> begins, int64_t first, const Parts& parts,
                  const fs::path& path) {
  int64_t least = first * parts.shortest;
  for (const int64_t begin : begins) {
    if (first == parts.count) least = parts.end;
    const int64_t most = first == 0 ? 0 : parts.end - (parts.count - first) * parts.shortest;
    if (begin < least || begin > most)
      throw damaged_cache(path, fmt::format("part {} to begin from {} to {}", first, least, most),
                          fmt::format("{}", begin));
    least = begin + parts.shortest;
    ++first;
  }
}

}  // namespace millrace
