#include "cli/console.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "core/text.h"
#include "doctor/profile_report.h"

namespace millrace {
namespace {

using Json = nlohmann::ordered_json;

int terminal_width() {
  winsize size{};
  return ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 100;
}

std::string clock_text(double seconds) {
  const auto s = static_cast<int64_t>(seconds + 0.5);
  return s >= 3600 ? fmt::format("{}:{:02}:{:02}", s / 3600, s / 60 % 60, s % 60)
                   : fmt::format("{}:{:02}", s / 60, s % 60);
}

}  // namespace

Console::Console(const Settings& settings, std::optional<double> entropy, int64_t step,
                 int64_t total)
    : format_(settings.log_format == "json"   ? Format::json
              : settings.log_format == "none" ? Format::none
              : settings.log_format == "bar" ||
                      (settings.log_format == "auto" && isatty(STDERR_FILENO))
                  ? Format::bar
                  : Format::plain),
      colour_(wants_colour(STDERR_FILENO)),
      entropy_(entropy),
      total_(total),
      log_interval_(settings.log_interval),
      bar_(format_ == Format::bar) {
  bar_.draw([&] { return bar_text(step); });
}

void Console::line(const std::string& text) {
  bar_.clear();
  std::fprintf(stderr, "%s\n", text.c_str());
  std::fflush(stderr);
}

void Console::note(const std::string& text) {
  if (format_ == Format::json)
    line(Json{{"type", "note"}, {"text", text}}.dump());
  else
    line(text);
}

void Console::step(const StepReport& r) {
  if (format_ == Format::none) return;
  if (format_ == Format::json) {
    line(Json{{"type", "train"},
              {"step", r.step},
              {"total", r.total},
              {"loss", r.loss},
              {"grad_norm", r.grad_norm},
              {"learning_rate", r.learning_rate},
              {"tokens_per_sec", r.tokens_per_second},
              {"step_s", r.step_seconds},
              {"elapsed_s", r.elapsed_seconds},
              {"remaining_s", r.remaining_seconds}}
             .dump());
    return;
  }
  const int64_t now = now_ns();
  const bool last = r.step == r.total;
  if (format_ == Format::plain) {
    // A file or a scheduler's log: a line now and then, never a bar.
    if (!last && last_line_ns_ != 0 && now - last_line_ns_ < 10'000'000'000) return;
    last_line_ns_ = now;
    line(describe(r));
    return;
  }
  report_ = r;
  report_ns_ = now;
  if (last)
    bar_.draw_now(bar_text(r.step));
  else
    bar_.draw([&] { return bar_text(r.step); });
}

void Console::updated(const UpdateReport& r, Ledger&) {
  if (r.last) bar_.draw([&] { return bar_text(r.step); });
}

std::string Console::bar_text(int64_t step) const {
  const double share =
                   static_cast<double>(step) / static_cast<double>(std::max<int64_t>(1, total_)),
               since = seconds_since(report_ns_);
  std::string tail = fmt::format(" {}/{}  ", with_commas(step), with_commas(total_));
  if (report_.step == 0) {
    const int64_t first = std::min((step / log_interval_ + 1) * log_interval_, total_);
    tail += fmt::format("first figures at update {}  {}", with_commas(first), clock_text(since));
  } else {
    const StepReport& r = report_;
    const std::string useful =
        r.useful_share < 1
            ? fmt::format(" (useful {})", human_count(r.tokens_per_second * r.useful_share))
            : "";
    tail += fmt::format("loss {:.3f}  lr {:.1e}  {} tok/s{}  wait {:.0f}%  {}<{}", r.loss,
                        r.learning_rate, human_count(r.tokens_per_second), useful,
                        100 * r.input_wait_share, clock_text(r.elapsed_seconds + since),
                        clock_text(r.remaining_seconds * static_cast<double>(total_ - step) /
                                   static_cast<double>(std::max<int64_t>(1, total_ - r.step))));
  }
  const int room = std::clamp(terminal_width() - static_cast<int>(tail.size()) - 12, 4, 40);
  const int full = static_cast<int>(std::lround(share * room));
  std::string bar;
  for (int i = 0; i < room; ++i) bar += i < full ? "━" : "─";
  return fmt::format("train {:3.0f}% {}{}{}{}", 100 * share, colour_ ? "\033[36m" : "", bar,
                     colour_ ? "\033[0m" : "", tail);
}

void Console::evaluating(const char* what, int64_t done, int64_t all) {
  bar_.draw([&] { return share_text(what, done, all); });
}

void Console::epoch(const EpochReport& r) {
  if (format_ == Format::json)
    line(Json{{"type", "epoch"},
              {"epoch", r.epoch},
              {"epochs", r.epochs},
              {"loss", r.loss},
              {"seconds", r.seconds},
              {"samples_per_sec", r.samples_per_second}}
             .dump());
  else if (format_ != Format::none)
    line(describe(r));
}

void Console::evaluated(int64_t step, const Metrics& metrics, bool best) {
  if (format_ == Format::none) return;
  if (format_ == Format::json) {
    Json j = {{"type", "eval"}, {"step", step}, {"best", best}};
    for (const auto& [name, value] : metrics)
      j[name] = std::isfinite(value) ? Json(value) : Json(nullptr);
    line(j.dump());
    return;
  }
  const double loss = metrics.at("eval/loss");
  std::string text = fmt::format("step {:>6}  validation loss {:.4f}{}", with_commas(step), loss,
                                 best ? " *" : "");
  if (const auto ade = metrics.find("eval/ade"); ade != metrics.end())
    text += fmt::format("  ADE {:.3f}, FDE {:.3f}", ade->second, metrics.at("eval/fde"));
  if (const auto share = metrics.find("eval/class_accuracy"); share != metrics.end())
    text += fmt::format("  classes {:.1f} %", 100 * share->second);
  if (entropy_)
    text += fmt::format("  ({:+.1f} % over the source's entropy {:.4f})",
                        100 * (loss / *entropy_ - 1), *entropy_);
  if (const auto bleu = metrics.find("eval/bleu"); bleu != metrics.end())
    text += fmt::format("  BLEU {:.2f}  chrF {:.2f}  ROUGE-1/2/L {:.2f}/{:.2f}/{:.2f}",
                        bleu->second, metrics.at("eval/chrf"), metrics.at("eval/rouge1"),
                        metrics.at("eval/rouge2"), metrics.at("eval/rougeL"));
  line(text);
}

void Console::sampled(int64_t step, const std::string& text) {
  if (format_ == Format::json)
    line(Json{{"type", "sample"}, {"step", step}, {"text", text}}.dump(
        -1, ' ', false, Json::error_handler_t::replace));
  else if (format_ != Format::none)
    line(fmt::format("step {:>6}  the model writes:\n{}\n", with_commas(step), text));
}

void Console::saved(int64_t step) {
  if (format_ == Format::json) line(Json{{"type", "saved"}, {"step", step}}.dump());
}

std::string ledger_report(const TrainResult& result, const Ceiling& ceiling) {
  const Ledger& ledger = result.ledger;
  const auto total = static_cast<double>(ledger.total_ns());
  std::string s = fmt::format("where the time went ({} in all)\n", human_seconds(total * 1e-9));
  std::array<double, kOwners> budget{};
  for (size_t i = 0; i < kOwners; ++i)
    budget[i] = static_cast<double>(ledger.ns(static_cast<Owner>(i))) * 1e-9;
  s += budget_text(budget);
  // What the account itself costs: a read of the clock for every node that ran.
  int64_t reads = 0;
  for (const NodeTimes& t : ledger.node_times())
    reads += t.runs * std::count_if(t.plan->kernels.begin(), t.plan->kernels.end(),
                                    [](const KernelChoice& k) { return !k.name.empty(); });
  constexpr int kReads = 20'000;
  const int64_t start = now_ns();
  for (int i = 0; i < kReads; ++i) [[maybe_unused]] const volatile int64_t now = now_ns();
  const double each = seconds_since(start) / kReads;
  s += fmt::format("  (the account itself: {} reads of the clock, {:.0f} ns each, {:.3f} %)\n",
                   with_commas(reads), each * 1e9,
                   100 * static_cast<double>(reads) * each * 1e9 / total);
  // Beside that time, not in it.
  for (const BackgroundTimes& t : ledger.background) {
    const auto ns = static_cast<double>(t.busy_ns);
    s += fmt::format("  {:<12} {:>9}  {:>5.1f} %  beside it: made {} updates, waited {}\n", t.name,
                     human_seconds(ns * 1e-9), 100 * ns / total, with_commas(t.items),
                     human_seconds(static_cast<double>(t.wait_ns) * 1e-9));
  }
  auto table = [&](const char* title, std::vector<LedgerRow> rows) {
    s += fmt::format("\n  {:<28} {:>9} {:>7} {:>11} {:>9}{}\n", title, "time", "share", "GFLOP/s",
                     "GB/s", ceiling.flops > 0 ? "  of limit" : "");
    auto line = [&](const LedgerRow& row) {
      const auto ns = static_cast<double>(row.ns), alone = static_cast<double>(row.alone_ns);
      s += fmt::format("  {:<28} {:>9} {:>5.1f} % {:>11.1f} {:>9.1f}", row.name,
                       human_seconds(1e-9 * ns), 100 * ns / total, row.flops / alone,
                       row.bytes / alone);
      s += ceiling.flops > 0
               ? fmt::format("  {:>6.1f} %\n", 100 * row.limit_ns / static_cast<double>(row.ns))
               : "\n";
    };
    for (const LedgerRow& row : join_small(std::move(rows), 0.01 * total)) line(row);
  };
  table("by component", rows_by_component(ledger, ceiling));
  table("by op", rows_by_op(ledger, ceiling));
  if (ceiling.flops > 0)
    s += fmt::format(
        "  (of limit: each node at the ceiling measured here, whichever takes longest: {})\n",
        ceiling_text(ceiling));
  return s;
}

}  // namespace millrace
