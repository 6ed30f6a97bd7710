#include "train/run_folder.h"

#include <sys/random.h>
#include <sys/time.h>

#include <cmath>
#include <ctime>
#include <nlohmann/json.hpp>

#include "core/clock.h"
#include "core/error.h"

namespace millrace {

RunFolder::RunFolder(const fs::path& runs, const std::string& name) : started_ns_(now_ns()) {
  std::time_t now = std::time(nullptr);
  std::tm local{};
  localtime_r(&now, &local);
  char stamp[32];
  std::strftime(stamp, sizeof stamp, "%Y%m%d-%H%M%S", &local);
  uint32_t random = 0;
  if (getrandom(&random, sizeof random, 0) != sizeof random)
    random = static_cast<uint32_t>(started_ns_);
  id_ = fmt::format("{}-{:06x}", stamp, random & 0xffffff);
  path_ = runs / name / id_;
  create_folders(path_);
  metrics_ = OutputFile(path_ / "metrics.jsonl", OutputFile::Mode::append);
  metrics_.write("{\"type\":\"meta\",\"schema\":1}\n");
  // A convenience for people; a file system without links does without it.
  std::error_code ignored;
  const fs::path link = runs / "latest", next = runs / ("latest." + id_);
  fs::create_directory_symlink(fs::path(name) / id_, next, ignored);
  fs::rename(next, link, ignored);
}

void RunFolder::metrics(const std::string& type, int64_t step,
                        const std::map<std::string, double>& values) {
  timeval wall{};
  gettimeofday(&wall, nullptr);
  nlohmann::ordered_json line = {
      {"type", type},
      {"step", step},
      {"time", static_cast<double>(wall.tv_sec) + static_cast<double>(wall.tv_usec) * 1e-6},
      {"elapsed_s", seconds_since(started_ns_)}};
  std::vector<std::string> nonfinite;
  for (const auto& [name, value] : values) {
    if (std::isfinite(value))
      line[name] = value;
    else {
      line[name] = nullptr;
      nonfinite.push_back(name);
    }
  }
  if (!nonfinite.empty()) line["nonfinite"] = nonfinite;
  metrics_.write(line.dump() + "\n");
}

}  // namespace millrace
