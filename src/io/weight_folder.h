// The weights of a model folder: model.safetensors, or several files with
// model.safetensors.index.json, which says what stands where. The index is a file from outside like
// any other: it cannot name a file outside the folder.
#pragma once
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "io/safetensors.h"

namespace millrace {

// The index's text: which file has which tensor. Error names `where` for anything else, and for a
// name that is not of a file in the same folder.
std::map<std::string, std::string> parse_weight_index(std::string_view text,
                                                      const std::string& where);

class WeightFolder {
 public:
  // Error when there are no weights, the index or a file is damaged, or two files have a tensor of
  // one name.
  explicit WeightFolder(const fs::path& folder);

  struct Found {
    const SafetensorsFile* file = nullptr;
    const SafetensorsFile::Entry* entry = nullptr;
    explicit operator bool() const { return entry != nullptr; }
  };
  Found find(std::string_view name) const;
  std::vector<std::string> names() const;         // of all tensors in its files
  const fs::path& path() const { return path_; }  // the one file, or the index

 private:
  void read_index(const fs::path& folder);

  fs::path path_;
  std::vector<std::unique_ptr<SafetensorsFile>> files_;
  std::map<std::string, const SafetensorsFile*, std::less<>> file_of_;  // empty with one file
};

}  // namespace millrace
