#include "doctor/run_view.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "core/text.h"
#include "doctor/terminal_plot.h"

namespace millrace {
namespace {

using Lines = std::vector<std::string>;

// What fits no int64_t, or no eye, is not shown as a number.
std::string duration_shown(double seconds) {
  return seconds >= 0 && seconds < 1e9 ? human_seconds(seconds) : "?";
}
std::string bytes_shown(double bytes) {
  return bytes >= 0 && bytes < 1e18 ? human_bytes(static_cast<int64_t>(bytes)) : "?";
}
std::string rate_shown(double rate) { return rate < 1e15 ? human_count(rate) : "?"; }
std::string loss_shown(double loss) {
  return std::abs(loss) < 1e4 ? fmt::format("{:.4f}", loss) : fmt::format("{:.3g}", loss);
}

Paint::Colour state_colour(const std::string& state) {
  if (state == "running" || state == "finished") return Paint::green;
  return state == "stopped" || state == "unknown" ? Paint::yellow : Paint::red;
}

std::string config_of(const RecordedRun& run, const char* key) {
  const auto found = run.config.find(key);
  return found == run.config.end() ? "" : found->second;
}

std::string model_text(const RecordedRun& run) {
  std::string text = config_of(run, "model.type");
  if (run.parameters > 0)
    text += fmt::format(" {} parameters", human_count(static_cast<double>(run.parameters)));
  const std::string batch = config_of(run, "training.batch_size"),
                    accumulated = config_of(run, "training.grad_accum"),
                    length = config_of(run, "training.max_length");
  if (!batch.empty() && !length.empty())
    text +=
        fmt::format(" · batch {}{} x {} tokens", batch,
                    accumulated.empty() || accumulated == "1" ? "" : " x " + accumulated, length);
  if (!run.device.empty() && run.device != "cpu") text += " · " + run.device;
  if (!run.machine.empty()) text += " · " + run.machine;
  if (!run.precision.empty()) text += " · " + run.precision;
  return text;
}

std::string progress_line(const RecordedRun& run, int columns, const Paint& paint) {
  const int64_t done = run.updates();
  const double share =
      run.total > 0 ? std::min(1.0, static_cast<double>(done) / static_cast<double>(run.total)) : 0;
  std::string text = fmt::format(" {:3.0f} %  {} / {} updates", 100 * share, with_commas(done),
                                 with_commas(run.total));
  const double elapsed = run.seconds && run.state != "running" ? *run.seconds
                         : run.train.empty()                   ? kMissing
                                                               : run.train.back().elapsed;
  if (std::isfinite(elapsed)) text += fmt::format(" · {} gone", duration_shown(elapsed));
  if (const auto left = run.seconds_left()) text += fmt::format(", {} left", duration_shown(*left));
  const int width = columns - columns_of(text);
  if (width < 10) return fit(text, columns);
  const int full = static_cast<int>(std::floor(share * width));
  std::string before, after;
  for (int i = 0; i < full; ++i) before += "━";
  for (int i = full; i < width; ++i) after += "─";
  return paint(state_colour(run.state), before) + paint(Paint::dim, after) + text;
}

// A line of train.log with the time of day alone: 2026-11-16T21:37:21+0000  text.
std::string log_line(std::string_view line) {
  const bool dated =
      line.size() > 26 && line[10] == 'T' && line[24] == ' ' &&
      std::all_of(line.begin(), line.begin() + 24, [](char c) { return c > ' ' && c < '\x7f'; });
  return dated ? std::string(line.substr(11, 8)) + std::string(line.substr(24)) : std::string(line);
}

// Side by side; the lines of `left` fill their columns already.
Lines beside(const Lines& left, const Lines& right, int left_width) {
  Lines lines;
  for (size_t i = 0; i < std::max(left.size(), right.size()); ++i)
    lines.push_back(
        (i < left.size() ? left[i] : std::string(static_cast<size_t>(left_width), ' ')) + "  " +
        (i < right.size() ? right[i] : ""));
  return lines;
}

Lines loss_panel(const RecordedRun& run, int width, int height, const Paint& paint) {
  double least = HUGE_VAL, most = -HUGE_VAL;
  auto span = [&](const auto& points) {
    for (const auto& p : points)
      if (std::isfinite(p.loss)) {
        least = std::min(least, p.loss);
        most = std::max(most, p.loss);
      }
  };
  span(run.train);
  span(run.evals);
  // The first updates would leave the rest of a long run a flat line.
  const bool logarithmic = least > 0 && most / 3 > least;
  auto place = [&](double loss) { return logarithmic ? std::log(loss) : loss; };
  Plot plot;
  for (const TrainPoint& p : run.train)
    plot.curve.emplace_back(static_cast<double>(p.step), place(p.loss));
  for (const EvalPoint& p : run.evals)
    plot.marks.emplace_back(static_cast<double>(p.step), place(p.loss));
  plot.label = logarithmic ? [](double y) { return loss_shown(std::exp(y)); } : loss_shown;
  std::string title = logarithmic ? "loss (log)" : "loss";
  if (!run.train.empty()) title += " " + loss_shown(run.train.back().loss);
  std::string validation;
  if (!run.evals.empty()) {
    validation = "  ● validation " + loss_shown(run.evals.back().loss);
    const auto best =
        std::min_element(run.evals.begin(), run.evals.end(), [](const auto& a, const auto& b) {
          return (std::isfinite(a.loss) ? a.loss : HUGE_VAL) <
                 (std::isfinite(b.loss) ? b.loss : HUGE_VAL);
        });
    if (run.evals.size() > 1)
      validation +=
          fmt::format(" (least {} at {})", loss_shown(best->loss), with_commas(best->step));
  }
  const int left = std::min(width, columns_of(title));
  Lines lines{paint(Paint::bold, fit(title, left)) +
              paint(Paint::yellow, fit(validation, width - left))};
  for (std::string& line : draw_plot(plot, width, height - 1, paint))
    lines.push_back(std::move(line));
  return lines;
}

Lines speed_panel(const RecordedRun& run, int width, int height, const Paint& paint) {
  Plot plot;
  plot.from_zero = true;
  plot.label = rate_shown;
  for (const TrainPoint& p : run.train)
    plot.curve.emplace_back(static_cast<double>(p.step), p.tokens_per_second);
  std::string title = "throughput";
  if (!run.train.empty())
    title += fmt::format(" {} tok/s", rate_shown(run.train.back().tokens_per_second));
  std::string useful;
  if (const double share = run.latest_of("data/useful_share"); share < 0.9995)
    useful = fmt::format("  {:.1f} % of them useful", 100 * share);
  const int left = std::min(width, columns_of(title));
  Lines lines{paint(Paint::bold, fit(title, left)) + fit(useful, width - left)};
  for (std::string& line : draw_plot(plot, width, height - 1, paint))
    lines.push_back(std::move(line));
  return lines;
}

// The windows of the last minute, five at least: now, but not the noise of one line.
size_t recent(const RecordedRun& run) {
  size_t first = run.train.size();
  while (first > 0 && (run.train.size() - first < 5 ||
                       run.train[first - 1].elapsed > run.train.back().elapsed - 60))
    --first;
  return first;
}

Paint::Colour owner_colour(Owner owner) {
  switch (owner) {
    case Owner::forward:
    case Owner::backward:
    case Owner::optimizer:
      return Paint::green;
    case Owner::residual:
      return Paint::dim;
    default:
      return Paint::red;  // somebody waits
  }
}

std::vector<Owner> by_time(const TimeBudget& budget) {
  std::vector<Owner> owners;
  for (size_t i = 0; i < kOwners; ++i)
    if (budget.seconds[i] > 0) owners.push_back(static_cast<Owner>(i));
  std::sort(owners.begin(), owners.end(), [&](Owner a, Owner b) {
    return budget.seconds[static_cast<size_t>(a)] > budget.seconds[static_cast<size_t>(b)];
  });
  return owners;
}

Lines budget_panel(const RecordedRun& run, int width, int height, const Paint& paint) {
  const TimeBudget budget = time_budget(run, recent(run));
  Lines lines;
  if (budget.windows == 0) return {fit("no update has been reported yet", width)};
  const std::string title = "time of an update " + duration_shown(budget.total);
  const int left = std::min(width, columns_of(title));
  lines.push_back(
      paint(Paint::bold, fit(title, left)) +
      fit(fmt::format("  over the last {}", with_commas(budget.updates)), width - left));
  std::vector<Owner> owners = by_time(budget);
  // What does not fit is one line at the end.
  const size_t room = static_cast<size_t>(std::max(height - 1, 1));
  double others = 0;
  while (!owners.empty() &&
         (owners.size() > room ||
          budget.seconds[static_cast<size_t>(owners.back())] < 0.001 * budget.total)) {
    others += budget.seconds[static_cast<size_t>(owners.back())];
    owners.pop_back();
  }
  for (const Owner owner : owners) {
    const double seconds = budget.seconds[static_cast<size_t>(owner)],
                 share = seconds / budget.total;
    const std::string text = fmt::format("{:<11} {:>5.1f} % {:>8}  ", owner_name(owner),
                                         100 * share, duration_shown(seconds));
    const int columns = width - columns_of(text);
    lines.push_back(columns > 0
                        ? text + paint(owner_colour(owner), fit(bar(share, columns), columns))
                        : fit(text, width));
  }
  if (others > 0 && owners.size() < room)
    lines.push_back(fit(fmt::format("{:<11} {:>5.1f} % {:>8}", "all others",
                                    100 * others / budget.total, duration_shown(others)),
                        width));
  return lines;
}

// Name and value, where the run has it.
Lines facts_panel(const RecordedRun& run, int width, const Paint& paint) {
  Lines lines{paint(Paint::bold, fit("device and memory", width))};
  auto fact = [&](const char* name, const std::string& text) {
    if (!text.empty()) lines.push_back(fit(fmt::format("{:<11} {}", name, text), width));
  };
  auto metric = [&](const char* name, auto&& text) {
    const double value = run.latest_of(name);
    return std::isfinite(value) ? std::string(text(value)) : std::string();
  };
  const double slowed = run.latest_of("device/slowed");
  fact("power", metric("device/power_w", [](double v) { return fmt::format("{:.0f} W", v); }));
  fact("clock", metric("device/clock_mhz", [&](double v) {
         return fmt::format("{:.0f} MHz{}", v, slowed > 0 ? ", held down" : "");
       }));
  fact("energy", metric("device/joules_per_token",
                        [](double v) { return fmt::format("{:.3g} J a token", v); }));
  fact("device",
       run.device_bytes > 0
           ? bytes_shown(static_cast<double>(run.device_bytes)) + " taken"
           : metric("device/memory_bytes", [](double v) { return bytes_shown(v) + " taken"; }));
  fact("host", run.peak_resident_bytes > 0
                   ? bytes_shown(static_cast<double>(run.peak_resident_bytes)) + " at the most"
                   : metric("memory/host_rss_bytes",
                            [](double v) { return bytes_shown(v) + " resident"; }));
  fact("arena", metric("memory/predicted_peak_bytes",
                       [](double v) { return bytes_shown(v) + " as planned"; }));
  fact("rate", metric("train/learning_rate", [](double v) { return fmt::format("{:.3g}", v); }));
  fact("norm", metric("train/grad_norm", [](double v) { return fmt::format("{:.3g}", v); }));
  fact("epoch", metric("train/epoch", [](double v) { return fmt::format("{:.2f}", v); }));
  if (run.skipped > 0 || run.rollbacks > 0)
    fact("health", fmt::format("{} updates skipped, {} roll-backs", run.skipped, run.rollbacks));
  return lines;
}

}  // namespace

TimeBudget time_budget(const RecordedRun& run, size_t first) {
  TimeBudget budget;
  double weights = 0, tokens = 0;
  for (size_t i = first; i < run.train.size(); ++i) {
    const TrainPoint& p = run.train[i];
    if (!(p.step_seconds > 0)) continue;  // also NaN
    const int64_t before = i > 0 ? run.train[i - 1].step : 0;
    const int64_t updates = std::max<int64_t>(1, p.step - before);  // a roll-back goes back
    const auto weight = static_cast<double>(updates);
    weights += weight;
    budget.total += weight * p.step_seconds;
    if (p.tokens_per_second > 0) tokens += weight * p.step_seconds * p.tokens_per_second;
    for (size_t k = 0; k < kOwners; ++k) budget.seconds[k] += weight * p.shares[k] * p.step_seconds;
    budget.updates += updates;
    ++budget.windows;
  }
  if (weights == 0) return budget;
  budget.tokens_per_second = tokens / budget.total;
  budget.total /= weights;
  for (double& seconds : budget.seconds) seconds /= weights;
  return budget;
}

std::vector<std::string> run_view(const RecordedRun& run, const ViewOptions& options) {
  const Paint paint(options.colour);
  const int width = std::max(options.columns, 20);
  Lines lines;
  auto add = [&](Lines more) {
    for (std::string& line : more) lines.push_back(std::move(line));
  };

  // Header.
  std::string state = run.state;
  if (run.state == "running" && !run.train.empty()) {
    const double age = options.now - run.train.back().time;
    if (age > 15) state += fmt::format(", silent for {}", duration_shown(age));
  }
  const std::string title = run.name.empty() ? run.folder.string() : run.name + "/" + run.id;
  const int right = std::min(width / 2, columns_of(state) + 2);
  lines.push_back(paint(Paint::bold, fit(title, width - right)) +
                  paint(state_colour(run.state), fit("● " + state, right)));
  lines.push_back(paint(Paint::dim, fit(model_text(run), width)));
  lines.push_back(progress_line(run, width, paint));
  for (const std::string& note : run.notes)
    lines.push_back(paint(Paint::yellow, fit("! " + note, width)));
  lines.emplace_back();

  // Plots: a third of the height, side by side where there is room.
  const bool wide = width >= 90;
  const int plot_height = std::clamp(options.rows / 3, 6, 18);
  const int left = wide ? (width - 2) * 3 / 5 : width, rest = wide ? width - 2 - left : width;
  if (wide) {
    add(beside(loss_panel(run, left, plot_height, paint),
               speed_panel(run, rest, plot_height, paint), left));
    lines.emplace_back();
    add(beside(budget_panel(run, left, 8, paint), facts_panel(run, rest, paint), left));
  } else {
    add(loss_panel(run, width, plot_height, paint));
    add(speed_panel(run, width, std::max(plot_height / 2, 5), paint));
    lines.emplace_back();
    add(budget_panel(run, width, 7, paint));
    lines.emplace_back();
    add(facts_panel(run, width, paint));
  }

  // The log fills what is left.
  const auto rows = static_cast<size_t>(std::max(options.rows, 1));
  if (lines.size() + 3 <= rows && !run.log.empty()) {
    lines.emplace_back();
    lines.push_back(paint(Paint::bold, "log"));
    const size_t count = std::min(run.log.size(), rows - lines.size());
    for (size_t i = run.log.size() - count; i < run.log.size(); ++i)
      lines.push_back(fit(log_line(run.log[i]), width));
  }
  if (lines.size() > rows) lines.resize(rows);
  return lines;
}

nlohmann::ordered_json run_json(const RecordedRun& run) {
  using Json = nlohmann::ordered_json;
  auto number = [](double value) { return std::isfinite(value) ? Json(value) : Json(nullptr); };
  const TimeBudget budget = time_budget(run, recent(run));
  Json time = Json::object();
  for (size_t i = 0; i < kOwners; ++i)
    if (budget.seconds[i] > 0)
      time[std::string(owner_name(static_cast<Owner>(i)))] = 1e3 * budget.seconds[i];
  const auto left = run.seconds_left();
  Json json = {{"folder", run.folder.string()},
               {"id", run.id},
               {"name", run.name},
               {"state", run.state},
               {"machine", run.machine},
               {"device", run.device},
               {"precision", run.precision},
               {"parameters", run.parameters},
               {"step", run.updates()},
               {"total", run.total},
               {"seconds_left", left ? Json(*left) : Json(nullptr)},
               {"time_per_update_ms", 1e3 * budget.total},
               {"time_ms", std::move(time)},
               {"latest", run.latest},
               {"skipped", run.skipped},
               {"rollbacks", run.rollbacks},
               {"notes", run.notes}};
  const size_t count = std::min<size_t>(run.log.size(), 10);
  json["log"] = Lines(run.log.end() - static_cast<std::ptrdiff_t>(count), run.log.end());
  Json train = Json::array(), evals = Json::array();
  for (const TrainPoint& p : run.train)
    train.push_back({{"step", p.step},
                     {"loss", number(p.loss)},
                     {"tokens_per_sec", number(p.tokens_per_second)},
                     {"step_s", number(p.step_seconds)}});
  for (const EvalPoint& p : run.evals)
    evals.push_back({{"step", p.step}, {"loss", number(p.loss)}});
  json["train"] = std::move(train);
  json["eval"] = std::move(evals);
  return json;
}

}  // namespace millrace
