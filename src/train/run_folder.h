// The folder of a run: <runs>/<name>/<time>-<id>/ with run.json, config, metrics.jsonl and
// checkpoints.
#pragma once
#include <map>
#include <string>

#include "core/file.h"

namespace millrace {

class RunFolder {
 public:
  // Makes the folder and points <runs>/latest at it.
  RunFolder(const fs::path& runs, const std::string& name);

  const fs::path& path() const { return path_; }
  const std::string& id() const { return id_; }
  void write(const std::string& file, const std::string& text) const {
    write_file(path_ / file, text);
  }
  // One line of metrics.jsonl. Numbers that are not finite become null and are listed under
  // "nonfinite".
  void metrics(const std::string& type, int64_t step, const std::map<std::string, double>& values);
  void close() { metrics_.close(); }

 private:
  fs::path path_;
  std::string id_;
  OutputFile metrics_;
  int64_t started_ns_;
};

}  // namespace millrace
