// What a run folder tells about its run. Read-only: nothing is locked, written or signalled, and a
// run that is being trained does not notice. The bytes are somebody else's: what is damaged, half
// written or of a newer version is left out and said in `notes`; the rest is shown.
#pragma once
#include <array>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/file.h"
#include "exec/ledger.h"

namespace millrace {

inline constexpr double kMissing = std::numeric_limits<double>::quiet_NaN();

// A line of metrics.jsonl.
struct MetricLine {
  std::string type;  // "meta", "train", "eval", "epoch", "skipped", "rollback"
  int64_t step = 0, schema = 0;
  double time = kMissing, elapsed = kMissing;
  std::map<std::string, double> values;  // finite ones
  double value(const std::string& name) const;
};
// Error when it is none; `where` names it.
MetricLine parse_metric_line(std::string_view line, const std::string& where);

// The updates since the line before.
struct TrainPoint {
  int64_t step = 0;
  double time = kMissing, elapsed = kMissing;  // seconds since 1970; since the run began
  double loss = kMissing, tokens_per_second = kMissing, step_seconds = kMissing;
  std::array<double, kOwners> shares{};  // of the time, by ledger owner
};

struct EvalPoint {
  int64_t step = 0;
  double loss = kMissing;
};

struct RecordedRun {
  fs::path folder;
  // run.json
  std::string id, name, status, machine, device, precision, version;
  int64_t step = 0, total = 0, parameters = 0;
  std::optional<double> seconds, best_metric;
  int64_t best_step = 0, peak_resident_bytes = 0, device_bytes = 0;

  std::map<std::string, std::string> config;  // config.resolved.yaml: a.b -> c
  std::vector<TrainPoint> train;              // metrics.jsonl
  std::vector<EvalPoint> evals;
  std::map<std::string, double> latest;  // of every metric the newest value
  int64_t skipped = 0, rollbacks = 0;
  std::vector<std::string> log;    // the last lines of train.log
  std::vector<std::string> notes;  // what could not be read

  // running, finished, stopped, failed, diverged, crashed (nobody trains there any more, and it
  // never said that it ended) or unknown.
  std::string state;

  double latest_of(const std::string& name) const;
  int64_t updates() const;  // done so far
  // Until the last update at the pace of this run; nothing unless it runs.
  std::optional<double> seconds_left() const;
};

// Adds what run.json tells. Error when it is no JSON object.
void parse_run_json(std::string_view text, const std::string& where, RecordedRun& run);
// a.b -> c, lists as they would be written. Error as parse_yaml.
std::map<std::string, std::string> flat_config(std::string_view text, const std::string& where);

// The folder a person means, as RunFolder::find has it, and also one that has lost its run.json.
fs::path find_recorded_run(const fs::path& runs, const std::string& what);

// Reads a run folder, again and again: of metrics.jsonl only what is new.
class RunReader {
 public:
  explicit RunReader(fs::path folder);
  const RecordedRun& read();
  void add_metrics(std::string_view bytes);  // the next of metrics.jsonl, cut anywhere
  const RecordedRun& run() const { return run_; }

 private:
  void read_metrics();
  void add_line(std::string_view line);
  void forget_metrics();

  RecordedRun run_;
  int64_t offset_ = 0;  // what was read of metrics.jsonl
  int64_t damaged_ = 0, newest_schema_ = 0;
  std::string rest_;  // a line that has no end yet
  bool rest_is_too_long_ = false, begins_late_ = false;
};

// The last `count` lines of a text that may start in the middle of one, fit for a terminal.
std::vector<std::string> last_lines(std::string_view text, size_t count);

}  // namespace millrace
