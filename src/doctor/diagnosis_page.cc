#include "doctor/diagnosis_page.h"

#include <fmt/format.h>

#include <numeric>
#include <sstream>

#include "core/text.h"
#include "doctor/diagnosis_pictures.h"
#include "doctor/picture.h"
#include "doctor/profile_report.h"

namespace millrace {
namespace {

// The page is well-formed XML, too: a test reads it as that.
constexpr std::string_view kStyle = R"(
:root{color-scheme:light dark;--page:#fff;--ink:#222;--quiet:#666;--edge:#d8d8d8;--box:#f5f6f8}
@media(prefers-color-scheme:dark){:root{--page:#181a1f;--ink:#ddd;--quiet:#aaa;--edge:#3a3d45;--box:#22252c}}
*{box-sizing:border-box}
body{margin:0 auto;padding:1.2rem;max-width:62rem;background:var(--page);color:var(--ink);font:16px/1.5 system-ui,sans-serif}
h1{font-size:1.5rem;margin:.2rem 0;overflow-wrap:anywhere}
h2{font-size:1.15rem;margin:2rem 0 .5rem;padding-bottom:.2rem;border-bottom:1px solid var(--edge)}
p{margin:.5rem 0}
p.quiet{color:var(--quiet);font-size:.9rem}
.verdict{font-size:1.1rem;padding:.7rem 1rem;background:var(--box);border-left:6px solid;overflow-wrap:anywhere}
.facts{display:flex;flex-wrap:wrap;gap:.6rem;margin:1rem 0;padding:0}
.facts div{flex:1 1 9rem;background:var(--box);padding:.5rem .8rem}
.facts b{display:block;font-size:1.25rem}
.bar{display:flex;height:46px;line-height:46px;overflow:hidden;margin:.6rem 0;color:#111;font-size:.88rem}
.bar span{flex-basis:0;min-width:0;overflow:hidden;text-align:center;white-space:nowrap}
.legend{display:flex;flex-wrap:wrap;gap:.2rem 1.4rem;list-style:none;margin:.6rem 0;padding:0}
.dot{display:inline-block;width:.8em;height:.8em;margin-right:.45em;border-radius:2px}
.wide{overflow-x:auto}
.wide svg{display:block;width:100%;min-width:34rem}
.wide.lanes svg{min-width:52rem}
.wide table{min-width:36rem}
table{border-collapse:collapse;width:100%;font-size:.92rem}
th,td{text-align:left;padding:.35rem .6rem;border-bottom:1px solid var(--edge);vertical-align:top}
td.n{text-align:right;white-space:nowrap}
td{overflow-wrap:anywhere;min-width:4.5rem}
.severity{white-space:nowrap}
.tried td:first-child{min-width:11rem}
code{font-size:.92em}
pre{background:var(--box);padding:.7rem 1rem;overflow-x:auto;font-size:.88rem;line-height:1.4}
pre span{display:block;width:max-content;min-width:100%;white-space:pre}
li{overflow-wrap:anywhere}
@media print{body{max-width:none;padding:0;font-size:11pt}svg,tr,pre,.facts,.verdict{break-inside:avoid}h2{break-after:avoid}
*{print-color-adjust:exact;-webkit-print-color-adjust:exact}.wide{overflow:visible}pre span{width:auto;white-space:pre-wrap;overflow-wrap:anywhere}.wide svg,.wide.lanes svg,.wide table{min-width:0}}
)";

std::string section(std::string_view title, std::string_view body) {
  return fmt::format("<section><h2>{}</h2>\n{}</section>\n", title, body);
}
std::string picture(const std::string& svg) { return "<div class=\"wide\">" + svg + "</div>\n"; }
std::string quiet(const std::string& text) { return "<p class=\"quiet\">" + text + "</p>\n"; }
std::string dot(std::string_view name) {
  return fmt::format("<span class=\"dot\" style=\"background:{}\"></span>", colour(name));
}

std::string facts(const Diagnosis& d) {
  std::string s = "<div class=\"facts\">";
  auto fact = [&](const std::string& value, const std::string& of) {
    s += fmt::format("<div><b>{}</b>{}</div>\n", escaped(value), escaped(of));
  };
  fact(human_seconds(d.profile.update_seconds), "an update, " + noise_text(d.profile.noise, "±"));
  fact(human_count(d.profile.tokens_per_second), "tokens/s");
  fact(fmt::format("{:.1f} %", 100 * d.profile.profile.at("useful_share").get<double>()),
       "of the places hold a token");
  fact(human_bytes(d.profile.peak_bytes), "memory at the most");
  fact(human_count(static_cast<double>(d.parameters)), "parameters");
  if (d.searched && d.searched->confirmed)
    fact(fmt::format("x{:.2f}", d.searched->confirmed->ratio), "as fast with the changes below");
  return s + "</div>\n";
}

std::string milliseconds(double seconds) {
  const double ms = 1e3 * seconds;
  return fmt::format("{:.{}f} ms", ms, ms >= 100 ? 0 : ms >= 1 ? 1 : 3);
}

std::string budget_section(const Diagnosis& d) {
  const auto budget = budget_of(d.profile);
  const double total = std::accumulate(budget.begin(), budget.end(), 0.0);
  constexpr double kSeen = 0.0005;  // less is 0.0 %, and nothing of it can be seen
  // As high on a phone as on any screen: its legend stands below it as text.
  constexpr double kRoom = 0.09;  // for a number
  std::string s =
      "<div class=\"bar\" role=\"img\" aria-label=\"the time of an update, by what it was spent "
      "on\">";
  std::string legend = "<ul class=\"legend\">";
  for (const Owner owner : owners_in_order(budget)) {
    const double its = budget[static_cast<size_t>(owner)], share = its / total;
    if (!(share >= kSeen)) continue;
    s += fmt::format(
        "<span style=\"flex-grow:{:.5f};background:{}\" title=\"{}: {:.1f} %\">{}</span>", share,
        colour(owner_name(owner)), owner_words(owner), 100 * share,
        share > kRoom ? fmt::format("{:.0f} %", 100 * share) : "");
    legend += fmt::format("<li>{}{}: {} ({:.1f} %)</li>\n", dot(owner_name(owner)),
                          owner_words(owner), milliseconds(its), 100 * share);
  }
  return section(
      "Where the time of an update goes",
      s + "</div>\n" + legend + "</ul>\n" +
          quiet("Validation and checkpoints count at the pace the config has them: the run "
                "takes " +
                escaped(run_text(d)) + "."));
}

std::string findings_section(const Diagnosis& d) {
  if (d.findings.empty()) return section("Findings", "<p>None.</p>\n");
  std::string s =
      "<div class=\"wide\"><table><thead><tr><th>severity</th><th>finding</th><th>evidence</th>"
      "<th>time to be had back</th></tr></thead><tbody>\n";
  for (const Finding& f : d.findings) {
    const auto severity = severity_name(severity_of(f.recoverable));
    s += fmt::format(
        "<tr><td class=\"severity\">{}{}</td><td>{}<br/><code>{}</code></td><td>{}</td><td>{:.1f} "
        "%</td></tr>\n",
        dot(severity), severity, escaped(f.title), escaped(f.id), escaped(f.evidence),
        100 * f.recoverable);
  }
  s += "</tbody></table></div>\n";
  return section("Findings",
                 s + quiet(d.searched ? "Where trials told it, what a remedy gave back; else what "
                                        "could be had back at most."
                                      : "Nothing was tried: what could be had back at most."));
}

std::string tried_table(std::string_view title, const std::vector<Tried>& tried) {
  if (tried.empty()) return "";
  std::string s = fmt::format(
      "<div class=\"wide "
      "tried\"><table><thead><tr><th>{}</th><th>speed</th><th>gain</th><th>memory</th>"
      "<th>mathematics</th><th>verdict</th></tr></thead><tbody>\n",
      title);
  for (const TriedRow& row : tried_rows(tried))
    s += fmt::format(
        "<tr><td>{}</td><td class=\"n\">{}</td><td class=\"n\">{}</td><td class=\"n\">{}</td>"
        "<td>{}</td><td>{}{}</td></tr>\n",
        escaped(row.what), row.speed, row.gain, row.memory, row.maths, dot(row.verdict),
        escaped(row.verdict));
  return s + "</tbody></table></div>\n";
}

std::string tried_section(const Diagnosis& d) {
  if (!d.searched) return "";
  const SearchResult& r = *d.searched;
  std::string s;
  if (r.alone.empty()) {
    s = "<p>Nothing.</p>\n";
  } else {
    s = picture(gains_picture(r));
    s += quiet(fmt::format(
        "Gain in tokens/s, in turns with the config as it is, {} updates at a time; the thin line "
        "is the noise of the repetitions. {} in all.",
        r.updates, human_seconds(r.seconds)));
    s += tried_table("alone", r.alone);
    if (r.together.size() > 1) s += tried_table("together, each over the line before", r.together);
    if (r.confirmed) {
      s += fmt::format("<p>All together, from a cold start: <b>x{:.2f}</b> ({}), by:</p>\n<pre>",
                       r.confirmed->ratio, gain_text(*r.confirmed));
      for (const std::string& o : r.overrides) s += "<span>" + escaped(o) + "</span>";
      s += "</pre>\n";
    }
  }
  return section("What was tried", s);
}

std::string list_section(std::string_view title, const std::vector<std::string>& lines) {
  if (lines.empty()) return "";
  std::string s = "<ul>";
  for (const std::string& line : lines) s += "<li>" + escaped(line) + "</li>\n";
  return section(title, s + "</ul>\n");
}

std::string diff_section(const Diagnosis& d) {
  if (d.diff.empty()) return "";
  std::string s = "<pre>";
  std::istringstream lines(d.diff);
  for (std::string line; std::getline(lines, line);) {
    const bool names = line.starts_with("+++") || line.starts_with("---");
    const char* kind = names                   ? ""
                       : line.starts_with('+') ? "faster"
                       : line.starts_with('-') ? "slower"
                                               : "";
    // The colour stands behind the text, thin enough for both kinds of page.
    s += *kind
             ? fmt::format("<span style=\"background:{}44\">{}</span>", colour(kind), escaped(line))
             : fmt::format("<span>{}</span>", escaped(line.empty() ? " " : line));
  }
  return section("The config, changed", s + "</pre>\n");
}

// Ops that move bytes only have no place over arithmetic.
std::string without_arithmetic(const nlohmann::ordered_json& profile) {
  const double total = profile.at("seconds_with_occasions").get<double>();
  std::string s;
  for (const auto& op : profile.at("ops")) {
    const double share = total > 0 ? op.at("seconds").get<double>() / total : 0;
    if (op.at("flops").get<double>() > 0 || share < 0.001) continue;
    s += fmt::format("{}{} {:.1f} %", s.empty() ? " Without arithmetic: " : ", ",
                     escaped(op.at("name").get<std::string>()), 100 * share);
  }
  return s.empty() ? s : s + " of the time.";
}

std::string roofline_section(const Diagnosis& d) {
  const std::string svg = roofline_picture(d.profile.profile);
  return section(
      "The ops beside what the device can do",
      svg.empty() ? "<p>No ceiling of this device is known.</p>\n"
                  : picture(svg) + quiet("Each dot is an op, its area the share of the time. The "
                                         "lines are products and copies as fast as they were "
                                         "measured here; over them where a cache is read." +
                                         without_arithmetic(d.profile.profile)));
}

std::string lanes_section(const Diagnosis& d) {
  if (d.timeline.empty()) return "";
  return section("Who worked when, in the last updates",
                 "<div class=\"wide lanes\">" + d.timeline + "</div>\n");
}

}  // namespace

std::string diagnosis_page(const Diagnosis& d) {
  std::string s = fmt::format(
      "<!DOCTYPE html>\n<html lang=\"en\" xmlns=\"http://www.w3.org/1999/xhtml\"><head>"
      "<meta charset=\"utf-8\"/>\n"
      "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src "
      "'unsafe-inline'\"/>\n"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/>\n"
      "<title>{} – millrace</title><style>{}</style></head><body>\n",
      escaped(d.config), kStyle);
  s += fmt::format("<header><p class=\"quiet\">{} in {}, {}; {}</p><h1>{}</h1>\n",
                   escaped(d.machine), escaped(d.precision), escaped(d.date), escaped(d.data),
                   escaped(d.config));
  s += fmt::format("<p class=\"verdict\" style=\"border-color:{}\">{}</p>\n{}</header>\n",
                   colour(d.worst() == Severity::none ? "faster" : severity_name(d.worst())),
                   escaped(d.verdict()), facts(d));
  s += budget_section(d) + findings_section(d) + tried_section(d);
  s += list_section("What it does to the loss", loss_lines(d));
  if (d.searched) s += list_section("Not tried, and why", d.searched->left_out);
  s += diff_section(d) + roofline_section(d) + lanes_section(d) +
       list_section("What would change the problem", advice_lines(d)) +
       list_section("Notes", d.notes);
  s += fmt::format(
      "<footer><h2>How this was made</h2>\n<pre><span>{}</span></pre>\n<p class=\"quiet\">{} in "
      "{}, {}</p></footer>\n</body></html>\n",
      escaped(d.command), escaped(d.machine), escaped(d.precision), escaped(d.date));
  return s;
}

}  // namespace millrace
