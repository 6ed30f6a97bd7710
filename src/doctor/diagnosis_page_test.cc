// The page read back as XML: what it says, and that nothing a user names can break out of it.
#include "doctor/diagnosis_page.h"

#include <gtest/gtest.h>

#include <numeric>
#include <regex>

#include "doctor/diagnosis_pictures.h"
#include "doctor/picture.h"
#include "doctor/profile_report.h"

namespace millrace {
namespace {

// What is wrong with XML without declarations; empty: it is well-formed. Stricter than a browser.
std::string trouble(std::string_view s) {
  std::vector<std::string> open;
  auto near = [&](size_t at) { return " near: " + std::string(s.substr(at, 60)); };
  auto is_entity = [&](size_t at) {
    for (const std::string_view e : {"&lt;", "&gt;", "&amp;", "&quot;", "&#39;"})
      if (s.substr(at).starts_with(e)) return true;
    return false;
  };
  auto skip_space = [&](size_t& at) {
    while (at < s.size() && std::isspace(static_cast<unsigned char>(s[at]))) ++at;
  };
  auto name_at = [&](size_t& at) {
    const size_t begin = at;
    while (at < s.size() && (std::isalnum(static_cast<unsigned char>(s[at])) || s[at] == '-')) ++at;
    return std::string(s.substr(begin, at - begin));
  };
  for (size_t at = 0; at < s.size();) {
    if (s[at] == '&' && !is_entity(at)) return "a bare &" + near(at);
    if (s[at] != '<') {
      ++at;
      continue;
    }
    const size_t begin = at++;
    const bool closes = s.substr(at).starts_with('/');
    if (closes) ++at;
    const std::string name = name_at(at);
    if (name.empty()) return "a tag without a name" + near(begin);
    std::vector<std::string> attributes;
    for (skip_space(at); at < s.size() && s[at] != '>' && s[at] != '/'; skip_space(at)) {
      attributes.push_back(name_at(at));
      if (attributes.back().empty() || !s.substr(at).starts_with("=\""))
        return "an attribute" + near(begin);
      if (std::ranges::count(attributes, attributes.back()) > 1) return "one twice" + near(begin);
      for (at += 2; at < s.size() && s[at] != '"'; ++at)
        if (s[at] == '<' || (s[at] == '&' && !is_entity(at))) return "a value" + near(begin);
      ++at;
    }
    const bool empty = s.substr(at).starts_with("/>");
    if (!empty && !s.substr(at).starts_with('>')) return "an end of a tag" + near(begin);
    at += empty ? 2 : 1;
    if (closes) {
      if (open.empty() || open.back() != name)
        return "</" + name + "> closes nothing" + near(begin);
      open.pop_back();
    } else if (!empty) {
      open.push_back(name);
    }
  }
  return open.empty() ? "" : open.back() + " stays open";
}

TEST(Trouble, IsFound) {
  EXPECT_EQ(trouble("<a b=\"c\">d &amp; e<f/></a>"), "");
  for (const char* bad : {"<a>", "<a></b>", "<a b=c></a>", "<a b=\"<\"></a>", "a & b", "a < b",
                          "<a b=\"1\" b=\"2\"/>", "</a>"})
    EXPECT_NE(trouble(bad), "") << bad;
}

size_t count(const std::string& text, const std::string& what) {
  size_t n = 0;
  for (size_t at = text.find(what); at != std::string::npos; at = text.find(what, at + 1)) ++n;
  return n;
}
bool says(const std::string& text, const std::string& what) {
  return text.find(what) != std::string::npos;
}

// The tree of the page, and each picture in it as it would stand alone.
void expect_sound(const std::string& page) {
  constexpr std::string_view kDeclaration = "<!DOCTYPE html>\n";
  ASSERT_TRUE(page.starts_with(kDeclaration));
  EXPECT_EQ(trouble(std::string_view(page).substr(kDeclaration.size())), "");
  for (size_t at = page.find("<svg "); at != std::string::npos; at = page.find("<svg ", at + 1))
    EXPECT_EQ(trouble(page.substr(at, page.find("</svg>", at) + 6 - at)), "");
  EXPECT_FALSE(says(page, "<script"));
  EXPECT_FALSE(says(page, "nan"));
  // Names of formats are the only addresses.
  EXPECT_EQ(count(page, "http"), count(page, "http://www.w3.org/") + count(page, "http-equiv"));
}

Measured measured(double tokens_per_second) {
  Measured m;
  m.tokens_per_second = tokens_per_second;
  m.update_seconds = 0.04;
  m.noise = 0.01;
  m.peak_bytes = 1 << 20;
  m.profile = nlohmann::ordered_json::parse(R"({
    "budget_seconds": {"residual": 0.001, "input_wait": 0.009, "forward": 0.01, "backward": 0.02},
    "seconds_with_occasions": 0.04, "useful_share": 0.9, "updates_of_run": 1500,
    "ceiling": {"flops_per_second": 5e10, "bytes_per_second": 1e10},
    "ops": [
      {"name": "matmul", "seconds": 0.02, "limit_seconds": 0.016, "flops": 8e8, "bytes": 2e7},
      {"name": "elementwise", "seconds": 0.004, "limit_seconds": 0.003, "flops": 3e6, "bytes": 3e7},
      {"name": "permute", "seconds": 0.002, "limit_seconds": 0.001, "flops": 0, "bytes": 1e7}]})");
  return m;
}

Diagnosis quick() {
  Diagnosis d;
  d.config = "configs/a.yaml";
  d.command = "millrace doctor configs/a.yaml --quick";
  d.machine = "a machine";
  d.precision = "fp32";
  d.date = "2026-11-17 12:00";
  d.profile = measured(1000);
  return d;
}

Tried tried(const std::string& title, double ratio, const std::string& verdict) {
  return {{"id", title, {"a=1"}, Maths::same_bits, 0.5},
          {measured(1000 * ratio)},
          {ratio, 0.02},
          verdict == "faster",
          verdict};
}
Tried failed(const std::string& title, Measured::Outcome outcome, const std::string& reason) {
  Tried t{{"id", title, {"a=1"}, Maths::same_bits, 0.5}, {{}}, {}, false, {}};
  t.runs[0].outcome = outcome;
  t.runs[0].reason = reason;
  t.verdict = std::string(outcome_name(outcome)) + ": " + reason;
  return t;
}

TEST(DiagnosisPage, WithoutTrialsAndFindings) {
  const std::string page = diagnosis_page(quick());
  expect_sound(page);
  EXPECT_TRUE(says(page, "Nothing was found"));
  EXPECT_TRUE(says(page, "<h2>Findings</h2>\n<p>None.</p>"));
  EXPECT_TRUE(says(page, "waiting for batches: 9.0 ms (22.5 %)"));
  EXPECT_TRUE(says(page, "the run takes 1m 00s for 1,500 updates at this pace."));
  EXPECT_TRUE(says(page, "Without arithmetic: permute 5.0 % of the time."));
  EXPECT_TRUE(says(page, "millrace doctor configs/a.yaml --quick"));
  EXPECT_FALSE(says(page, "What was tried"));
  EXPECT_FALSE(says(page, "The config, changed"));
  EXPECT_EQ(count(page, "<svg "), 1u);  // the ops
}

TEST(DiagnosisPage, EverythingAtOnce) {
  Diagnosis d = quick();
  d.findings = {{"input.wait", "the step waits for its batches", "22.5 % of the time", 0.225, {}}};
  d.notes = {"this machine was busy"};
  d.diff = "--- a.yaml\n+++ b.yaml\n-old: 1\n+new: 2\n same: 3\n\n";
  Timeline timeline(4);
  timeline.lane("loader <0>");
  timeline.add({.begin = 10, .end = 20, .lane = 2, .name = "a", .group = "input", .place = ""});
  d.timeline = timeline_picture(timeline);
  SearchResult r;
  r.updates = 10;
  r.original = {measured(1000)};
  r.alone = {tried("twice", 2, "faster"),
             tried("half", 0.5, "slower"),
             tried("same", 1.001, "no effect"),
             failed("large", Measured::Outcome::does_not_fit, "needs 9 GiB"),
             failed("odd", Measured::Outcome::failed, "ended by signal 9"),
             failed("long", Measured::Outcome::timed_out, "not done after 60 s")};
  r.together = {tried("twice", 2, "faster"), tried("more", 1.1, "faster")};
  r.confirmed = Gain{2.2, 0.01};
  r.final_runs = {measured(2200)};
  r.left_out = {"threads: could save at most 0.4 %"};
  r.alone[0].remedy.maths = Maths::other_rounding;
  d.searched = std::move(r);
  const std::string page = diagnosis_page(d);
  expect_sound(page);
  EXPECT_EQ(count(page, "<svg "), 3u);  // these, what was tried, the lanes
  for (const char* text :
       {"loader &lt;0&gt;", "22.5 % of the time", "does not fit: needs 9 GiB",
        "failed: ended by signal 9", "took too long: not done after 60 s", "+100.0 % +-4.0",
        "<b>x2.20</b>", "threads: could save at most 0.4 %", "this machine was busy",
        "each over the one before", "confirmed, from a cold start",
        "<h2>What it does to the loss</h2>", "twice: mean loss of 10 updates"})
    EXPECT_TRUE(says(page, text)) << text;
  EXPECT_TRUE(
      says(page, std::string("background:") + std::string(colour("faster")) + "44\">+new: 2"));
  EXPECT_TRUE(says(page, "<span>+++ b.yaml</span>"));
}

TEST(DiagnosisPage, TextOfUsersStaysText) {
  const std::string evil = "</title></svg><script>alert('\"&amp;')</script>\x01\xff";
  Diagnosis d = quick();
  d.config = d.command = d.machine = d.precision = d.date = evil;
  d.notes = {evil};
  d.diff = "+" + evil + "\n";
  d.findings = {{evil, evil, evil, 0.3, {}}};
  d.profile.profile["ops"][0]["name"] = evil;
  d.profile.profile["ops"][2]["name"] = evil;
  SearchResult r;
  r.alone = {failed(evil, Measured::Outcome::failed, evil), tried(evil, 1.5, "faster")};
  r.left_out = {evil};
  d.searched = std::move(r);
  const std::string page = diagnosis_page(d);
  expect_sound(page);
  EXPECT_TRUE(
      says(page, "&lt;script&gt;alert(&#39;&quot;&amp;amp;&#39;)&lt;/script&gt;\uFFFD\uFFFD"));
  EXPECT_FALSE(says(page, "\xff"));
  EXPECT_FALSE(says(page, "\x01"));
}

TEST(DiagnosisPage, AllTrialsFailed) {
  Diagnosis d = quick();
  d.searched = SearchResult{};
  EXPECT_TRUE(says(diagnosis_page(d), "<h2>What was tried</h2>\n<p>Nothing.</p>"));
  d.searched->alone = {failed("large", Measured::Outcome::does_not_fit, "needs 9 GiB")};
  const std::string page = diagnosis_page(d);
  expect_sound(page);
  EXPECT_EQ(count(gains_picture(*d.searched), "<rect"), 1u);  // the background, no bar
}

TEST(DiagnosisPage, WithoutACeiling) {
  Diagnosis d = quick();
  d.profile.profile["ceiling"] = {{"flops_per_second", 0}, {"bytes_per_second", 0}};
  const std::string page = diagnosis_page(d);
  expect_sound(page);
  EXPECT_TRUE(says(page, "No ceiling of this device is known"));
}

// Widths of the rectangles of a colour, of all colours when it is empty, without the background.
std::vector<double> widths(const std::string& svg, const std::string& of = "") {
  const std::regex rect(
      "<rect x=\"[-.0-9]+\" y=\"[.0-9]+\" width=\"([.0-9]+)\" height=\"[.0-9]+\" "
      "fill=\"([^\"]*)\"");
  std::vector<double> list;
  for (std::sregex_iterator at(svg.begin(), svg.end(), rect), end; at != end; ++at)
    if (of.empty() || (*at)[2] == of) list.push_back(std::stod((*at)[1]));
  return list;
}

TEST(DiagnosisPage, TheBarIsTheWholeUpdate) {
  Diagnosis d = quick();
  for (size_t i = 0; i < kOwners; ++i)
    d.profile.profile["budget_seconds"][std::string(owner_name(static_cast<Owner>(i)))] =
        0.001 * static_cast<double>(i + 1);
  const std::string page = diagnosis_page(d);
  expect_sound(page);
  const std::regex part("flex-grow:([.0-9]+)");
  std::vector<double> parts;
  for (std::sregex_iterator at(page.begin(), page.end(), part), end; at != end; ++at)
    parts.push_back(std::stod((*at)[1]));
  ASSERT_EQ(parts.size(), kOwners);
  // Each is written with five digits.
  EXPECT_NEAR(std::accumulate(parts.begin(), parts.end(), 0.0), 1, 0.000005 * kOwners);
  EXPECT_NEAR(parts.back(), 2.0 / (kOwners * (kOwners + 1)), 1e-5);  // the residual, last
  for (size_t i = 0; i < kOwners; ++i)
    d.profile.profile["budget_seconds"][std::string(owner_name(static_cast<Owner>(i)))] = 0;
  expect_sound(diagnosis_page(d));
}

TEST(DiagnosisPictures, DotsLieWhereTheirFiguresAre) {
  const std::string svg = roofline_picture(measured(1).profile);
  EXPECT_EQ(trouble(svg), "");
  EXPECT_EQ(count(svg, "<circle"), 2u);  // not the one without arithmetic
  EXPECT_TRUE(says(svg, "products 50 GFLOP/s"));
  EXPECT_TRUE(says(svg, "memory 10 GB/s"));
  const std::regex circle("<circle cx=\"([.0-9]+)\" cy=\"([.0-9]+)\" r=\"([.0-9]+)\"");
  std::vector<std::array<double, 3>> dots;
  for (std::sregex_iterator at(svg.begin(), svg.end(), circle), end; at != end; ++at)
    dots.push_back({std::stod((*at)[1]), std::stod((*at)[2]), std::stod((*at)[3])});
  ASSERT_EQ(dots.size(), 2u);
  // 40 FLOP a byte at 40 GFLOP/s, 0.1 at 0.75; areas as times, 5 to 1.
  EXPECT_GT(dots[0][0], dots[1][0]);
  EXPECT_LT(dots[0][1], dots[1][1]);
  EXPECT_NEAR(dots[0][2] * dots[0][2] / (dots[1][2] * dots[1][2]), 5, 0.1);
}

TEST(DiagnosisPictures, BarsAreAsLongAsGains) {
  SearchResult r;
  r.alone = {tried("a", 1.5, "faster"), tried("b", 0.75, "slower"), tried("c", 1.01, "no effect")};
  const std::string svg = gains_picture(r);
  const auto faster = widths(svg, std::string(colour("faster"))),
             slower = widths(svg, std::string(colour("slower"))),
             grey = widths(svg, std::string(colour("no effect")));
  ASSERT_EQ(faster.size() + slower.size() + grey.size(), 3u);
  EXPECT_NEAR(faster.at(0) / slower.at(0), 2, 1e-3);
  EXPECT_NEAR(faster.at(0) / grey.at(0), 50, 0.1);
}

TEST(Picture, LongTextIsShortenedByCharacters) {
  EXPECT_EQ(shortened("ääää", 4), "ääää");
  EXPECT_EQ(shortened("äääää", 4), "äää…");
  EXPECT_EQ(shortened("", 4), "");
}

}  // namespace
}  // namespace millrace
