#include "doctor/diagnosis.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "core/text.h"
#include "doctor/profile_report.h"

namespace millrace {
namespace {

double speed(const Measured& m) { return m.tokens_per_second; }

// What trials say of a finding: what its best remedy saves, none where every one was tried and no
// gain of any is left open. Else it stays an estimate, and why.
void judge(Finding& f, const SearchResult& searched) {
  double best = 0;
  int measured = 0, unclear = 0, failed = 0, untried = 0;
  for (const Remedy& r : f.remedies) {
    const auto t = std::ranges::find_if(
        searched.alone, [&](const Tried& tried) { return tried.remedy.overrides == r.overrides; });
    if (t == searched.alone.end()) {
      untried += r.ceiling < Gain::kLeast ? 0 : 1;
    } else if (!t->is_measured()) {
      ++failed;
    } else {
      ++measured;
      unclear += t->verdict == kUnclear ? 1 : 0;
      if (t->verdict == kFaster) best = std::max(best, 1 - 1 / t->gain.ratio);
    }
  }
  if (best > 0 || (measured > 0 && unclear + failed + untried == 0))
    f.recoverable = best;
  else if (unclear > 0)
    f.open = "what was tried is not told from noise";
  else if (failed > 0)
    f.open = "what could help did not run";
  else
    f.open =
        measured > 0 ? "not all that could help was tried" : "nothing that could help was tried";
}

}  // namespace

std::string gain_text(const Gain& gain) {
  return fmt::format("{:+.1f} % +-{:.1f}", 100 * (gain.ratio - 1), 100 * gain.noise * gain.ratio);
}

std::array<double, kOwners> budget_of(const Measured& m) {
  std::array<double, kOwners> seconds{};
  for (size_t i = 0; i < kOwners; ++i)
    seconds[i] =
        m.profile.at("budget_seconds").value(std::string(owner_name(static_cast<Owner>(i))), 0.0);
  return seconds;
}

std::vector<std::string> advice_lines(const Diagnosis& d) {
  std::vector<std::string> lines;
  for (const Advice& a : d.advice)
    lines.push_back(
        fmt::format("x{:.2f} predicted: {} ({}){}", a.ratio, a.meaning, a.change,
                    a.bytes_saved > 0 ? fmt::format(", {} less", human_bytes(a.bytes_saved)) : ""));
  return lines;
}

std::vector<TriedRow> tried_rows(const std::vector<Tried>& tried) {
  std::vector<TriedRow> rows;
  for (const Tried& t : tried) {
    if (t.is_measured())
      rows.push_back({t.remedy.title, fmt::format("x{:.2f}", t.gain.ratio), gain_text(t.gain),
                      human_bytes(t.peak_bytes()), std::string(maths_name(t.remedy.maths)),
                      t.verdict});
    else
      rows.push_back(
          {t.remedy.title, "-", "-", "-", std::string(maths_name(t.remedy.maths)), t.verdict});
  }
  return rows;
}

std::vector<std::string> loss_lines(const Diagnosis& d) {
  if (!d.searched) return {};
  auto number = [](double loss) {
    return std::isfinite(loss) ? fmt::format("{:.4f}", loss) : std::string("not finite");
  };
  std::vector<std::string> lines;
  for (const Tried& t : d.searched->alone) {
    const bool other =
        t.remedy.maths == Maths::other_rounding || t.remedy.maths == Maths::other_order;
    if (!other || (t.verdict != kFaster && t.verdict != kHigherLoss)) continue;
    const LossChange change = loss_change(d.searched->original.front(), t.runs.front());
    lines.push_back(fmt::format("{}: mean loss of {} updates {}, as it is {} +-{}{}",
                                t.remedy.title, d.searched->updates, number(change.after),
                                number(change.before), number(change.spread),
                                change.is_higher() ? ": higher, not kept" : ""));
  }
  return lines;
}

std::string run_text(const Diagnosis& d) {
  const auto& p = d.profile.profile;
  const auto updates = p.at("updates_of_run").get<int64_t>();
  return fmt::format(
      "{} for {} updates at this pace",
      human_seconds(p.at("seconds_with_occasions").get<double>() * static_cast<double>(updates)),
      with_commas(updates));
}

void Diagnosis::settle() {
  if (searched)
    for (Finding& f : findings) judge(f, *searched);
  std::stable_sort(findings.begin(), findings.end(), [](const Finding& a, const Finding& b) {
    return a.recoverable > b.recoverable;
  });
}

Severity Diagnosis::worst() const {
  return findings.empty() ? Severity::none : severity_of(findings.front().recoverable);
}

std::string Diagnosis::verdict() const {
  if (worst() == Severity::none) {
    if (searched && searched->is_faster())
      return "Nothing is wrong with this training; what it can choose makes it faster here.";
    const auto unclear =
        searched ? std::ranges::count(searched->alone, kUnclear, &Tried::verdict) : 0;
    return fmt::format("Nothing was found that would make this training clearly faster here{}.",
                       unclear > 0 ? fmt::format("; {} of {} trials are not told from noise",
                                                 unclear, searched->alone.size())
                                   : "");
  }
  const Finding& f = findings.front();
  return fmt::format("{}{}: {}; {:.0f} % of the time {}.",
                     static_cast<char>(std::toupper(f.title[0])), f.title.substr(1), f.evidence,
                     100 * f.recoverable,
                     !searched        ? "could be had back at most"
                     : f.open.empty() ? "can be had back"
                                      : "could be had back at most: " + f.open);
}

std::string diagnosis_text(const Diagnosis& d) {
  const auto& p = d.profile.profile;
  std::string s = fmt::format("machine   {} in {}\ndata      {}\n", d.machine, d.precision, d.data);
  s += fmt::format("model     {} parameters\n", human_count(static_cast<double>(d.parameters)));
  s += fmt::format("time      an update {} {}, {} tokens/s, {:.1f} % of the places hold one\n",
                   human_seconds(d.profile.update_seconds), noise_text(d.profile.noise),
                   human_count(speed(d.profile)), 100 * p.at("useful_share").get<double>());
  s += fmt::format("the run   {}\n", run_text(d));
  s += fmt::format("memory    {} at the most\n\n", human_bytes(d.profile.peak_bytes));
  s += budget_text(budget_of(d.profile));
  for (const std::string& note : d.notes) s += "note      " + note + "\n";
  s += "\n" + d.verdict() + "\n";
  for (const Finding& f : d.findings) {
    const Severity severity = severity_of(f.recoverable);
    s += fmt::format("  {:<7} {:<18} {} ({})\n",
                     severity == Severity::none ? "-" : severity_name(severity), f.id, f.title,
                     f.evidence);
  }
  std::string advice;
  for (const std::string& line : advice_lines(d)) advice += "  " + line + "\n";
  if (!advice.empty()) advice = "\nwhat would change the problem: your decision\n" + advice;
  if (!d.searched) return s + advice;
  const SearchResult& r = *d.searched;
  auto table = [&](const std::vector<Tried>& tried) {
    for (const TriedRow& row : tried_rows(tried))
      s += fmt::format("  {:<46} {:>7} {:>16} {:>10}  {:<14}  {}\n", row.what, row.speed, row.gain,
                       row.memory, row.maths, row.verdict);
  };
  if (!r.alone.empty()) {
    s += fmt::format("\nwhat was tried, each alone ({} updates at a time, in turns; {} in all)\n",
                     r.updates, human_seconds(r.seconds));
    table(r.alone);
  }
  if (r.together.size() > 1) {
    s += "\ntogether, one behind the other (gain over the line before)\n";
    table(r.together);
  }
  if (const auto lines = loss_lines(d); !lines.empty()) {
    s += "\nwhat it does to the loss\n";
    for (const std::string& line : lines) s += "  " + line + "\n";
  }
  if (r.confirmed && !r.is_faster())
    s += "\nwhat was faster alone is not once more, all together: nothing is changed\n";
  if (r.confirmed)
    s += fmt::format(
        "\nall together, from a cold start: x{:.2f} ({}), {} tokens/s instead of {}, {} memory\n",
        r.confirmed->ratio, gain_text(*r.confirmed), human_count(speed(r.final_runs.back())),
        human_count(speed(r.final_runs.back()) / r.confirmed->ratio),
        human_bytes(r.final_runs.back().peak_bytes));
  if (!r.left_out.empty()) {
    s += "\nnot tried\n";
    for (const std::string& line : r.left_out) s += "  " + line + "\n";
  }
  return s + advice;
}

std::string diagnosis_markdown(const Diagnosis& d) {
  std::string s = fmt::format("# {}\n\n{}\n\n{}, {}, {}\n\n{}\n\n", d.config, d.verdict(),
                              d.machine, d.precision, d.date, d.data);
  s += fmt::format(
      "An update of {} parameters takes {} {}: {} tokens/s; the run {}.\n\n| owner | time | share "
      "|\n|---|---|---|\n",
      human_count(static_cast<double>(d.parameters)), human_seconds(d.profile.update_seconds),
      noise_text(d.profile.noise, "±"), human_count(speed(d.profile)), run_text(d));
  const auto budget = budget_of(d.profile);
  double total = 0;
  for (const double seconds : budget) total += seconds;
  for (size_t i = 1; i <= kOwners; ++i)
    if (const double its = budget[i % kOwners]; its > 0)
      s += fmt::format("| {} | {} | {:.1f} % |\n", owner_name(static_cast<Owner>(i % kOwners)),
                       human_seconds(its), 100 * its / total);
  for (const std::string& note : d.notes) s += "\n" + note + "\n";
  if (!d.findings.empty()) s += "\n| severity | finding | evidence |\n|---|---|---|\n";
  for (const Finding& f : d.findings)
    s += fmt::format("| {} | `{}` {} | {} |\n", severity_name(severity_of(f.recoverable)), f.id,
                     f.title, f.evidence);
  if (const auto lines = advice_lines(d); !lines.empty()) {
    s += "\n## What would change the problem\n\n";
    for (const std::string& line : lines) s += "- " + line + "\n";
  }
  if (!d.searched) return s;
  auto table = [&](const char* title, const std::vector<Tried>& tried) {
    if (tried.empty()) return;
    s += fmt::format(
        "\n## {}\n\n| what | speed | gain | memory | mathematics | |\n|---|---|---|---|---|---|\n",
        title);
    for (const TriedRow& row : tried_rows(tried))
      s += fmt::format("| {} | {} | {} | {} | {} | {} |\n", row.what, row.speed, row.gain,
                       row.memory, row.maths, row.verdict);
  };
  table("Tried alone", d.searched->alone);
  table("Together, each over the line before", d.searched->together);
  if (const auto lines = loss_lines(d); !lines.empty()) {
    s += "\n## What it does to the loss\n\n";
    for (const std::string& line : lines) s += "- " + line + "\n";
  }
  if (d.searched->confirmed)
    s += fmt::format("\nAll together, from a cold start: **x{:.2f}** ({}).\n",
                     d.searched->confirmed->ratio, gain_text(*d.searched->confirmed));
  if (!d.searched->left_out.empty()) s += "\nNot tried:\n\n";
  for (const std::string& line : d.searched->left_out) s += "- " + line + "\n";
  if (!d.diff.empty()) s += "\n```diff\n" + d.diff + "```\n";
  return s;
}

nlohmann::ordered_json diagnosis_json(const Diagnosis& d) {
  using Json = nlohmann::ordered_json;
  auto runs_json = [](const std::vector<Measured>& runs) {
    Json list = Json::array();
    for (const Measured& m : runs) {
      Json run = {{"outcome", outcome_name(m.outcome)}};
      if (m.is_measured())
        run.update({{"tokens_per_second", m.tokens_per_second},
                    {"update_seconds", m.update_seconds},
                    {"noise_share", m.noise ? Json(*m.noise) : Json(nullptr)},
                    {"loss", m.loss},
                    {"loss_error", m.loss_error},
                    {"peak_bytes", m.peak_bytes},
                    {"folder", m.profile.at("folder")}});
      else
        run["reason"] = m.reason;
      list.push_back(std::move(run));
    }
    return list;
  };
  auto gain_json = [](const Gain& g) { return Json{{"ratio", g.ratio}, {"noise_share", g.noise}}; };
  auto tried_json = [&](const std::vector<Tried>& tried) {
    Json list = Json::array();
    for (const Tried& t : tried) {
      list.push_back({{"id", t.remedy.id},
                      {"title", t.remedy.title},
                      {"overrides", t.remedy.overrides},
                      {"maths", maths_name(t.remedy.maths)},
                      {"ceiling_share", t.remedy.ceiling},
                      {"gain", gain_json(t.gain)},
                      {"verdict", t.verdict},
                      {"kept", t.kept},
                      {"runs", runs_json(t.runs)}});
      if (!t.is_measured()) continue;
      const LossChange change = loss_change(d.searched->original.front(), t.runs.front());
      list.back()["loss"] = {{"before", change.before},
                             {"after", change.after},
                             {"spread", change.spread},
                             {"higher", change.is_higher()}};
    }
    return list;
  };
  Json j = {{"config", d.config},
            {"machine", d.machine},
            {"precision", d.precision},
            {"data", d.data},
            {"parameters", d.parameters},
            {"date", d.date},
            {"verdict", d.verdict()},
            {"severity", severity_name(d.worst())},
            {"notes", d.notes},
            {"findings", Json::array()},
            {"profile", d.profile.profile}};
  for (const Finding& f : d.findings) {
    Json remedies = Json::array();
    for (const Remedy& r : f.remedies)
      remedies.push_back({{"title", r.title},
                          {"overrides", r.overrides},
                          {"maths", maths_name(r.maths)},
                          {"ceiling_share", r.ceiling}});
    j["findings"].push_back({{"id", f.id},
                             {"severity", severity_name(severity_of(f.recoverable))},
                             {"title", f.title},
                             {"evidence", f.evidence},
                             {"recoverable_share", f.recoverable},
                             {"measured", d.searched && f.open.empty()},
                             {"remedies", std::move(remedies)}});
  }
  for (const Advice& a : d.advice)
    j["advice"].push_back({{"change", a.change},
                           {"meaning", a.meaning},
                           {"predicted_ratio", a.ratio},
                           {"bytes_saved", a.bytes_saved}});
  if (!d.searched) return j;
  const SearchResult& r = *d.searched;
  j["updates_of_a_trial"] = r.updates;
  j["original"] = runs_json(r.original);
  j["alone"] = tried_json(r.alone);
  j["together"] = tried_json(r.together);
  j["overrides"] = r.overrides;
  if (r.confirmed) {
    j["confirmed"] = gain_json(*r.confirmed);
    j["final"] = runs_json(r.final_runs);
  }
  j["not_tried"] = r.left_out;
  j["seconds"] = r.seconds;
  if (!d.diff.empty()) j["diff"] = d.diff;
  return j;
}

}  // namespace millrace
