#include "doctor/diagnosis_pictures.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>
#include <numeric>

#include "core/text.h"
#include "doctor/picture.h"

namespace millrace {
namespace {

constexpr double kWidth = 760;

std::string rate_text(double per_second, const char* unit) {
  constexpr std::pair<double, const char*> kPrefixes[] = {
      {1e15, "P"}, {1e12, "T"}, {1e9, "G"}, {1e6, "M"}, {1e3, "k"}};
  for (const auto& [size, prefix] : kPrefixes)
    if (per_second >= 0.9999 * size)
      return fmt::format("{:.3g} {}{}", per_second / size, prefix, unit);
  return fmt::format("{:.3g} {}", per_second, unit);
}

// A logarithmic axis over what it is to show, at least two powers of ten.
struct Axis {
  double from, until;                                    // pixels
  double low = std::numeric_limits<double>::infinity();  // exponents
  double high = -low;

  void take(double value) {
    low = std::min(low, std::log10(value) - 0.3);
    high = std::max(high, std::log10(value) + 0.3);
  }
  void settle() {
    if (const double more = 2 - (high - low); more > 0) low -= more / 2, high += more / 2;
  }
  double at(double value) const {
    return from + (until - from) * (std::log10(value) - low) / (high - low);
  }
};

struct Dot {
  std::string name, tip;
  double intensity, rate, seconds, share;
};

std::vector<Dot> dots_of(const nlohmann::ordered_json& profile) {
  const double total = profile.at("seconds_with_occasions").get<double>();
  std::vector<Dot> dots;
  for (const auto& op : profile.at("ops")) {
    const double seconds = op.at("seconds").get<double>(), flops = op.at("flops").get<double>(),
                 bytes = op.at("bytes").get<double>(), limit = op.at("limit_seconds").get<double>();
    if (!(seconds > 0 && flops > 0 && bytes > 0 && total > 0)) continue;
    const auto name = op.at("name").get<std::string>();
    dots.push_back(
        {name,
         fmt::format("{}: {} an update, {:.1f} % of the time, {:.0f} % of its limit", name,
                     human_seconds(seconds), 100 * seconds / total, 100 * limit / seconds),
         flops / bytes, flops / seconds, seconds, seconds / total});
  }
  // Small ones are drawn over large ones.
  std::ranges::stable_sort(dots, std::greater{}, &Dot::seconds);
  return dots;
}

struct Box {
  double left, top, right, bottom;
  bool meets(const Box& o) const {
    return left < o.right && o.left < right && top < o.bottom && o.top < bottom;
  }
};

// Places for labels beside dots: none over another, none over a dot where that can be had.
class Labels {
 public:
  std::vector<Box> dots, texts;

  std::string place(std::string_view text, double x, double y, double radius) {
    const double w = 7.6 * static_cast<double>(text.size()), h = 13, beside = radius + 4;
    for (const bool over_dots : {false, true})
      for (const double away : {0.0, 10.0, 20.0, 34.0}) {
        const std::pair<double, double> places[] = {
            {x + beside + away, y + 4},     {x - beside - away - w, y + 4},
            {x - w / 2, y - beside - away}, {x - w / 2, y + beside + away + 10},
            {x + beside, y + 4 + away},     {x + beside, y + 4 - away}};
        for (const auto& [left, base] : places) {
          const Box box{left, base - h + 3, left + w, base + 3};
          auto free = [&](const std::vector<Box>& taken) {
            return std::ranges::none_of(taken, [&](const Box& b) { return b.meets(box); });
          };
          if (left < 90 || box.right > kWidth - 8 || !free(texts) || (!over_dots && !free(dots)))
            continue;
          texts.push_back(box);
          // Far from its dot a line leads to it: there may be others between.
          const std::string lead =
              away < 20 ? ""
                        : fmt::format(
                              "<line x1=\"{:.1f}\" y1=\"{:.1f}\" x2=\"{:.1f}\" y2=\"{:.1f}\" "
                              "class=\"line\" stroke-opacity=\"0.6\"/>",
                              x, y, std::clamp(x, box.left, box.right),
                              std::clamp(y, box.top, box.bottom));
          return lead + fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\">{}</text>\n", left, base,
                                    escaped(text));
        }
      }
    return "";  // the dot's title says it
  }
};

std::string line(double x1, double y1, double x2, double y2, std::string_view look) {
  return fmt::format("<line x1=\"{:.1f}\" y1=\"{:.1f}\" x2=\"{:.1f}\" y2=\"{:.1f}\" {}/>\n", x1, y1,
                     x2, y2, look);
}
constexpr std::string_view kGrid = "class=\"line\" stroke-opacity=\"0.25\"",
                           kEdge = "class=\"line\" stroke-width=\"2\"",
                           kMark = "class=\"mark\" stroke-width=\"1.5\"";

// One row of the picture of gains: a bar, or what happened instead of one.
struct GainRow {
  std::string title, verdict;
  std::optional<Gain> gain;
  bool strong = false, heading = false;
};

std::vector<GainRow> gain_rows(const SearchResult& s) {
  auto row = [](const Tried& t) {
    const bool measured = t.runs.front().is_measured() && std::isfinite(t.gain.ratio);
    return GainRow{t.remedy.title, t.verdict, measured ? std::optional(t.gain) : std::nullopt};
  };
  auto heading = [](const char* title) { return GainRow{title, "", {}, false, true}; };
  std::vector<GainRow> rows;
  if (!s.alone.empty()) rows.push_back(heading("each alone"));
  for (const Tried& t : s.alone) rows.push_back(row(t));
  if (!rows.empty())
    std::stable_sort(rows.begin() + 1, rows.end(), [](const GainRow& a, const GainRow& b) {
      return (a.gain ? a.gain->ratio : -1) > (b.gain ? b.gain->ratio : -1);
    });
  if (s.together.size() > 1) {
    rows.push_back(heading("together, each over the one before"));
    for (const Tried& t : s.together) rows.push_back(row(t));
  }
  if (s.confirmed) {
    rows.push_back(heading("confirmed, from a cold start"));
    rows.push_back(
        {"everything that was kept", std::string(verdict_of(*s.confirmed)), s.confirmed, true});
  }
  return rows;
}

double gain_percent(double ratio) { return 100 * (ratio - 1); }
double noise_percent(const Gain& g) { return 100 * g.noise * g.ratio; }

}  // namespace

