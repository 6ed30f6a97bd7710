#include "doctor/comparison.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <set>

#include "core/text.h"
#include "doctor/terminal_plot.h"

namespace millrace {
namespace {

using Json = nlohmann::ordered_json;

// The first window has what happens once: kernels are compiled, pages touched, steps captured.
size_t warmed_up(const RecordedRun& run) { return run.train.size() > 1 ? 1 : 0; }

// Variance of the mean of the windows' times; nothing for fewer than three windows.
std::optional<double> variance_of_mean(const RecordedRun& run) {
  std::vector<double> times;
  for (size_t i = warmed_up(run); i < run.train.size(); ++i)
    if (run.train[i].step_seconds > 0) times.push_back(run.train[i].step_seconds);
  if (times.size() < 3) return std::nullopt;
  const auto n = static_cast<double>(times.size());
  double mean = 0, squares = 0;
  for (const double t : times) mean += t / n;
  for (const double t : times) squares += (t - mean) * (t - mean);
  return squares / (n - 1) / n;
}

double last_finite(const std::vector<TrainPoint>& points, double TrainPoint::*member) {
  for (auto p = points.rbegin(); p != points.rend(); ++p)
    if (std::isfinite((*p).*member)) return (*p).*member;
  return kMissing;
}

double memory_of(const RecordedRun& run) {
  if (run.device_bytes > 0) return static_cast<double>(run.device_bytes);
  if (const double bytes = run.latest_of("device/memory_bytes"); bytes > 0) return bytes;
  if (run.peak_resident_bytes > 0) return static_cast<double>(run.peak_resident_bytes);
  return run.latest_of("memory/host_rss_bytes");
}

// Settings that say what is computed, not how.
bool is_workload(const std::string& key) {
  static const std::set<std::string> kHow = {"data.num_workers", "data.prefetch_factor"};
  static const std::set<std::string> kTraining = {
      "training.batch_size", "training.grad_accum", "training.max_length",
      "training.max_source_length", "training.length_curriculum"};
  return key.starts_with("model.") || (key.starts_with("data.") && !kHow.contains(key)) ||
         kTraining.contains(key);
}

// At most four updates that both runs reported, spread over what they share, the last one included.
template <typename Point>
std::vector<LossPair> same_updates(const std::vector<Point>& a, const std::vector<Point>& b) {
  std::map<int64_t, double> of_b;
  for (const Point& p : b) of_b[p.step] = p.loss;
  std::vector<LossPair> both;
  for (const Point& p : a)
    if (const auto found = of_b.find(p.step); found != of_b.end())
      both.push_back({p.step, p.loss, found->second});
  if (both.size() <= 4) return both;
  const size_t last = both.size() - 1;
  return {both[last / 8], both[last / 4], both[last / 2], both[last]};
}

// Three digits or so.
std::string ms_text(double seconds) {
  const double ms = 1e3 * seconds, size = std::abs(ms);
  if (!(size < 1e9)) return "?";
  return fmt::format("{:.{}f} ms", ms, size < 1 ? 3 : size < 10 ? 2 : size < 100 ? 1 : 0);
}
std::string change_text(double seconds) { return (seconds > 0 ? "+" : "") + ms_text(seconds); }
std::string loss_text(double loss) {
  return std::isfinite(loss) ? fmt::format("{:.4f}", loss) : "-";
}
std::string percent_text(double a, double b) {
  return a > 0 && std::isfinite(b) ? fmt::format("{:+.1f} %", 100 * (b / a - 1)) : "";
}
std::string bytes_text(double bytes) {
  return bytes >= 0 && bytes < 1e18 ? human_bytes(static_cast<int64_t>(bytes)) : "-";
}
std::string rate_text(double rate) {
  return rate > 0 && rate < 1e15 ? human_count(rate) + " tok/s" : "-";
}
std::string name_of(const RecordedRun& run) {
  return run.name.empty() ? run.folder.string() : run.name + "/" + run.id;
}

// From A to B: each change as the part of the scale it takes away (green) or adds (red).
std::string waterfall(const Comparison& c, const Paint& paint) {
  constexpr int kColumns = 46;
  const double scale = std::max(c.a.total, c.b.total);
  std::string text;
  auto line = [&](std::string_view name, const std::string& value, double from, double to,
                  Paint::Colour colour) {
    // The running sum may pass below zero or above both ends on its way.
    const auto place = [&](double at) {
      return static_cast<int>(std::lround(std::clamp(at / scale, 0.0, 1.0) * kColumns));
    };
    const int begin = place(std::min(from, to)), end = place(std::max(from, to));
    std::string bars;
    for (int i = begin; i < end; ++i) bars += "█";
    if (bars.empty()) bars = "▏";
    text += fmt::format("  {:<12} {:>10}  {}{}\n", name, value,
                        std::string(static_cast<size_t>(begin), ' '), paint(colour, bars));
  };
  line("A", ms_text(c.a.total), 0, c.a.total, Paint::blue);
  double at = c.a.total, small = 0;
  for (const auto& [owner, change] : c.changes) {
    if (std::abs(change) < 0.01 * scale) {
      small += change;
      continue;
    }
    line(owner_name(owner), change_text(change), at, at + change,
         change < 0 ? Paint::green : Paint::red);
    at += change;
  }
  if (small != 0)
    line("all others", change_text(small), at, at + small, small < 0 ? Paint::green : Paint::red);
  line("B", ms_text(c.b.total), 0, c.b.total, Paint::blue);
  return text;
}

std::string differences(const char* title, const std::vector<Difference>& list) {
  constexpr size_t kMost = 30;
  if (list.empty()) return "";
  std::string text = fmt::format("\n{}\n", title);
  size_t width = 0;
  for (const Difference& d : list) width = std::max(width, std::min<size_t>(d.name.size(), 32));
  for (size_t i = 0; i < std::min(list.size(), kMost); ++i) {
    const Difference& d = list[i];
    text += fmt::format("  {:<{}}  {} -> {}\n", d.name, width, d.a.empty() ? "-" : d.a,
                        d.b.empty() ? "-" : d.b);
  }
  if (list.size() > kMost) text += fmt::format("  and {} more\n", list.size() - kMost);
  return text;
}

}  // namespace

bool Comparison::is_regression(double share) const {
  return noise && a.total > 0 && b.total - a.total - *noise > share * a.total;
}

Comparison compare(const RecordedRun& a, const RecordedRun& b) {
  Comparison c;
  c.a = time_budget(a, warmed_up(a));
  c.b = time_budget(b, warmed_up(b));
  if (const auto va = variance_of_mean(a), vb = variance_of_mean(b); va && vb)
    c.noise = 2 * std::sqrt(*va + *vb);
  if (c.a.windows > 0 && c.b.windows > 0) {
    // What no owner claims is part of the difference, too: shares of damaged lines may not add up.
    double rest = c.b.total - c.a.total;
    for (size_t i = 0; i < kOwners; ++i) {
      const auto owner = static_cast<Owner>(i);
      const double change = c.b.seconds[i] - c.a.seconds[i];
      if (owner == Owner::residual) continue;
      rest -= change;
      if (change != 0) c.changes.emplace_back(owner, change);
    }
    if (rest != 0) c.changes.emplace_back(Owner::residual, rest);
    std::sort(c.changes.begin(), c.changes.end(),
              [](const auto& x, const auto& y) { return std::abs(x.second) > std::abs(y.second); });
  }
  c.losses = same_updates(a.train, b.train);
  c.validation = same_updates(a.evals, b.evals);

  std::set<std::string> keys;
  for (const RecordedRun* run : {&a, &b})
    for (const auto& [key, value] : run->config) keys.insert(key);
  auto setting = [](const RecordedRun& run, const std::string& key) {
    const auto found = run.config.find(key);
    return found == run.config.end() ? std::string() : found->second;
  };
  for (const std::string& key : keys) {
    const Difference d{key, setting(a, key), setting(b, key)};
    if (d.a == d.b || key == "run_name" || key == "runs_folder") continue;
    c.config.push_back(d);
    if (is_workload(key)) c.workload.push_back(d);
  }
  // Batches that are made of the data differ even where the settings are the same.
  auto places = [](const RecordedRun& run) {
    return std::round(last_finite(run.train, &TrainPoint::tokens_per_second) *
                      last_finite(run.train, &TrainPoint::step_seconds));
  };
  const double places_a = places(a), places_b = places(b);
  if (std::abs(places_a - places_b) > 0.02 * std::max(places_a, places_b))
    c.workload.push_back(
        {"tokens an update", fmt::format("{:.0f}", places_a), fmt::format("{:.0f}", places_b)});
  auto machine = [&](const char* name, const std::string& x, const std::string& y) {
    if (x != y) c.machine.push_back({name, x, y});
  };
  machine("machine", a.machine, b.machine);
  machine("device", a.device, b.device);
  machine("precision", a.precision, b.precision);
  machine("version", a.version, b.version);
  return c;
}

std::string comparison_text(const Comparison& c, const RecordedRun& a, const RecordedRun& b,
                            double max_regression, bool colour) {
  const Paint paint(colour);
  std::string text;
  for (const auto& [letter, run] : {std::pair{"A", &a}, std::pair{"B", &b}}) {
    text += fmt::format("{}  {}  {}, {} updates\n", letter, name_of(*run), run->state,
                        with_commas(run->updates()));
    for (const std::string& note : run->notes)
      text += paint(Paint::yellow, fmt::format("   ! {}", note)) + "\n";
  }
  if (!c.workload.empty())
    text += paint(Paint::yellow,
                  "! the two do not do the same work: times of an update do not compare") +
            "\n";
  for (const Difference& d : c.workload)
    text +=
        fmt::format("  {}  {} -> {}\n", d.name, d.a.empty() ? "-" : d.a, d.b.empty() ? "-" : d.b);

  if (c.a.windows == 0 || c.b.windows == 0) {
    text += fmt::format("\nno times: {} has reported no update\n", c.a.windows == 0 ? "A" : "B");
  } else {
    std::string first;
    for (size_t i = 0; i < std::min<size_t>(c.changes.size(), 3); ++i)
      first += fmt::format("{}{} {}", i == 0 ? ": " : ", ", owner_name(c.changes[i].first),
                           change_text(c.changes[i].second));
    text +=
        "\n" +
        paint(Paint::bold, fmt::format("time of an update  A {} -> B {} ({})", ms_text(c.a.total),
                                       ms_text(c.b.total), percent_text(c.a.total, c.b.total))) +
        first + "\n" + waterfall(c, paint);
    text += c.noise ? fmt::format("  noise ±{} (two standard errors; {} and {} windows)\n",
                                  ms_text(*c.noise), c.a.windows, c.b.windows)
                    : "  noise unknown: fewer than three windows after the first\n";
  }
  text += fmt::format("\n  {:<22} {:>14} {:>14}\n", "", "A", "B");
  auto row = [&](const std::string& name, const std::string& x, const std::string& y,
                 const std::string& change) {
    text += fmt::format("  {:<22} {:>14} {:>14}  {}\n", name, x, y, change);
  };
  row("throughput", rate_text(c.a.tokens_per_second), rate_text(c.b.tokens_per_second),
      percent_text(c.a.tokens_per_second, c.b.tokens_per_second));
  row("memory", bytes_text(memory_of(a)), bytes_text(memory_of(b)),
      percent_text(memory_of(a), memory_of(b)));
  for (const auto& [name, list] :
       {std::pair{"loss", &c.losses}, std::pair{"validation", &c.validation}})
    for (const LossPair& p : *list)
      row(fmt::format("{} at {}", name, with_commas(p.step)), loss_text(p.a), loss_text(p.b),
          std::isfinite(p.b - p.a) ? fmt::format("{:+.4f}", p.b - p.a) : "");
  text += differences("settings", c.config) + differences("machine", c.machine);
  if (c.noise)
    text += "\n" +
            (c.is_regression(max_regression)
                 ? paint(Paint::red, fmt::format("B is slower by more than {:.3g} % and the noise",
                                                 100 * max_regression))
                 : paint(Paint::green,
                         fmt::format("B is not slower by more than {:.3g} % and the noise",
                                     100 * max_regression))) +
            "\n";
  return text;
}

nlohmann::ordered_json comparison_json(const Comparison& c, const RecordedRun& a,
                                       const RecordedRun& b, double max_regression) {
  auto number = [](double value) { return std::isfinite(value) ? Json(value) : Json(nullptr); };
  auto side = [&](const RecordedRun& run, const TimeBudget& budget) {
    Json time = Json::object();
    for (size_t i = 0; i < kOwners; ++i)
      time[std::string(owner_name(static_cast<Owner>(i)))] = 1e3 * budget.seconds[i];
    return Json{
        {"run", name_of(run)},
        {"state", run.state},
        {"step", run.updates()},
        {"windows", budget.windows},
        {"time_per_update_ms", budget.windows > 0 ? Json(1e3 * budget.total) : Json(nullptr)},
        {"time_ms", time},
        {"tokens_per_sec", number(budget.tokens_per_second)},
        {"memory_bytes", number(memory_of(run))},
        {"notes", run.notes}};
  };
  auto list = [](const std::vector<Difference>& differences) {
    Json rows = Json::array();
    for (const Difference& d : differences)
      rows.push_back({{"name", d.name}, {"a", d.a}, {"b", d.b}});
    return rows;
  };
  auto losses = [&](const std::vector<LossPair>& pairs) {
    Json rows = Json::array();
    for (const LossPair& p : pairs)
      rows.push_back({{"step", p.step}, {"a", number(p.a)}, {"b", number(p.b)}});
    return rows;
  };
  Json changes = Json::object();
  for (const auto& [owner, change] : c.changes)
    changes[std::string(owner_name(owner))] = 1e3 * change;
  return {{"a", side(a, c.a)},
          {"b", side(b, c.b)},
          {"changes_ms", changes},
          {"noise_ms", c.noise ? Json(1e3 * *c.noise) : Json(nullptr)},
          {"max_regression", max_regression},
          {"regression", c.noise ? Json(c.is_regression(max_regression)) : Json(nullptr)},
          {"same_workload", c.workload.empty()},
          {"workload", list(c.workload)},
          {"loss", losses(c.losses)},
          {"validation", losses(c.validation)},
          {"config", list(c.config)},
          {"machine", list(c.machine)}};
}

}  // namespace millrace
