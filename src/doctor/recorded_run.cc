#include "doctor/recorded_run.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "core/text.h"
#include "io/json_parser.h"
#include "io/quote.h"
#include "io/yaml.h"
#include "train/run_folder.h"

namespace millrace {
namespace {

constexpr int64_t kSchema = 1;             // of metrics.jsonl, as this version writes it
constexpr size_t kLongestLine = 1 << 20;   // a line has some 40 numbers
constexpr size_t kMostNames = 1000;        // of metrics
constexpr int64_t kMostMetrics = 1 << 28;  // of a longer file only the end is read
constexpr int64_t kPiece = 1 << 20;        // read at once
constexpr int64_t kLogTail = 1 << 14;      // of train.log
constexpr size_t kLogLines = 100;          // more than a terminal has
constexpr double kLargestStep = 9.0e15;    // numbers that a double counts exactly
constexpr size_t kLongestName = 100;

double number_of(const nlohmann::json& value) {
  if (!value.is_number()) return kMissing;
  const double number = value.get<double>();
  return std::isfinite(number) ? number : kMissing;
}

// A count; 0 for anything that is none.
int64_t count_of(const nlohmann::json& value) {
  const double number = number_of(value);
  return number >= 0 && number <= kLargestStep ? static_cast<int64_t>(number) : 0;
}

std::string text_of(const nlohmann::json& object, const char* field) {
  const auto found = object.find(field);
  return found != object.end() && found->is_string()
             ? printable(found->get_ref<const std::string&>(), kLongestName)
             : "";
}

nlohmann::json parse_object(std::string_view text, const std::string& where) {
  std::string got = "something else";
  try {
    nlohmann::json json = parse_json(text);
    if (json.is_object()) return json;
    got = json.type_name();
  } catch (const nlohmann::json::exception& error) {
    got = printable(error.what(), 200);
  }
  throw Error({.code = ErrorCode::failure,
               .what = "not a JSON object",
               .where = where,
               .expected = "a JSON object, as Millrace writes it",
               .got = got,
               .remedy = "the file is damaged, or not yet whole"});
}

std::string flat_text(const YamlNode& node) {
  if (node.kind != YamlNode::Kind::list) return printable(node.text, 200);
  std::string text;
  for (const YamlNode& item : node.items) text += (text.empty() ? "" : ", ") + flat_text(item);
  return "[" + printable(text, 200) + "]";
}

void flatten(const YamlNode& node, const std::string& prefix,
             std::map<std::string, std::string>& out) {
  for (const YamlEntry& entry : node.entries) {
    const std::string path =
        (prefix.empty() ? "" : prefix + ".") + printable(entry.key, kLongestName);
    if (entry.value.kind == YamlNode::Kind::map)
      flatten(entry.value, path, out);
    else
      out[path] = flat_text(entry.value);
  }
}

// A folder, a pipe or nothing at that place must not stop us.
bool is_file(const fs::path& path) {
  std::error_code error;
  return fs::is_regular_file(path, error);
}

}  // namespace

double MetricLine::value(const std::string& name) const {
  const auto found = values.find(name);
  return found == values.end() ? kMissing : found->second;
}

MetricLine parse_metric_line(std::string_view line, const std::string& where) {
  const nlohmann::json json = parse_object(line, where);
  MetricLine result;
  result.type = text_of(json, "type");
  for (const auto& [name, value] : json.items()) {
    if (name == "step") result.step = count_of(value);
    if (name == "schema") result.schema = count_of(value);
    if (name == "time") result.time = number_of(value);
    if (name == "elapsed_s") result.elapsed = number_of(value);
    // A metric is called group/name.
    const double number = number_of(value);
    if (name.find('/') == name.npos || !std::isfinite(number)) continue;
    if (result.values.size() < kMostNames) result.values[printable(name, kLongestName)] = number;
  }
  return result;
}

void parse_run_json(std::string_view text, const std::string& where, RecordedRun& run) {
  const nlohmann::json json = parse_object(text, where);
  auto count = [&](const char* field) { return json.contains(field) ? count_of(json[field]) : 0; };
  auto number = [&](const char* field) -> std::optional<double> {
    const double value = json.contains(field) ? number_of(json[field]) : kMissing;
    return std::isfinite(value) ? std::optional(value) : std::nullopt;
  };
  run.id = text_of(json, "id");
  run.name = text_of(json, "name");
  run.status = text_of(json, "status");
  run.machine = text_of(json, "machine");
  run.device = text_of(json, "device");
  run.precision = text_of(json, "precision");
  run.version = text_of(json, "version");
  run.step = count("step");
  run.total = count("total");
  run.parameters = count("parameters");
  run.seconds = number("seconds");
  run.best_metric = number("best_metric");
  run.best_step = count("best_step");
  run.peak_resident_bytes = count("peak_resident_bytes");
  run.device_bytes = count("device_bytes");
}

std::map<std::string, std::string> flat_config(std::string_view text, const std::string& where) {
  std::map<std::string, std::string> config;
  flatten(parse_yaml(text, where), "", config);
  return config;
}

fs::path find_recorded_run(const fs::path& runs, const std::string& what) {
  if (!is_file(fs::path(what) / "run.json") && is_file(fs::path(what) / "metrics.jsonl"))
    return what;
  return RunFolder::find(runs, what);
}

double RecordedRun::latest_of(const std::string& metric) const {
  const auto found = latest.find(metric);
  return found == latest.end() ? kMissing : found->second;
}

int64_t RecordedRun::updates() const {
  // run.json is written at the start and at the end; in between the metrics know more.
  return state == "finished" || state == "stopped" || train.empty() ? step : train.back().step;
}

std::optional<double> RecordedRun::seconds_left() const {
  if (state != "running" || train.size() < 2) return std::nullopt;
  // The last half hour, with what stands between the updates: validation and checkpoints.
  const TrainPoint& last = train.back();
  const auto from = std::find_if(train.begin(), train.end() - 2, [&](const TrainPoint& p) {
    return p.elapsed >= last.elapsed - 1800 && p.step < last.step;
  });
  const auto steps = static_cast<double>(last.step - from->step);
  const double pace = (last.elapsed - from->elapsed) / steps;
  const double left = pace * static_cast<double>(total - last.step);
  return steps > 0 && left >= 0 && std::isfinite(left) ? std::optional(left) : std::nullopt;
}

RunReader::RunReader(fs::path folder) { run_.folder = std::move(folder); }

const RecordedRun& RunReader::read() {
  run_.notes.clear();
  auto attempt = [&](const char* file, auto&& reader) {
    const fs::path path = run_.folder / file;
    try {
      if (!is_file(path))
        run_.notes.push_back(fmt::format("no {}", file));
      else
        reader(path);
    } catch (const Error& error) {
      run_.notes.push_back(
          fmt::format("{}: {}: {}", file, error.fields().what, printable(error.fields().got, 120)));
    }
  };
  attempt("run.json", [&](const fs::path& path) {
    parse_run_json(read_file(path, kMaxYamlBytes), "run.json", run_);
  });
  attempt("config.resolved.yaml", [&](const fs::path& path) {
    // Once: it hardly changes, and YAML takes milliseconds.
    if (run_.config.empty()) run_.config = flat_config(read_file(path, kMaxYamlBytes), path);
  });
  attempt("metrics.jsonl", [&](const fs::path&) { read_metrics(); });
  attempt("train.log", [&](const fs::path& path) {
    const InputFile file(path);
    const int64_t size = file.size(), begin = std::max<int64_t>(0, size - kLogTail);
    std::string text(static_cast<size_t>(size - begin), '\0');
    text.resize(file.read_some_at(begin, std::as_writable_bytes(std::span(text))));
    if (begin > 0) text.erase(0, std::min(text.find('\n'), text.size()));
    run_.log = last_lines(text, kLogLines);
  });

  if (newest_schema_ > kSchema)
    run_.notes.push_back(
        fmt::format("metrics.jsonl was written by a newer version (schema {}, this one knows {}): "
                    "shown as far as it is understood",
                    newest_schema_, kSchema));
  if (damaged_ > 0)
    run_.notes.push_back(fmt::format("metrics.jsonl: {} damaged line{} left out", damaged_,
                                     damaged_ > 1 ? "s" : ""));
  if (begins_late_) run_.notes.push_back("metrics.jsonl is very long: only its end is shown");
  const bool taken = run_.status == "running" && is_file(run_.folder / "lock") &&
                     LockFile::is_taken(run_.folder / "lock");
  run_.state = run_.status == "done"      ? "finished"
               : run_.status.empty()      ? "unknown"
               : run_.status != "running" ? run_.status
               : taken                    ? "running"
                                          : "crashed";
  if (!rest_.empty() && run_.state != "running")
    run_.notes.push_back("metrics.jsonl: the last line is cut off");
  return run_;
}

void RunReader::forget_metrics() {
  run_.train.clear();
  run_.evals.clear();
  run_.latest.clear();
  run_.skipped = run_.rollbacks = 0;
  offset_ = damaged_ = newest_schema_ = 0;
  rest_.clear();
  rest_is_too_long_ = begins_late_ = false;
}

void RunReader::read_metrics() {
  const InputFile file(run_.folder / "metrics.jsonl");
  const int64_t size = file.size();
  if (size < offset_) forget_metrics();  // a resumed run cuts off what was not saved
  if (size - offset_ > kMostMetrics) {
    forget_metrics();
    offset_ = size - kMostMetrics;
    begins_late_ = rest_is_too_long_ = true;  // up to the next line
  }
  std::string piece;
  while (offset_ < size) {
    piece.resize(static_cast<size_t>(std::min(kPiece, size - offset_)));
    piece.resize(file.read_some_at(offset_, std::as_writable_bytes(std::span(piece))));
    if (piece.empty()) break;
    offset_ += static_cast<int64_t>(piece.size());
    add_metrics(piece);
  }
}

void RunReader::add_metrics(std::string_view bytes) {
  size_t begin = 0;
  for (size_t end; (end = bytes.find('\n', begin)) != bytes.npos; begin = end + 1) {
    rest_.append(bytes.substr(begin, end - begin));
    if (!rest_is_too_long_) add_line(rest_);
    rest_.clear();
    rest_is_too_long_ = false;
  }
  rest_.append(bytes.substr(begin));
  if (rest_.size() > kLongestLine) {
    damaged_ += rest_is_too_long_ ? 0 : 1;
    rest_is_too_long_ = true;
    rest_.clear();
  }
}

void RunReader::add_line(std::string_view line) {
  if (line.find_first_not_of(" \t\r") == line.npos) return;
  MetricLine m;
  try {
    m = parse_metric_line(line, "metrics.jsonl");
  } catch (const Error&) {
    ++damaged_;
    return;
  }
  newest_schema_ = std::max(newest_schema_, m.schema);
  run_.skipped += m.type == "skipped" ? 1 : 0;
  run_.rollbacks += m.type == "rollback" ? 1 : 0;
  if (m.type == "train") {
    TrainPoint point{m.step,
                     m.time,
                     m.elapsed,
                     m.value("train/loss"),
                     m.value("throughput/tokens_per_sec"),
                     m.value("time/step"),
                     {}};
    for (size_t i = 0; i < kOwners; ++i) {
      const double share = m.value(fmt::format("time/{}", owner_name(static_cast<Owner>(i))));
      point.shares[i] = std::isfinite(share) ? std::clamp(share, 0.0, 1.0) : 0;
    }
    run_.train.push_back(point);
  }
  if (m.type == "eval") run_.evals.push_back({m.step, m.value("eval/loss")});
  if (m.type == "train" || m.type == "eval")
    for (const auto& [name, value] : m.values)
      if (run_.latest.size() < kMostNames || run_.latest.contains(name)) run_.latest[name] = value;
}

std::vector<std::string> last_lines(std::string_view text, size_t count) {
  std::vector<std::string> lines;
  while (!text.empty() && lines.size() < count) {
    if (text.ends_with('\n')) text.remove_suffix(1);
    const size_t begin = text.rfind('\n') == text.npos ? 0 : text.rfind('\n') + 1;
    lines.push_back(printable(text.substr(begin), 1000));
    text = text.substr(0, begin);
  }
  std::reverse(lines.begin(), lines.end());
  return lines;
}

}  // namespace millrace
