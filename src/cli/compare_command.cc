// millrace compare: where the time of an update changed from one run to another.
#include <unistd.h>

#include <cstdlib>
#include <nlohmann/json.hpp>

#include "cli/commands.h"
#include "cli/standard_output.h"
#include "core/text.h"
#include "doctor/comparison.h"
#include "io/quote.h"

namespace millrace {
namespace {

// "5%", "5 %" or "0.05".
double parse_share(std::string text) {
  const std::string given = text;
  const bool percent = text.ends_with('%');
  if (percent) text.pop_back();
  while (text.ends_with(' ')) text.pop_back();
  char* end = nullptr;
  const double value = std::strtod(text.c_str(), &end) / (percent ? 100 : 1);
  if (!text.empty() && *end == '\0' && value >= 0 && value <= 10) return value;
  throw Error({.code = ErrorCode::config,
               .what = "--max-regression is no share",
               .where = "--max-regression",
               .expected = "a share of the time, such as 5% or 0.05, up to 1000%",
               .got = quote(given),
               .remedy = "--max-regression 5%"});
}

}  // namespace

int compare_command(const CompareArguments& arguments) {
  const double limit =
      parse_share(arguments.max_regression.empty() ? "5%" : arguments.max_regression);
  const fs::path runs = Settings().runs_folder;
  RunReader first(find_recorded_run(runs, arguments.first)),
      second(find_recorded_run(runs, arguments.second));
  const RecordedRun &a = first.read(), &b = second.read();
  const Comparison comparison = compare(a, b);
  put(arguments.json ? comparison_json(comparison, a, b, limit)
                               .dump(2, ' ', false, nlohmann::json::error_handler_t::replace) +
                           "\n"
                     : comparison_text(comparison, a, b, limit, wants_colour(STDOUT_FILENO)));
  // Whoever asks for a verdict must not take its absence for a good one.
  if (!comparison.noise && !arguments.max_regression.empty())
    throw Error({.code = ErrorCode::config,
                 .what = "the runs are too short to be judged",
                 .where = "--max-regression",
                 .expected = "at least four reports of updates in metrics.jsonl of both",
                 .got = fmt::format("{} and {}", a.train.size(), b.train.size()),
                 .remedy = "longer runs, or a smaller training.log_interval"});
  return comparison.is_regression(limit) ? static_cast<int>(ErrorCode::regression) : 0;
}

}  // namespace millrace
