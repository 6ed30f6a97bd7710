#include "doctor/profile_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <nlohmann/json.hpp>
#include <numeric>

#include "core/text.h"
#include "doctor/diagnosis_pictures.h"
#include "doctor/picture.h"

namespace millrace {
namespace {

double percentile(std::vector<double> values, double share) {
  std::sort(values.begin(), values.end());
  return values[static_cast<size_t>(share * static_cast<double>(values.size() - 1))];
}

double per_update(const Profile& p, double ns) {
  return ns * 1e-9 / static_cast<double>(p.options.updates);
}
// What an op would save at its limit; nothing where a cache lets it be faster.
double recoverable(const Profile& p, const LedgerRow& row) {
  return p.ceiling.flops > 0
             ? per_update(p, std::max(0.0, static_cast<double>(row.ns) - row.limit_ns))
             : 0;
}

std::string occasion_text(const char* name, const Occasion& o) {
  if (o.every_updates <= 0)
    return fmt::format("  {:<12} {} once, at the end\n", name, human_seconds(o.seconds));
  return fmt::format("  {:<12} {} each, every {} updates\n", name, human_seconds(o.seconds),
                     with_commas(std::llround(std::max(1.0, o.every_updates))));
}

std::string table(const Profile& p, const char* title, std::vector<LedgerRow> rows) {
  const double total = p.seconds_with_occasions();
  std::string s = fmt::format("\n{:<32} {:>9} {:>7} {:>9} {:>10} {:>9} {:>9} {:>12}\n", title, "ms",
                              "share", "GFLOP", "MB", "limit ms", "of limit", "recoverable");
  auto line = [&](const LedgerRow& row) {
    const auto updates = static_cast<double>(p.options.updates);
    const double seconds = per_update(p, static_cast<double>(row.ns)),
                 limit = per_update(p, row.limit_ns);
    s += fmt::format("  {:<30} {:>9.3f} {:>5.1f} % {:>9.3f} {:>10.2f}", row.name, 1e3 * seconds,
                     100 * seconds / total, 1e-9 * row.flops / updates, 1e-6 * row.bytes / updates);
    s += p.ceiling.flops > 0
             ? fmt::format(" {:>9.3f} {:>7.0f} % {:>9.3f} ms\n", 1e3 * limit,
                           100 * limit / std::max(seconds, 1e-12), 1e3 * recoverable(p, row))
             : "\n";
  };
  const double least_ns = 0.01 * total * 1e9 * static_cast<double>(p.options.updates);
  for (const LedgerRow& row : join_small(std::move(rows), least_ns)) line(row);
  return s;
}

// How often each kernel is started: many that take next to nothing are a cost of their own.
std::string kernel_table(const Profile& p) {
  const auto updates = static_cast<double>(p.options.updates);
  auto rows = rows_by_kernel(p.ledger);
  double all = 0;
  for (const LedgerRow& row : rows) all += static_cast<double>(row.started) / updates;
  std::string s =
      fmt::format("\n{:<32} {:>9} {:>9} {:>9}\n", fmt::format("kernels, {:.0f} in an update", all),
                  "times", "ms each", "ms");
  const double least_ns = 0.01 * p.seconds * 1e9 * updates;
  for (const LedgerRow& row : join_small(std::move(rows), least_ns))
    s += fmt::format(
        "  {:<30} {:>9.1f} {:>9.3f} {:>9.3f}\n", row.name,
        static_cast<double>(row.started) / updates,
        1e-6 * static_cast<double>(row.ns) / static_cast<double>(std::max<int64_t>(1, row.started)),
        1e3 * per_update(p, static_cast<double>(row.ns)));
  return s;
}

nlohmann::ordered_json rows_json(const Profile& p, const std::vector<LedgerRow>& rows) {
  auto list = nlohmann::ordered_json::array();
  const auto updates = static_cast<double>(p.options.updates);
  for (const LedgerRow& row : rows)
    list.push_back({{"name", row.name},
                    {"seconds", per_update(p, static_cast<double>(row.ns))},
                    {"limit_seconds", per_update(p, row.limit_ns)},
                    {"recoverable_seconds", recoverable(p, row)},
                    {"flops", row.flops / updates},
                    {"bytes", row.bytes / updates},
                    {"nodes", row.nodes}});
  return list;
}

}  // namespace

std::string budget_text(std::span<const double, kOwners> seconds) {
  const double total = std::accumulate(seconds.begin(), seconds.end(), 0.0);
  std::string s;
  for (size_t i = 1; i <= kOwners; ++i) {
    const auto owner = static_cast<Owner>(i % kOwners);
    const double its = seconds[i % kOwners], share = total > 0 ? its / total : 0;
    if (its == 0 && owner != Owner::residual) continue;
    std::string bar;
    for (int k = 0; k < static_cast<int>(std::lround(share * 40)); ++k) bar += "█";
    s += fmt::format("  {:<12} {:>9}  {:>5.1f} %  {}\n", owner_name(owner), human_seconds(its),
                     100 * share, bar);
  }
  return s;
}

std::string noise_text(std::optional<double> share, std::string_view sign) {
  return share ? fmt::format("{}{:.1f} %", sign, 100 * *share) : "(noise unknown)";
}

std::string profile_report(const Profile& p) {
  const double total = p.seconds_with_occasions();
  std::string s = fmt::format("an update    {} {} over {} updates after {} (p10 {}, p90 {})\n",
                              human_seconds(p.undisturbed), noise_text(p.noise), p.options.updates,
                              p.options.warm_up, human_seconds(percentile(p.update_seconds, 0.1)),
                              human_seconds(percentile(p.update_seconds, 0.9)));
  s += fmt::format("tokens       {}/s, {:.1f} % of the places hold one; {} places an update\n",
                   human_count(p.useful_tokens_per_second()), 100 * p.useful_share,
                   with_commas(std::llround(p.places_per_update)));
  if (!p.slowed.empty()) s += fmt::format("clock        the device holds it down: {}\n", p.slowed);
  s += fmt::format("speed        {:.1f} GFLOP/s{}\n", p.flops_per_update / p.seconds * 1e-9,
                   p.ceiling.flops > 0
                       ? fmt::format(" = {:.0f} % of the ceiling {:.1f}, measured here",
                                     100 * p.flops_per_update / p.seconds / p.ceiling.flops,
                                     p.ceiling.flops * 1e-9)
                       : "");
  s += fmt::format(
      "the whole    {} for {} updates at this pace\n\nwhere the time of an update goes ({})\n",
      human_seconds(total * static_cast<double>(p.updates_of_run)), with_commas(p.updates_of_run),
      human_seconds(total));
  std::array<double, kOwners> budget{};
  for (size_t i = 0; i < kOwners; ++i) budget[i] = p.owner_seconds(static_cast<Owner>(i));
  s += budget_text(budget);
  for (const auto& [name, occasion] : p.occasions()) s += occasion_text(name, *occasion);
  s += table(p, "by component, of an update", rows_by_component(p.ledger, p.ceiling));
  s += table(p, "by op, of an update", rows_by_op(p.ledger, p.ceiling));
  s += kernel_table(p);
  if (p.ceiling.flops > 0)
    s += fmt::format(
        "(limit: each node at the ceiling measured here, whichever takes longest: {}. Recoverable: "
        "what is above it.)\n",
        ceiling_text(p.ceiling));
  return s;
}

nlohmann::ordered_json profile_json(const Profile& p) {
  nlohmann::ordered_json j = {
      {"updates", p.options.updates},
      {"warm_up", p.options.warm_up},
      {"update_seconds",
       {{"mean", p.seconds},
        {"undisturbed", p.undisturbed},
        {"noise_share", p.noise ? nlohmann::ordered_json(*p.noise) : nullptr},
        {"p10", percentile(p.update_seconds, 0.1)},
        {"p50", percentile(p.update_seconds, 0.5)},
        {"p90", percentile(p.update_seconds, 0.9)}}},
      {"seconds_with_occasions", p.seconds_with_occasions()},
      {"updates_of_run", p.updates_of_run},
      {"updates_per_epoch", p.updates_per_epoch},
      {"mean_loss", p.mean_loss},
      {"loss_error", p.loss_error},
      {"places_per_update", p.places_per_update},
      {"useful_share", p.useful_share},
      {"useful_tokens_per_second", p.useful_tokens_per_second()},
      {"flops_per_update", p.flops_per_update},
      {"ceiling", {{"flops_per_second", p.ceiling.flops}, {"bytes_per_second", p.ceiling.bytes}}}};
  if (p.ceiling_is_new) j["ceiling"]["seconds"] = p.ceiling_seconds;
  for (const CacheCeiling& cache : p.ceiling.caches)
    j["ceiling"]["caches"].push_back(
        {{"capacity", cache.capacity}, {"bytes_per_second", cache.bytes}});
  for (size_t i = 0; i < kOwners; ++i) {
    const auto owner = static_cast<Owner>(i);
    j["budget_seconds"][std::string(owner_name(owner))] = p.owner_seconds(owner);
  }
  for (const auto& [name, o] : p.occasions())
    j[name] = {{"seconds", o->seconds}, {"every_updates", o->every_updates}};
  for (const BackgroundTimes& t : p.result.ledger.background)
    j["workers"].push_back({{"name", t.name},
                            {"busy_seconds", static_cast<double>(t.busy_ns) * 1e-9},
                            {"wait_seconds", static_cast<double>(t.wait_ns) * 1e-9},
                            {"items", t.items}});
  if (p.watts) j["watts"] = *p.watts;
  if (!p.slowed.empty()) j["slowed"] = p.slowed;
  j["peak_resident_bytes"] = p.peak_resident_bytes;
  if (p.result.device_bytes) j["device_bytes"] = *p.result.device_bytes;
  j["components"] = rows_json(p, rows_by_component(p.ledger, p.ceiling));
  j["ops"] = rows_json(p, rows_by_op(p.ledger, p.ceiling));
  for (const LedgerRow& row : rows_by_kernel(p.ledger))
    j["kernels"].push_back(
        {{"name", row.name},
         {"times", static_cast<double>(row.started) / static_cast<double>(p.options.updates)},
         {"seconds", per_update(p, static_cast<double>(row.ns))}});
  return j;
}

namespace {

// Of a group of spans: an owner of time, or what others do.
std::string_view group_words(std::string_view group) {
  for (size_t i = 0; i < kOwners; ++i)
    if (group == owner_name(static_cast<Owner>(i))) return owner_words(static_cast<Owner>(i));
  return group == "run" ? "the step" : group == "input" ? "making batches" : group;
}

}  // namespace

std::string timeline_picture(const Timeline& timeline) {
  constexpr double kWidth = 1160, kLeft = 90, kRow = 34, kTop = 46;
  const auto& spans = timeline.spans();
  int64_t begin = 0, end = 0;
  for (const Span& s : spans) {
    begin = begin == 0 ? s.begin : std::min(begin, s.begin);
    end = std::max(end, s.end);
  }
  const double scale = (kWidth - kLeft) / static_cast<double>(std::max<int64_t>(1, end - begin));
  std::string lanes;
  for (size_t lane = 0; lane < timeline.lanes().size(); ++lane)
    lanes +=
        fmt::format("<text x=\"4\" y=\"{:.0f}\">{}</text>\n",
                    kTop + kRow * static_cast<double>(lane) + 18, escaped(timeline.lanes()[lane]));
  // Neighbours of one group are one rectangle: there are thousands of nodes and some hundred
  // pixels.
  std::vector<Span> open(timeline.lanes().size());
  std::vector<std::string_view> groups;
  auto draw = [&](const Span& span) {
    const double x = kLeft + scale * static_cast<double>(span.begin - begin),
                 w = std::max(0.4, scale * static_cast<double>(span.end - span.begin));
    lanes += fmt::format(
        "<rect x=\"{:.2f}\" y=\"{:.0f}\" width=\"{:.2f}\" height=\"24\" fill=\"{}\"><title>{} "
        "{}</title></rect>\n",
        x, kTop + kRow * span.lane, w, colour(span.group), escaped(group_words(span.group)),
        human_seconds(static_cast<double>(span.end - span.begin) * 1e-9));
    if (std::ranges::find(groups, span.group) == groups.end()) groups.push_back(span.group);
  };
  for (const Span& span : spans) {
    Span& last = open[span.lane];
    const bool joins = last.end > 0 && last.group == span.group &&
                       scale * static_cast<double>(span.begin - last.end) < 0.3;
    if (joins) {
      last.end = span.end;
      continue;
    }
    if (last.end > 0) draw(last);
    last = span;
  }
  for (const Span& last : open)
    if (last.end > 0) draw(last);
  std::string legend;
  double x = kLeft, y = 12;
  for (const std::string_view group : groups) {
    const std::string_view words = group_words(group);
    const double width = 30 + 6.5 * static_cast<double>(words.size());
    if (x + width > kWidth) {
      x = kLeft;
      y += 20;
    }
    legend += fmt::format(
        "<rect x=\"{0:.0f}\" y=\"{4:.0f}\" width=\"12\" height=\"12\" fill=\"{1}\"/><text "
        "x=\"{2:.0f}\" y=\"{5:.0f}\">{3}</text>\n",
        x, colour(group), x + 16, escaped(words), y, y + 10);
    x += width;
  }
  // The lanes begin below it.
  const double down = y - 12,
               height = down + kTop + kRow * static_cast<double>(timeline.lanes().size()) + 30;
  return picture_opening(kWidth + 10, height, "who worked when, and what was waited for") + legend +
         fmt::format("<g transform=\"translate(0,{:.0f})\">\n{}</g>\n", down, lanes) +
         fmt::format(
             "<text x=\"{:.0f}\" y=\"{:.0f}\">0</text><text x=\"{:.0f}\" y=\"{:.0f}\" "
             "text-anchor=\"end\">{}</text>\n</svg>\n",
             kLeft, height - 8, kWidth, height - 8,
             human_seconds(static_cast<double>(end - begin) * 1e-9));
}

}  // namespace millrace
