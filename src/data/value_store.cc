#include "data/value_store.h"

#include <nlohmann/json.hpp>

namespace millrace {
namespace {

using Json = nlohmann::json;

constexpr const char *kMeta = "meta.json", *kValues = "values.bin", *kPaths = "paths.bin";
constexpr int64_t kMost = int64_t{1} << 40;  // of anything: products of it stay in range
constexpr int64_t kMostChannels = 1 << 16;

std::string_view bytes_of(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

}  // namespace

ValueStoreWriter::ValueStoreWriter(const fs::path& folder, std::string key, int64_t channels)
    : folder_(folder), key_(std::move(key)), channels_(channels) {
  create_folders(folder_);
  values_ = std::make_unique<CheckedFileWriter>(folder_ / kValues);
  begins_ = std::make_unique<CheckedFileWriter>(folder_ / kPaths);
  begins_->write(bytes_of(std::as_bytes(std::span(&points_, 1))));
}

void ValueStoreWriter::add_path(std::span<const float> values) {
  MR_CHECK(std::ssize(values) % channels_ == 0, "{} values of {} channels", values.size(),
           channels_);
  values_->write(bytes_of(std::as_bytes(values)));
  points_ += std::ssize(values) / channels_;
  ++paths_;
  begins_->write(bytes_of(std::as_bytes(std::span(&points_, 1))));
}

void ValueStoreWriter::commit() {
  values_->close();
  begins_->close();
  write_checked_json(
      folder_ / kMeta,
      {{"key", key_}, {"channels", channels_}, {"paths", paths_}, {"points", points_}});
  sync_folder(folder_);
}

ValueStore::ValueStore(const fs::path& folder, const std::string& key) {
  const fs::path meta_file = folder / kMeta;
  const Json meta = read_checked_json(meta_file);
  try {
    if (meta.at("key") != key) throw damaged_cache(meta_file, "key " + key, "another");
    channels_ = meta.at("channels").get<int64_t>();
    paths_ = meta.at("paths").get<int64_t>();
    points_ = meta.at("points").get<int64_t>();
  } catch (const Json::exception&) {
    throw damaged_cache(meta_file, "what was written", "other bytes");
  }
  if (channels_ < 1 || channels_ > kMostChannels || paths_ < 0 || paths_ > kMost || points_ < 0 ||
      points_ > kMost)
    throw damaged_cache(meta_file, "sizes of a data set", "others");
  values_ = std::make_unique<CheckedFile>(folder / kValues, points_ * channels_ * 4);
  begins_ = std::make_unique<CheckedFile>(folder / kPaths, (paths_ + 1) * 8);
  begins_->check_all();
}

void ValueStore::read(int64_t begin, std::span<float> out) const {
  values_->read(begin * channels_ * 4, std::as_writable_bytes(out));
}

void ValueStore::path_begins(int64_t first, std::span<int64_t> out) const {
  begins_->read(first * 8, std::as_writable_bytes(out));
  for (size_t i = 0; i < out.size(); ++i)
    if (out[i] < (i == 0 ? 0 : out[i - 1]) || out[i] > points_)
      throw damaged_cache(begins_->path(), fmt::format("increasing places up to {}", points_),
                          fmt::format("{}", out[i]));
}

}  // namespace millrace