std::string_view owner_words(Owner owner) {
  constexpr std::string_view kWords[] = {"everything else",
                                         "waiting for batches",
                                         "copying batches to the device",
                                         "forward pass",
                                         "backward pass",
                                         "optimizer",
                                         "exchange between devices",
                                         "validation: loss",
                                         "validation: texts",
                                         "samples",
                                         "checkpoints",
                                         "reports",
                                         "device idle while the host starts work"};
  static_assert(std::size(kWords) == kOwners);
  return kWords[static_cast<size_t>(owner)];
}

std::vector<Owner> owners_in_order(std::span<const double, kOwners> seconds) {
  std::vector<Owner> owners;
  for (size_t i = 1; i <= kOwners; ++i)
    if (seconds[i % kOwners] > 0) owners.push_back(static_cast<Owner>(i % kOwners));
  return owners;
}

std::string roofline_picture(const nlohmann::ordered_json& profile) {
  const double flops = profile.at("ceiling").at("flops_per_second").get<double>(),
               bytes = profile.at("ceiling").at("bytes_per_second").get<double>();
  const std::vector<Dot> dots = dots_of(profile);
  if (!(flops > 0 && bytes > 0) || dots.empty()) return "";
  constexpr double kHeight = 440, kLeft = 84, kBottom = kHeight - 46, kTop = 24;
  constexpr size_t kLabelled = 6;
  Axis x{kLeft, kWidth - 14}, y{kBottom, kTop};
  const double ridge = flops / bytes;
  x.take(ridge);
  y.take(flops);
  for (const Dot& d : dots) x.take(d.intensity), y.take(d.rate);
  x.settle();
  y.settle();
  std::string s = picture_opening(kWidth, kHeight, "speed of each op over its arithmetic per byte");
  for (double e = std::ceil(x.low); e <= x.high; ++e) {
    const double at = x.at(std::pow(10, e));
    s += line(at, kTop, at, kBottom, kGrid);
    s += fmt::format(
        "<text class=\"quiet\" x=\"{:.1f}\" y=\"{:.0f}\" text-anchor=\"middle\">{:g}</text>\n", at,
        kBottom + 17, std::pow(10, e));
  }
  for (double e = std::ceil(y.low); e <= y.high; ++e) {
    const double at = y.at(std::pow(10, e));
    s += line(kLeft, at, x.until, at, kGrid);
    s += fmt::format(
        "<text class=\"quiet\" x=\"{:.0f}\" y=\"{:.1f}\" text-anchor=\"end\">{}</text>\n",
        kLeft - 6, at + 4, rate_text(std::pow(10, e), "FLOP/s"));
  }
  s += fmt::format(
      "<text class=\"quiet\" x=\"{:.0f}\" y=\"{:.0f}\" text-anchor=\"middle\">FLOP for every byte "
      "read or written</text>\n",
      (kLeft + x.until) / 2, kHeight - 8);
  // The dots lie under the ceilings, for the lines to be seen.
  Labels labels;
  auto radius = [](const Dot& d) { return std::max(2.5, 36 * std::sqrt(d.share)); };
  for (const Dot& d : dots) {
    const double at = x.at(d.intensity), up = y.at(d.rate), r = radius(d);
    s += fmt::format(
        "<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"{:.1f}\" fill=\"{}\" fill-opacity=\"0.6\" "
        "stroke=\"{}\"><title>{}</title></circle>\n",
        at, up, r, colour("forward"), colour("forward"), escaped(d.tip));
    labels.dots.push_back({at - r, up - r, at + r, up + r});
  }
  const double from = std::max(std::pow(10, x.low), std::pow(10, y.low) / bytes);
  const double x0 = x.at(from), y0 = y.at(from * bytes), x1 = x.at(ridge), y1 = y.at(flops);
  s += line(x0, y0, x1, y1, kEdge);
  s += line(x1, y1, x.until, y1, kEdge);
  // Products are fast where much is done with a byte: large dots stand at the right.
  constexpr double kLabel = 150;
  const double label = std::min(x1 + 8, x.until - kLabel);
  s += fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\">products {}</text>\n", label, y1 - 7,
                   rate_text(flops, "FLOP/s"));
  labels.texts.push_back({label, y1 - 20, label + kLabel, y1});
  // Along the slope and under it, near its foot.
  const double length = std::hypot(x1 - x0, y1 - y0);
  if (length > 130) {
    const double part = 75 / length, middle = x0 + part * (x1 - x0), foot = y0 + part * (y1 - y0);
    s += fmt::format(
        "<text x=\"{0:.1f}\" y=\"{1:.1f}\" text-anchor=\"middle\" transform=\"rotate({2:.1f} "
        "{0:.1f} {1:.1f})\" dy=\"15\">memory {3}</text>\n",
        middle, foot, 180 / std::numbers::pi * std::atan2(y1 - y0, x1 - x0),
        rate_text(bytes, "B/s"));
    labels.texts.push_back({middle - 45, foot - 25, middle + 55, foot + 35});
  }
  for (size_t i = 0; i < std::min(kLabelled, dots.size()); ++i)
    if (dots[i].share >= 0.01)
      s += labels.place(dots[i].name, x.at(dots[i].intensity), y.at(dots[i].rate), radius(dots[i]));
  return s + "</svg>\n";
}

