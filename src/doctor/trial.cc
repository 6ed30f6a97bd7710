#include "doctor/trial.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/child_process.h"
#include "core/error.h"

namespace millrace {
namespace {

// The first line of what an error says: "error: …".
std::string reason_of(const std::string& err) {
  const size_t at = err.rfind("error: ");
  if (at == std::string::npos) return err.substr(0, err.find('\n'));
  std::string line = err.substr(at + 7, err.find('\n', at) - at - 7);
  const size_t got = err.find("got:", at);
  if (got != std::string::npos) {
    const size_t begin = err.find_first_not_of(' ', got + 4);
    line += ": " + err.substr(begin, err.find('\n', begin) - begin);
  }
  return line;
}

// The fastest first.
std::vector<double> speeds_of(const std::vector<Measured>& runs) {
  std::vector<double> speeds;
  for (const Measured& m : runs) speeds.push_back(m.tokens_per_second);
  std::sort(speeds.rbegin(), speeds.rend());
  return speeds;
}

}  // namespace

std::string_view outcome_name(Measured::Outcome outcome) {
  switch (outcome) {
    case Measured::Outcome::measured:
      return "measured";
    case Measured::Outcome::does_not_fit:
      return "does not fit";
    case Measured::Outcome::timed_out:
      return "took too long";
    case Measured::Outcome::failed:
      break;
  }
  return "failed";
}

void take_report(std::string_view report, Measured& m) {
  // JSON has no word for a number that is not finite, nor for one that is not known.
  auto number = [](const nlohmann::ordered_json& value) {
    return value.is_null() ? std::nullopt : std::optional(value.get<double>());
  };
  constexpr double kNone = std::numeric_limits<double>::quiet_NaN();
  try {
    m.profile = nlohmann::ordered_json::parse(report);
    const auto& update = m.profile.at("update_seconds");
    m.tokens_per_second = m.profile.at("useful_tokens_per_second").get<double>();
    m.update_seconds = update.at("undisturbed").get<double>();
    m.noise = number(update.at("noise_share"));
    m.loss = number(m.profile.at("mean_loss")).value_or(kNone);
    m.loss_error = number(m.profile.at("loss_error")).value_or(kNone);
    m.updates = m.profile.at("updates").get<int64_t>();
    (void)m.profile.at("folder").get_ref<const std::string&>();
    // Once for a machine; the next one has it no more.
    m.seconds -= m.profile.at("ceiling").value("seconds", 0.0);
    m.more_seconds = update.at("mean").get<double>() +
                     m.profile.at("budget_seconds").at("checkpoint").get<double>();
    m.peak_bytes =
        m.profile.at(m.profile.contains("device_bytes") ? "device_bytes" : "peak_resident_bytes")
            .get<int64_t>();
  } catch (const nlohmann::json::exception& e) {
    m.outcome = Measured::Outcome::failed;
    m.reason = fmt::format("its report cannot be read: {}", e.what());
  }
}

Measured TrialRunner::operator()(const std::vector<std::string>& overrides, int64_t updates) const {
  std::vector<std::string> command{own_program(), "profile"};
  command.insert(command.end(), request.begin(), request.end());
  command.insert(command.end(), overrides.begin(), overrides.end());
  command.push_back("runs_folder=" + folder.string());
  command.insert(command.end(), {"--steps", std::to_string(updates), "--json"});
  const ChildResult child = run_child(command, limit_seconds);
  Measured m;
  m.peak_bytes = child.peak_bytes;
  m.seconds = child.seconds;
  if (child.timed_out) {
    m.outcome = Measured::Outcome::timed_out;
    m.reason = fmt::format("not done after {:.0f} s", child.seconds);
  } else if (child.exit_code == static_cast<int>(ErrorCode::does_not_fit)) {
    m.outcome = Measured::Outcome::does_not_fit;
    m.reason = reason_of(child.err);
  } else if (child.exit_code == static_cast<int>(ErrorCode::stopped)) {
    throw Error({.code = ErrorCode::stopped, .what = "stopped while a trial was running"});
  } else if (child.exit_code != 0) {
    m.outcome = Measured::Outcome::failed;
    m.reason =
        child.signal != 0 ? fmt::format("ended by signal {}", child.signal) : reason_of(child.err);
  }
  if (m.is_measured()) take_report(child.out, m);
  if (!m.is_measured()) return m;
  // The record stays; the trace of a trial nobody looks at.
  const fs::path run = m.profile.at("folder").get<std::string>();
  fs::remove(run / "trace.json.gz");
  if (!keeps_timeline) fs::remove(run / "timeline.svg");
  return m;
}

double gap_of(const std::vector<Measured>& runs) {
  const auto speeds = speeds_of(runs);
  return speeds.size() < 2 ? 0 : 1 - speeds[1] / speeds[0];
}

double spread_of(const std::vector<std::vector<Measured>>& groups) {
  std::vector<double> gaps, within;
  for (const std::vector<Measured>& runs : groups) {
    if (runs.size() > 1) gaps.push_back(gap_of(runs));
    for (const Measured& m : runs)
      if (m.noise) within.push_back(*m.noise);
  }
  // Of two the smaller: the other may have been disturbed. But no less than within the runs.
  auto usual = [](std::vector<double>& list) {
    std::ranges::sort(list);
    return list.empty() ? 0 : list[(list.size() - 1) / 2];
  };
  constexpr double kLeast = 0.01;  // nothing is known better
  return std::max({usual(gaps), usual(within), kLeast});
}

Gain gain_of(const std::vector<Measured>& before, const std::vector<Measured>& after,
             double spread) {
  // Two standard deviations of the difference between two such ratios. More runs make it no less:
  // a machine that others use keeps its pace for longer than a run.
  return {speeds_of(after)[0] / speeds_of(before)[0], 2 * std::sqrt(2.0) * spread};
}

bool LossChange::is_higher() const { return std::isfinite(before) && !(after <= before + spread); }

LossChange loss_change(const Measured& before, const Measured& after) {
  // Where all updates are alike, rounding is what is left.
  constexpr double kRounding = 2e-3;
  const double apart = 2 * std::hypot(before.loss_error, after.loss_error),
               least = kRounding * std::abs(before.loss);
  return {before.loss, after.loss, apart > least ? apart : least};
}

}  // namespace millrace
