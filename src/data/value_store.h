// Trajectories on disk: a folder with the points of all paths end to end (values.bin, float32
// [points, channels], as numpy.fromfile reads them), where each path begins (paths.bin, uint64, one
// more than there are paths), and meta.json, which is written last.
#pragma once
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "data/checked_file.h"

namespace millrace {

class ValueStoreWriter {
 public:
  // Into `folder`, which must not exist yet.
  ValueStoreWriter(const fs::path& folder, std::string key, int64_t channels);
  void add_path(std::span<const float> values);  // [points, channels]
  void commit();
  int64_t paths() const { return paths_; }
  int64_t points() const { return points_; }

 private:
  fs::path folder_;
  std::string key_;
  int64_t channels_, paths_ = 0, points_ = 0;
  std::unique_ptr<CheckedFileWriter> values_, begins_;
};

class ValueStore {
 public:
  // Error when the folder is missing, not what was written, or of another key.
  ValueStore(const fs::path& folder, const std::string& key);
  int64_t channels() const { return channels_; }
  int64_t paths() const { return paths_; }
  int64_t points() const { return points_; }
  // Points [begin, begin + out.size() / channels), by any number of threads.
  void read(int64_t begin, std::span<float> out) const;
  // Where paths [first, first + out.size()) begin; the one behind the last begins at points().
  void path_begins(int64_t first, std::span<int64_t> out) const;

 private:
  int64_t channels_ = 0, paths_ = 0, points_ = 0;
  std::unique_ptr<CheckedFile> values_, begins_;
};

}  // namespace millrace