std::string gains_picture(const SearchResult& searched) {
  const std::vector<GainRow> rows = gain_rows(searched);
  if (rows.empty()) return "";
  constexpr double kRow = 42, kHeading = 32, kMargin = 10;
  double low = -1, high = 1, height = 8;
  for (const GainRow& r : rows) {
    height += r.heading ? kHeading : r.gain ? kRow : kRow - 6;
    if (!r.gain) continue;
    low = std::min(low, gain_percent(r.gain->ratio) - noise_percent(*r.gain));
    high = std::max(high, gain_percent(r.gain->ratio) + noise_percent(*r.gain));
  }
  const double scale = (kWidth - 2 * kMargin) / (high - low);
  auto at = [&](double value) { return kMargin + scale * (value - low); };
  std::string s = picture_opening(kWidth, height, "what each change does to the speed, in percent");
  double y = 4;
  for (const GainRow& r : rows) {
    if (r.heading) {
      s += fmt::format("<text class=\"quiet\" x=\"{:.0f}\" y=\"{:.1f}\">{}</text>\n", kMargin,
                       y + 21, escaped(r.title));
      y += kHeading;
      continue;
    }
    s += fmt::format("<text x=\"{:.0f}\" y=\"{:.1f}\"{}>{}<title>{}</title></text>\n", kMargin,
                     y + 12, r.strong ? " font-weight=\"bold\"" : "",
                     escaped(shortened(r.title, 80)), escaped(r.title));
    if (!r.gain) {
      s += fmt::format(
          "<text class=\"quiet\" x=\"{:.0f}\" y=\"{:.1f}\" "
          "font-style=\"italic\">{}<title>{}</title></text>\n",
          kMargin, y + 28, escaped(shortened(r.verdict, 110)), escaped(r.verdict));
      y += kRow - 6;
      continue;
    }
    const double value = gain_percent(r.gain->ratio), noise = noise_percent(*r.gain);
    s += fmt::format("<text x=\"{:.0f}\" y=\"{:.1f}\" text-anchor=\"end\"{}>{}</text>\n",
                     kWidth - kMargin, y + 12, r.strong ? " font-weight=\"bold\"" : "",
                     gain_text(*r.gain));
    s += fmt::format(
        "<rect x=\"{:.2f}\" y=\"{:.1f}\" width=\"{:.2f}\" height=\"14\" fill=\"{}\"><title>{}: "
        "{}</title></rect>\n",
        at(std::min(0.0, value)), y + 18, scale * std::abs(value), colour(r.verdict),
        escaped(r.title), escaped(r.verdict));
    s += line(at(0), y + 16, at(0), y + 34, kMark);
    const double middle = y + 25, left = at(value - noise), right = at(value + noise);
    s += line(left, middle, right, middle, kMark);
    s += line(left, middle - 4, left, middle + 4, kMark);
    s += line(right, middle - 4, right, middle + 4, kMark);
    y += kRow;
  }
  return s + "</svg>\n";
}

}  // namespace millrace
