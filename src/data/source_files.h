// Which files a data set is made of, and what they hold: paths as a user gives them (files,
// folders, patterns), the format by name or by ending, and a digest of the content.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/error.h"
#include "core/file.h"

namespace millrace {

// A refusal of what the user gave.
Error config_error(std::string what, std::string where, std::string expected, std::string got,
                   std::string remedy);

enum class DataFormat { text, lines, json_lines, csv, tsv, tokens, trajectories };
std::string_view format_name(DataFormat format);
const std::vector<std::string>& format_names();  // of the config key: auto and the formats

// A format of texts that are sequences of their own; text and tokens are one long one.
bool has_records(DataFormat format);
// One whose records have fields with names.
bool has_names(DataFormat format);

// Each path is a file, a folder (its files with an ending of the format) or a pattern (* ? []);
// files of a folder or a pattern come sorted by name. `key` is the config key the paths were given
// under, for messages.
std::vector<fs::path> find_files(const std::vector<std::string>& paths, const std::string& key,
                                 DataFormat format);

// "a.csv", "a.csv and 2 other files", for messages.
std::string file_names(const std::vector<fs::path>& files);

// `wish` by name, or `auto`: by the ending of the first path. Error when the name is none.
DataFormat format_of(const std::string& wish, const std::vector<std::string>& paths);

// What the system says of a file without reading it: another content has another stamp, unless it
// was written within the resolution of the clock (remembered_key in data_request.cc takes care).
struct FileStamp {
  std::string path;  // absolute
  int64_t bytes = 0, modified_ns = 0, changed_ns = 0;
  uint64_t inode = 0;
  bool operator==(const FileStamp&) const = default;
};
FileStamp stamp_of(const fs::path& path);

}  // namespace millrace
