#include "data/value_store.h"

#include "data/checked_json.h"

namespace millrace {
namespace {

constexpr const char *kMeta = "meta.json", *kValues = "values.bin", *kPaths = "paths.bin",
                     *kClasses = "classes.bin";
constexpr int64_t kMost = int64_t{1} << 40;  // of anything: products of it stay in range
constexpr int64_t kMostChannels = 1 << 16, kMostClasses = 1 << 24;

std::string_view bytes_of(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

}  // namespace

ValueStoreWriter::ValueStoreWriter(const fs::path& folder, std::string key, int64_t channels,
                                   int64_t classes)
    : folder_(folder), info_{.key = std::move(key), .channels = channels, .classes = classes} {
  create_folders(folder_);
  values_ = std::make_unique<CheckedFileWriter>(folder_ / kValues);
  begins_ = std::make_unique<CheckedFileWriter>(folder_ / kPaths);
  if (classes > 0) classes_ = std::make_unique<CheckedFileWriter>(folder_ / kClasses);
  begins_->write(bytes_of(std::as_bytes(std::span(&info_.points, 1))));
}

void ValueStoreWriter::add_path(std::span<const float> values, std::span<const int32_t> classes) {
  MR_CHECK(std::ssize(values) % info_.channels == 0, "{} values of {} channels", values.size(),
           info_.channels);
  MR_CHECK(std::ssize(classes) == (classes_ ? std::ssize(values) / info_.channels : 0),
           "{} classes of {} values", classes.size(), values.size());
  if (classes_) classes_->write(bytes_of(std::as_bytes(classes)));
  values_->write(bytes_of(std::as_bytes(values)));
  info_.points += std::ssize(values) / info_.channels;
  ++info_.paths;
  begins_->write(bytes_of(std::as_bytes(std::span(&info_.points, 1))));
}

void ValueStoreWriter::commit() {
  values_->close();
  begins_->close();
  if (classes_) classes_->close();
  write_new_file(folder_ / kMeta, value_store_header_text(info_));
  sync_folder(folder_);
}

std::string value_store_header_text(const ValueStoreInfo& info) {
  nlohmann::json meta{{"key", info.key},
                      {"channels", info.channels},
                      {"paths", info.paths},
                      {"points", info.points}};
  if (info.classes > 0) meta["classes"] = info.classes;
  return checked_json_text(std::move(meta));
}

ValueStoreInfo read_value_store_header(std::string_view text, const fs::path& name) {
  const CheckedJson meta(text, name);
  ValueStoreInfo info{.key = meta.text("key")};
  info.channels = meta.integer("channels", 1, kMostChannels);
  info.paths = meta.integer("paths", 0, kMost);
  info.points = meta.integer("points", info.paths, info.paths > 0 ? kMost : 0);  // none is empty
  if (meta.has("classes")) info.classes = meta.integer("classes", 1, kMostClasses);
  return info;
}

ValueStore::ValueStore(const fs::path& folder, const std::string& key) {
  const fs::path meta = folder / kMeta;
  info_ = read_value_store_header(read_header_file(meta), meta);
  check_key(info_.key, key, meta);
  values_ = std::make_unique<CheckedFile>(folder / kValues, info_.points * info_.channels * 4);
  begins_ = std::make_unique<CheckedFile>(folder / kPaths, (info_.paths + 1) * 8);
  begins_->check_all();
  if (info_.classes > 0)
    classes_ = std::make_unique<CheckedFile>(folder / kClasses, info_.points * 4);
}

void ValueStore::read(int64_t begin, std::span<float> out) const {
  values_->read(begin * info_.channels * 4, std::as_writable_bytes(out));
}

void ValueStore::read_classes(int64_t begin, std::span<int32_t> out) const {
  MR_CHECK(classes_, "classes of a store without");
  classes_->read(begin * 4, std::as_writable_bytes(out));
  for (const int32_t label : out)
    if (label < -1 || label >= info_.classes)
      throw damaged_cache(classes_->path(), fmt::format("classes below {}", info_.classes),
                          std::to_string(label));
}

void ValueStore::path_begins(int64_t first, std::span<int64_t> out) const {
  begins_->read(first * 8, std::as_writable_bytes(out));
  check_begins(out, first, {info_.paths, info_.points, 1}, begins_->path());
}

}  // namespace millrace
