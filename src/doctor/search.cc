#include "doctor/search.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "core/clock.h"

namespace millrace {
namespace {

// As `--time-budget` takes it, no less.
std::string asked_text(double seconds) {
  return seconds <= 120 ? fmt::format("{:.0f}s", std::ceil(seconds))
                        : fmt::format("{:.0f}m", std::ceil(seconds / 60));
}

class Searcher {
 public:
  Searcher(const TryOut& try_out, const SearchOptions& options, SearchResult& result)
      : try_out_(try_out),
        options_(options),
        result_(result),
        seconds_(result.original.front().seconds) {}

  void alone(std::vector<Remedy> remedies) {
    // What a finding points at comes before what is only a choice.
    std::stable_sort(remedies.begin(), remedies.end(), [](const Remedy& a, const Remedy& b) {
      return a.is_choice != b.is_choice ? b.is_choice : a.ceiling > b.ceiling;
    });
    int waiting = 0;  // left out, and each would have had its turns
    for (Remedy& remedy : remedies) {
      // Some of the time is for what comes behind: all together, and once more.
      const double needed = needed_for(kTrying * (1 + waiting) + faster_ + kConfirming);
      if (remedy.ceiling < Gain::kLeast) {
        leave_out(remedy, fmt::format("could save at most {:.1f} %", 100 * remedy.ceiling));
      } else if (needed > options_.budget_seconds) {
        leave_out(remedy, no_time(needed));
        ++waiting;
      } else {
        result_.alone.push_back(one(std::move(remedy)));
      }
    }
  }

  // What seems faster or may be, but not beyond the noise, gets more turns while there is time.
  void look_again() {
    constexpr int kMostTurns = 3;
    for (int turn = 0; turn < kMostTurns; ++turn)
      for (Tried& t : result_.alone) {
        const bool seems = t.verdict == kNoEffect && t.gain.ratio >= 1 + Gain::kLeast;
        if ((!seems && t.verdict != kUnclear) || is_beaten(t)) continue;
        if (needed_for(2 + faster_ + kConfirming) > options_.budget_seconds) return;
        options_.say(t.remedy.title + ", once more");
        again(result_.original, {});
        again(t.runs, t.remedy.overrides);
        t.gain = gain(neighbours(), t.runs);
        t.verdict = verdict_of(t);
        faster_ += t.verdict == kFaster ? 1 : 0;
      }
  }

  // The best of each kind joins those that are faster already, largest gain first.
  void together() {
    std::vector<const Tried*> winners;
    for (const Tried& t : result_.alone) {
      if (t.verdict != kFaster || t.remedy.maths == Maths::other_problem) continue;
      const auto same = std::find_if(winners.begin(), winners.end(),
                                     [&](const Tried* w) { return w->remedy.id == t.remedy.id; });
      if (same == winners.end())
        winners.push_back(&t);
      else if (t.gain.ratio > (*same)->gain.ratio)
        *same = &t;
    }
    std::stable_sort(winners.begin(), winners.end(),
                     [](const Tried* a, const Tried* b) { return a->gain.ratio > b->gain.ratio; });
    for (const Tried* winner : winners) {
      Tried joined{winner->remedy, {}, {}, false, {}};
      std::vector<std::string> overrides = result_.overrides;
      overrides.insert(overrides.end(), winner->remedy.overrides.begin(),
                       winner->remedy.overrides.end());
      const double needed = needed_for(1 + kConfirming);
      if (result_.overrides.empty()) {
        joined.runs = winner->runs;
      } else if (needed > options_.budget_seconds) {
        leave_out(winner->remedy, "faster alone; with the others " + no_time(needed));
        continue;
      } else {
        options_.say("and " + winner->remedy.title);
        joined.runs = {run(overrides)};
      }
      if (result_.overrides.empty()) {
        joined.gain = winner->gain;
      } else if (joined.runs.front().is_measured()) {
        joined.gain = gain(whole_, joined.runs);
        // It was faster alone: that it is not any more is looked at twice.
        if (!joined.gain.is_faster()) again(joined.runs, overrides);
        joined.gain = gain(whole_, joined.runs);
      }
      joined.verdict = verdict_of(joined);
      joined.kept = joined.verdict == kFaster;
      if (joined.kept) {
        result_.overrides = std::move(overrides);
        whole_ = joined.runs;
      }
      result_.together.push_back(std::move(joined));
    }
  }

  void confirm() {
    if (result_.overrides.empty()) return;
    std::vector<Measured> before, after;
    // Others may hold the machine for as long as two turns take.
    constexpr int kMostTurns = 4;
    auto disturbed = [&] { return gap_of(before) > kDisturbed || gap_of(after) > kDisturbed; };
    for (int turn = 0; turn < kConfirming / 2 || (turn < kMostTurns && disturbed()); ++turn) {
      // The time for it was set aside: the first turn may take a little more.
      const double needed = needed_for(turn == 0 ? 1 : 2);
      if (needed > options_.budget_seconds) {
        if (turn > 0) break;
        result_.left_out.push_back("all together, once more: " + no_time(needed_for(kConfirming)));
        return;
      }
      options_.say(fmt::format("once more, all together, turn {}", turn + 1));
      before.push_back(run({}));
      after.push_back(run(result_.overrides));
      if (!before.back().is_measured() || !after.back().is_measured()) return;
    }
    result_.original.insert(result_.original.end(), before.begin(), before.end());
    // What was measured of the same before counts, too: it is further apart in time.
    after.insert(after.begin(), whole_.begin(), whole_.end());
    result_.final_runs = std::move(after);
    result_.confirmed = gain(result_.original, result_.final_runs);
  }

