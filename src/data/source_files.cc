#include "data/source_files.h"

#include <fmt/ranges.h>
#include <glob.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "core/error.h"
#include "core/text.h"
#include "io/quote.h"

namespace millrace {
namespace {

struct FormatRow {
  DataFormat format;
  const char* name;
  std::vector<std::string_view> endings;  // of files in a folder; the first ones mean the format
  size_t telling;                         // how many of them do
};

const std::vector<FormatRow>& rows() {
  static const std::vector<FormatRow> table = {
      {DataFormat::text, "text", {".txt"}, 0},
      {DataFormat::lines, "lines", {".txt"}, 0},
      {DataFormat::json_lines, "jsonl", {".jsonl", ".ndjson"}, 2},
      {DataFormat::csv, "csv", {".csv"}, 1},
      {DataFormat::tsv, "tsv", {".tsv"}, 1},
      {DataFormat::tokens, "tokens", {".bin"}, 1},
      {DataFormat::trajectories, "trajectories", {".safetensors", ".txt", ".csv"}, 1}};
  return table;
}

const FormatRow& row_of(DataFormat format) {
  return *std::find_if(rows().begin(), rows().end(),
                       [&](const FormatRow& row) { return row.format == format; });
}

// ".csv" of a.csv, a.csv.gz and a.csv.zst.
std::string ending_of(const fs::path& path) {
  const std::string last = path.extension().string();
  return last == ".gz" || last == ".zst" ? path.stem().extension().string() : last;
}

std::vector<fs::path> files_in(const fs::path& folder, const std::string& key, DataFormat format) {
  const auto& endings = row_of(format).endings;
  std::vector<fs::path> files;
  std::error_code fault;
  for (fs::directory_iterator it(folder, fault), end; !fault && it != end; it.increment(fault)) {
    std::error_code ignored;  // a dangling link is not a file
    if (std::find(endings.begin(), endings.end(), ending_of(it->path())) != endings.end() &&
        it->is_regular_file(ignored))
      files.push_back(it->path());
  }
  if (fault)
    throw config_error(fmt::format("cannot list the folder {}", folder.string()), key,
                       "a readable folder", fault.message(), "check its permissions");
  if (files.empty())
    throw config_error(
        fmt::format("no {} in the folder {}", format_name(format), folder.string()), key,
        fmt::format("at least one file *{0}, *{0}.gz or *{0}.zst", fmt::join(endings, ", *")),
        "none", "name the files themselves, or a pattern such as `folder/*`");
  std::sort(files.begin(), files.end());
  return files;
}

std::vector<fs::path> files_matching(const std::string& pattern, const std::string& key) {
  glob_t found{};
  const int status = glob(pattern.c_str(), 0, nullptr, &found);
  std::vector<fs::path> files;
  for (size_t i = 0; i < found.gl_pathc; ++i) {
    std::error_code ignored;
    if (fs::is_regular_file(found.gl_pathv[i], ignored)) files.emplace_back(found.gl_pathv[i]);
  }
  globfree(&found);
  if ((status != 0 && status != GLOB_NOMATCH) || files.empty())
    throw config_error(fmt::format("no file matches {}", pattern), key, "at least one file", "none",
                       "check the pattern; a relative one starts at the current folder");
  std::sort(files.begin(), files.end());
  return files;
}

}  // namespace

Error config_error(std::string what, std::string where, std::string expected, std::string got,
                   std::string remedy) {
  return Error({.code = ErrorCode::config,
                .what = std::move(what),
                .where = std::move(where),
                .expected = std::move(expected),
                .got = std::move(got),
                .remedy = std::move(remedy)});
}

std::string_view format_name(DataFormat format) { return row_of(format).name; }

const std::vector<std::string>& format_names() {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> list{"auto"};
    for (const FormatRow& row : rows()) list.emplace_back(row.name);
    return list;
  }();
  return names;
}

bool has_records(DataFormat format) {
  return format != DataFormat::text && format != DataFormat::tokens &&
         format != DataFormat::trajectories;
}

bool has_names(DataFormat format) { return has_records(format) && format != DataFormat::lines; }

std::vector<fs::path> find_files(const std::vector<std::string>& paths, const std::string& key,
                                 DataFormat format) {
  if (paths.empty())
    throw config_error("no data given", key, "a file, a folder or a pattern", "nothing",
                       fmt::format("set {}", key));
  std::vector<fs::path> files;
  for (const std::string& path : paths) {
    if (path.starts_with("builtin:"))
      throw config_error(fmt::format("{} is no file", path), key,
                         "files, or builtin:grammar alone for data.train", path,
                         "give files only, or data.train=builtin:grammar only");
    std::error_code fault;
    const fs::file_status status = fs::status(path, fault);
    std::vector<fs::path> found;
    if (fs::is_regular_file(status)) {
      found = {path};
    } else if (fs::is_directory(status)) {
      found = files_in(path, key, format);
    } else if (fs::exists(status)) {
      throw config_error(fmt::format("{} is not a regular file", path), key, "a file or a folder",
                         "a device, pipe or socket", "copy the data into a file first");
    } else if (path.find_first_of("*?[") != std::string::npos) {
      found = files_matching(path, key);
    } else {
      throw config_error(fmt::format("cannot open `{}`", path), key,
                         "a text file, a folder of *.txt files, or a pattern",
                         fault ? fault.message() : "nothing there",
                         "check the spelling; a relative path starts at the current folder");
    }
    if (std::all_of(found.begin(), found.end(),
                    [](const fs::path& file) { return stamp_of(file).bytes == 0; }))
      throw config_error(fmt::format("{} is empty", path), key, "data", "0 bytes",
                         "leave it out, or put something into it");
    files.insert(files.end(), found.begin(), found.end());
  }
  return files;
}

std::string file_names(const std::vector<fs::path>& files) {
  if (files.empty()) return "no file";
  std::string names = files[0].string();
  if (files.size() > 1)
    names += fmt::format(" and {} other file{}", files.size() - 1, files.size() > 2 ? "s" : "");
  return names;
}

DataFormat format_of(const std::string& wish, const std::vector<std::string>& paths) {
  for (const FormatRow& row : rows()) {
    if (wish == row.name) return row.format;
    const auto end = row.endings.begin() + static_cast<ptrdiff_t>(row.telling);
    if (wish == "auto" && !paths.empty() &&
        std::find(row.endings.begin(), end, ending_of(paths[0])) != end)
      return row.format;
  }
  if (wish == "auto") return DataFormat::text;
  const std::string near = nearest(wish, format_names());
  throw config_error("unknown data format", "data.format",
                     fmt::format("one of {}", fmt::join(format_names(), ", ")), quote(wish),
                     near.empty() ? "data.format=auto" : "did you mean `" + near + "`?");
}

FileStamp stamp_of(const fs::path& path) {
  struct stat s {};
  if (stat(path.c_str(), &s) != 0)
    throw config_error("cannot read a data file", path.string(), "a readable file",
                       std::strerror(errno), "check the path and its permissions");
  auto ns = [](const timespec& t) { return int64_t{t.tv_sec} * 1'000'000'000 + t.tv_nsec; };
  return {fs::absolute(path).lexically_normal().string(), s.st_size, ns(s.st_mtim), ns(s.st_ctim),
          s.st_ino};
}

}  // namespace millrace
