#include "train/run_folder.h"

#include <sys/random.h>
#include <sys/time.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "core/clock.h"
#include "core/error.h"
#include "io/quote.h"

namespace millrace {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kLatest = "latest";  // a link

double wall_seconds() {
  timeval wall{};
  gettimeofday(&wall, nullptr);
  return static_cast<double>(wall.tv_sec) + static_cast<double>(wall.tv_usec) * 1e-6;
}

std::string this_process() {
  char host[256] = "?";
  gethostname(host, sizeof host - 1);
  return fmt::format("process {} on {} since {}", getpid(), host, local_time("%Y-%m-%d %H:%M:%S"));
}

// No exceptions: what is asked for may be a name that no file can have.
bool is_run(const fs::path& folder) {
  std::error_code error;
  return fs::is_regular_file(folder / "run.json", error);
}

}  // namespace

RunFolder::RunFolder(fs::path path)
    : path_(std::move(path)), checkpoints_(path_ / "checkpoints"), started_ns_(now_ns()) {}

void RunFolder::lock() {
  std::string owner;
  if (!lock_.take(path_ / "lock", this_process(), &owner))
    throw Error({.code = ErrorCode::config,
                 .what = "another process trains in this run folder",
                 .where = path_.string(),
                 .expected = "a run that nobody works on",
                 .got = printable(owner, 200),
                 .remedy = "wait for it, stop it (kill -TERM), or start a run of your own"});
  dead_owner_ = printable(owner, 200);
  checkpoints_.sweep();
  log_ = OutputFile(path_ / "train.log", OutputFile::Mode::append);
}

std::unique_ptr<RunFolder> RunFolder::create(const fs::path& runs, const std::string& name,
                                             bool is_latest) {
  uint32_t random = 0;
  if (getrandom(&random, sizeof random, 0) != sizeof random)
    random = static_cast<uint32_t>(now_ns());
  const std::string id = fmt::format("{}-{:06x}", local_time("%Y%m%d-%H%M%S"), random & 0xffffff);
  std::unique_ptr<RunFolder> run(new RunFolder(runs / name / id));
  create_folders(run->path_);
  run->lock();
  try {
    if (is_latest) replace_link(runs / kLatest, fs::path(name) / id);
  } catch (const Error&) {
    // A convenience for people; a file system without links does without it.
  }
  return run;
}

std::unique_ptr<RunFolder> RunFolder::open(const fs::path& folder) {
  std::unique_ptr<RunFolder> run(new RunFolder(folder));
  run->lock();
  return run;
}

std::optional<fs::path> RunFolder::newest(const fs::path& runs, const std::string& name) {
  std::vector<fs::path> found;
  std::error_code error;
  for (fs::directory_iterator entry(runs / name, error), end; !error && entry != end;
       entry.increment(error))
    if (is_run(entry->path()) && entry->path().filename() != kLatest)
      found.push_back(entry->path());
  if (found.empty()) return std::nullopt;
  return *std::max_element(found.begin(), found.end());  // names begin with the time
}

fs::path RunFolder::find(const fs::path& runs, const std::string& what) {
  std::error_code error;
  // What a shell completes ends with a slash.
  const std::string name = what.substr(0, what.find_last_not_of('/') + 1);
  for (const fs::path& base : {fs::path(name), runs / name}) {
    if (name.empty()) break;
    if (is_run(base)) return fs::canonical(base);
    // <run>/checkpoints/checkpoint-120
    const fs::path above = base.parent_path().parent_path();
    if (fs::is_directory(base, error) && !above.empty() && is_run(above)) return above;
    if (const auto newest_run = newest(base, "")) return *newest_run;
  }
  throw Error({.code = ErrorCode::config,
               .what = "no run at " + quote(what),
               .where = printable(what, 300),
               .expected = "a run folder (with run.json), the name of a run under " +
                           quote(runs.string()) + ", or a checkpoint of a run",
               .got = fs::is_directory(what, error) ? "a folder without run.json"
                      : fs::exists(what, error)     ? "a file"
                                                    : "nothing there",
               .remedy = "`millrace runs` lists the runs"});
}

void RunFolder::set_config(const std::string& resolved) {
  config_ = resolved;
  write("config.resolved.yaml", resolved);
}

void RunFolder::begin_metrics(int64_t metrics_bytes, int64_t step, double seconds,
                              bool tensorboard) {
  const fs::path path = path_ / "metrics.jsonl";
  earlier_seconds_ = seconds;
  started_ns_ = now_ns();
  if (fs::exists(path)) {
    metrics_bytes_ = static_cast<int64_t>(fs::file_size(path));
    if (metrics_bytes_ > metrics_bytes) truncate_file(path, metrics_bytes_ = metrics_bytes);
  }
  metrics_ = OutputFile(path, OutputFile::Mode::append);
  if (metrics_bytes_ == 0) {
    const std::string first = "{\"type\":\"meta\",\"schema\":1}\n";
    metrics_.write(first);
    metrics_bytes_ = static_cast<int64_t>(first.size());
  }
  if (tensorboard) {
    create_folders(path_ / "tb");
    events_ = std::make_unique<EventFile>(path_ / "tb", step + 1, wall_seconds());
  }
}

void RunFolder::metrics(const std::string& type, int64_t step,
                        const std::map<std::string, double>& values) {
  const double wall = wall_seconds();
  Json line = {{"type", type},
               {"step", step},
               {"time", wall},
               {"elapsed_s", earlier_seconds_ + seconds_since(started_ns_)}};
  std::vector<std::string> nonfinite;
  for (const auto& [name, value] : values) {
    line[name] = std::isfinite(value) ? Json(value) : Json(nullptr);
    if (!std::isfinite(value)) nonfinite.push_back(name);
  }
  if (!nonfinite.empty()) line["nonfinite"] = nonfinite;
  const std::string text = line.dump() + "\n";
  try {
    metrics_.write(text);
    metrics_bytes_ += static_cast<int64_t>(text.size());
  } catch (const Error& error) {
    fault_ = error.what();
    try {
      truncate_file(path_ / "metrics.jsonl", metrics_bytes_);  // no half lines
    } catch (const Error&) {
    }
  }
  try {
    if (events_) events_->scalars(values, step, wall);
    if (events_) events_->flush();
  } catch (const Error& error) {
    fault_ = error.what();
    events_.reset();  // nothing may follow a record that was cut
  }
}

std::string RunFolder::take_fault() { return std::exchange(fault_, ""); }

void RunFolder::sample(int64_t step, const std::string& text) {
  // TensorBoard shows Markdown: indented, the text stays as it is.
  std::string indented = "    ";
  for (const char c : text) indented += c == '\n' ? "\n    " : std::string(1, c);
  try {
    if (events_) events_->text("sample", step, wall_seconds(), indented);
  } catch (const Error& error) {
    fault_ = error.what();
    events_.reset();
  }
}

int64_t RunFolder::sync_metrics() {
  metrics_.sync();
  return metrics_bytes_;
}

void RunFolder::log(const std::string& line) {
  try {
    log_.write(fmt::format("{}  {}\n", local_time("%Y-%m-%dT%H:%M:%S%z"), line));
  } catch (const Error&) {
    // A log that cannot be written must not end the training; the checkpoint says it loudly.
  }
}

void RunFolder::close() {
  if (metrics_.is_open()) metrics_.close();
  if (events_) events_->close();
  lock_.give_back();
}

}  // namespace millrace