  double elapsed() const { return seconds_since(begin_); }

 private:
  static constexpr double kDisturbed = 0.1;

  // The budget with which so many more runs end in time.
  double needed_for(int runs) const {
    return options_.spent_seconds + elapsed() + runs * seconds_ / runs_;
  }
  static std::string no_time(double needed) {
    return "the time was up; --time-budget " + asked_text(needed) + " has time for it";
  }
  void leave_out(const Remedy& remedy, const std::string& why) {
    result_.left_out.push_back(fmt::format("{}: {}", remedy.title, why));
  }
  // The last measurements of the config as it is: machines drift.
  std::vector<Measured> neighbours() const {
    constexpr size_t kMost = 3;
    const size_t all = result_.original.size();
    return {result_.original.end() - static_cast<std::ptrdiff_t>(std::min(kMost, all)),
            result_.original.end()};
  }
  void again(std::vector<Measured>& runs, const std::vector<std::string>& overrides) {
    if (Measured m = run(overrides); m.is_measured()) runs.push_back(std::move(m));
  }
  Measured run(const std::vector<std::string>& overrides) {
    Measured m = try_out_(overrides, result_.updates);
    seconds_ += m.seconds;
    ++runs_;
    return m;
  }
  std::string verdict_of(const Tried& t) const {
    const Measured& m = t.runs.front();
    if (!m.is_measured()) return fmt::format("{}: {}", outcome_name(m.outcome), m.reason);
    // Another problem has other losses.
    if (t.gain.is_faster() && t.remedy.maths != Maths::other_problem &&
        loss_change(result_.original.front(), m).is_higher())
      return std::string(kHigherLoss);
    return std::string(millrace::verdict_of(t.gain));
  }
  Gain gain(const std::vector<Measured>& before, const std::vector<Measured>& after) const {
    std::vector<std::vector<Measured>> groups{result_.original, after, result_.final_runs};
    for (const Tried& t : result_.alone)
      if (t.runs.front().is_measured()) groups.push_back(t.runs);
    return gain_of(before, after, spread_of(groups));
  }
  // One of its kind is faster already, and by more.
  bool is_beaten(const Tried& t) const {
    return std::ranges::any_of(result_.alone, [&](const Tried& other) {
      return other.remedy.id == t.remedy.id && other.verdict == kFaster &&
             other.gain.ratio > t.gain.ratio;
    });
  }
  Tried one(Remedy remedy) {
    options_.say(remedy.title);
    Tried t{std::move(remedy), {}, {}, false, {}};
    t.runs.push_back(run(t.remedy.overrides));
    if (t.runs.front().is_measured()) {
      again(result_.original, {});
      t.gain = gain({result_.original.back()}, t.runs);
      // What is slower than another of its kind is not measured again.
      if (!is_beaten(t)) again(t.runs, t.remedy.overrides);
      // One of two was disturbed.
      if (gap_of(t.runs) > kDisturbed) again(t.runs, t.remedy.overrides);
      t.gain = gain(neighbours(), t.runs);
    }
    t.verdict = verdict_of(t);
    faster_ += t.verdict == kFaster ? 1 : 0;
    return t;
  }

  const TryOut& try_out_;
  const SearchOptions& options_;
  SearchResult& result_;
  std::vector<Measured> whole_;  // runs of all that is kept
  const int64_t begin_ = now_ns();
  double seconds_;  // of all runs, the one of the config as it is among them
  int runs_ = 1, faster_ = 0;
};

}  // namespace

int64_t Tried::peak_bytes() const {
  return std::ranges::min_element(runs, {}, &Measured::peak_bytes)->peak_bytes;
}

std::string_view verdict_of(const Gain& gain) {
  return gain.is_faster()    ? kFaster
         : gain.is_slower()  ? kSlower
         : gain.is_unclear() ? kUnclear
                             : kNoEffect;
}

int64_t updates_of_trial(const Measured& look, double trial_seconds, double runs,
                         double budget_seconds) {
  constexpr double kLeast = 1e-6;
  const double wanted =
                   std::clamp(trial_seconds / std::max(kLeast, look.update_seconds), 8.0, 20000.0),
               more = (budget_seconds / runs - look.seconds) / std::max(kLeast, look.more_seconds);
  return std::max(look.updates,
                  int64_t{std::lround(std::min(wanted, static_cast<double>(look.updates) + more))});
}

SearchResult search(const TryOut& try_out, Measured first, int64_t updates,
                    std::vector<Remedy> remedies, const SearchOptions& options) {
  SearchResult result;
  result.updates = updates;
  result.original.push_back(std::move(first));
  Searcher searcher(try_out, options, result);
  searcher.alone(std::move(remedies));
  searcher.look_again();
  searcher.together();
  searcher.confirm();
  result.seconds = searcher.elapsed();
  return result;
}

}  // namespace millrace
