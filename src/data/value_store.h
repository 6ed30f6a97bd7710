// Trajectories on disk: a folder with the points of all paths end to end (values.bin, float32
// [points, channels], as numpy.fromfile reads them), where each path begins (paths.bin, uint64, one
// more than there are paths), the class of each point where they have such (classes.bin, int32, -1:
// none), and meta.json, which is written last.
#pragma once
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "data/checked_file.h"

namespace millrace {

struct ValueStoreInfo {
  std::string key;  // of what the paths were made of
  int64_t channels = 0, paths = 0, points = 0;
  int64_t classes = 0;  // 0: points have none
  bool operator==(const ValueStoreInfo&) const = default;
};
// meta.json. Error when it is not what was written, or contradicts itself.
ValueStoreInfo read_value_store_header(std::string_view text, const fs::path& name);
std::string value_store_header_text(const ValueStoreInfo& info);

class ValueStoreWriter {
 public:
  // Into `folder`, which must not exist yet.
  ValueStoreWriter(const fs::path& folder, std::string key, int64_t channels, int64_t classes = 0);
  // [points, channels], and [points] where there are classes.
  void add_path(std::span<const float> values, std::span<const int32_t> classes = {});
  void commit();
  int64_t paths() const { return info_.paths; }
  int64_t points() const { return info_.points; }

 private:
  fs::path folder_;
  ValueStoreInfo info_;
  std::unique_ptr<CheckedFileWriter> values_, begins_, classes_;
};

class ValueStore {
 public:
  // Error when the folder is missing, not what was written, or of another key.
  ValueStore(const fs::path& folder, const std::string& key);
  int64_t channels() const { return info_.channels; }
  int64_t paths() const { return info_.paths; }
  int64_t points() const { return info_.points; }
  int64_t classes() const { return info_.classes; }
  // Points [begin, begin + out.size() / channels), by any number of threads.
  void read(int64_t begin, std::span<float> out) const;
  // The classes of points [begin, begin + out.size()), where there are any.
  void read_classes(int64_t begin, std::span<int32_t> out) const;
  // Where paths [first, first + out.size()) begin; the one behind the last begins at points().
  void path_begins(int64_t first, std::span<int64_t> out) const;

 private:
  ValueStoreInfo info_;
  std::unique_ptr<CheckedFile> values_, begins_, classes_;
};

}  // namespace millrace
