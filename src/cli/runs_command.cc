// millrace runs: what was trained here, and how it stands.
#include <algorithm>
#include <nlohmann/json.hpp>

#include "cli/commands.h"
#include "cli/standard_output.h"
#include "core/text.h"
#include "io/quote.h"
#include "train/checkpoint.h"

namespace millrace {
namespace {

using Json = nlohmann::ordered_json;

struct Row {
  std::string run, state;
  int64_t step = 0, total = 0;
  std::optional<double> best;
  double seconds = 0;
  int64_t checkpoints = 0;
};

template <typename T>
T value_or(const Json& json, const char* field, T otherwise) {
  const auto found = json.find(field);
  if (found == json.end()) return otherwise;
  if constexpr (std::is_same_v<T, std::string>)
    return found->is_string() ? found->get<std::string>() : otherwise;
  else
    return found->is_number() ? found->get<T>() : otherwise;
}

std::optional<Row> read_run(const fs::path& folder, const std::string& name) {
  try {
    const Json json = Json::parse(read_file(folder / "run.json", 1 << 20));
    if (!json.is_object()) return std::nullopt;
    Row row;
    row.run = name + "/" + folder.filename().string();
    row.state = printable(value_or<std::string>(json, "status", "?"), 20);
    row.step = value_or<int64_t>(json, "step", 0);
    row.total = value_or<int64_t>(json, "total", 0);
    row.seconds = value_or<double>(json, "seconds", 0);
    if (json.contains("best_metric")) row.best = value_or<double>(json, "best_metric", 0);
    const CheckpointStore store(folder / "checkpoints");
    const auto checkpoints = store.list();
    row.checkpoints = static_cast<int64_t>(checkpoints.size());
    if (row.state == "running") {
      if (!LockFile::is_taken(folder / "lock")) row.state = "died";
      // run.json is written at the start and the end; in between the newest checkpoint knows more.
      if (!checkpoints.empty()) {
        const auto state = TrainerState::of_checkpoint(checkpoints[0]);
        row.step = state.step;
        row.seconds = state.seconds;
        if (state.has_best) row.best = state.best_metric;
      }
    }
    return row;
  } catch (const std::exception&) {
    return std::nullopt;  // not a run, or one that is just being made
  }
}

}  // namespace

int runs_command(const RunsArguments& arguments) {
  if (!fs::is_directory(arguments.folder))
    throw Error({.code = ErrorCode::config,
                 .what = "no folder of runs at " + quote(arguments.folder),
                 .where = arguments.folder,
                 .expected = "the folder that runs_folder names",
                 .got = "nothing there",
                 .remedy = "millrace runs FOLDER, or train something first"});
  std::vector<Row> rows;
  std::error_code error;
  for (const auto& name : fs::directory_iterator(arguments.folder, error)) {
    if (name.is_symlink() || !name.is_directory()) continue;
    for (const auto& folder : fs::directory_iterator(name.path(), error))
      if (auto row = read_run(folder.path(), name.path().filename().string()))
        rows.push_back(std::move(*row));
  }
  std::sort(rows.begin(), rows.end(), [](const Row& a, const Row& b) { return a.run < b.run; });
  if (arguments.json) {
    Json list = Json::array();
    for (const Row& r : rows)
      list.push_back({{"run", r.run},
                      {"state", r.state},
                      {"step", r.step},
                      {"total", r.total},
                      {"best", r.best ? Json(*r.best) : Json(nullptr)},
                      {"seconds", r.seconds},
                      {"checkpoints", r.checkpoints}});
    put(list.dump(2, ' ', false, Json::error_handler_t::replace) + "\n");
    return 0;
  }
  if (rows.empty()) {
    put(fmt::format("no runs in {}\n", arguments.folder));
    return 0;
  }
  size_t width = 3;
  for (const Row& r : rows) width = std::max(width, r.run.size());
  std::string out = fmt::format("{:<{}}  {:<8} {:>17} {:>9} {:>9} {:>11}\n", "run", width, "state",
                                "updates", "best", "time", "checkpoints");
  for (const Row& r : rows)
    out += fmt::format("{:<{}}  {:<8} {:>17} {:>9} {:>9} {:>11}\n", r.run, width, r.state,
                       with_commas(r.step) + "/" + with_commas(r.total),
                       r.best ? fmt::format("{:.4f}", *r.best) : "-", human_seconds(r.seconds),
                       r.checkpoints);
  put(out);
  return 0;
}

}  // namespace millrace
