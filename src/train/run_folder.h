// The folder of a run: <runs>/<name>/<time>-<id>/
//
//   run.json              what the run is and how it stands, replaced as a whole
//   config.yaml  config.resolved.yaml  overrides.txt  plan.txt
//   metrics.jsonl         one line per report; tb/ the same for TensorBoard
//   train.log             what a person would have seen
//   checkpoints/          see train/checkpoint.h
//   lock                  held while a process trains here
#pragma once
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/file.h"
#include "io/event_file.h"
#include "train/checkpoint.h"

namespace millrace {

class RunFolder {
 public:
  // Makes a new folder, or takes over an existing one. Error when another process trains in it. The
  // newest is `latest`, unless it is none to go on with.
  static std::unique_ptr<RunFolder> create(const fs::path& runs, const std::string& name,
                                           bool is_latest = true);
  static std::unique_ptr<RunFolder> open(const fs::path& folder);
  // The folder a person means: a run folder, the newest run of a name under `runs` or in a folder,
  // or a checkpoint in a run folder. Error when there is none.
  static fs::path find(const fs::path& runs, const std::string& what);
  // The newest run of that name, or nothing.
  static std::optional<fs::path> newest(const fs::path& runs, const std::string& name);

  const fs::path& path() const { return path_; }
  std::string id() const { return path_.filename().string(); }
  const CheckpointStore& checkpoints() const { return checkpoints_; }
  const std::string& dead_owner() const { return dead_owner_; }  // who died here, if somebody did

  void write(const std::string& file, const std::string& text) const {
    write_file(path_ / file, text);
  }
  // The settings in force, which every checkpoint carries along.
  void set_config(const std::string& resolved);
  const std::string& config() const { return config_; }

  // Begins to report: what stands in metrics.jsonl beyond `metrics_bytes` was written by a process
  // that died before it could save, and is cut off. `seconds` were trained in earlier sittings.
  void begin_metrics(int64_t metrics_bytes, int64_t step, double seconds, bool tensorboard);
  // One line of metrics.jsonl. Numbers that are not finite become null and are listed under
  // "nonfinite". A disk that refuses does not end the training: take_fault() says what was lost.
  void metrics(const std::string& type, int64_t step, const std::map<std::string, double>& values);
  void sample(int64_t step, const std::string& text);
  int64_t sync_metrics();  // flushed to disk; returns the length
  void log(const std::string& line);
  std::string take_fault();  // what could not be written since the last call; empty: nothing
  void close();

 private:
  explicit RunFolder(fs::path path);
  void lock();

  fs::path path_;
  CheckpointStore checkpoints_;
  LockFile lock_;
  std::string dead_owner_, config_, fault_;
  OutputFile metrics_, log_;
  std::unique_ptr<EventFile> events_;
  int64_t metrics_bytes_ = 0;
  int64_t started_ns_;
  double earlier_seconds_ = 0;
};

}  // namespace millrace
