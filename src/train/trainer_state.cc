#include "train/trainer_state.h"

#include <cmath>
#include <functional>

#include "core/error.h"
#include "io/json_parser.h"
#include "io/quote.h"

namespace millrace {
namespace {

using Json = nlohmann::ordered_json;
using Parsed = nlohmann::json;  // sorted: an ordered one takes a quadratic time for many keys
constexpr size_t kMaxBytes = 16 << 20;
constexpr const char* kMetricName = "metric_for_best_model";

// One place names every field: visit() is used for writing and for reading.
template <typename State, typename Visit>
void visit(State& s, const Visit& field) {
  field("global_step", s.step);
  field("samples_seen", s.samples);
  field("num_input_tokens_seen", s.tokens);
  field("num_input_places", s.places);
  field("first_loss", s.first_loss);
  field("last_loss", s.last_loss);
  field("window_loss", s.window.loss);
  field("window_steps", s.window.steps);
  field("epoch_loss", s.epoch.loss);
  field("epoch_steps", s.epoch.steps);
  field("evaluated_step", s.evaluated_step);
  field("sampled_step", s.sampled_step);
  field("evaluations", s.evaluations);
  field(kMetricName, s.metric_name);
  field("has_best", s.has_best);
  field("best_metric", s.best_metric);
  field("best_global_step", s.best_step);
  field("evaluations_without_gain", s.evaluations_without_gain);
  field("last_metric", s.last_metric);
  field("skipped_updates", s.skipped);
  field("skipped_in_a_row", s.skipped_in_a_row);
  field("rollbacks", s.rollbacks);
  field("recent_losses", s.losses.recent);
  field("spikes_in_a_row", s.losses.spikes_in_a_row);
  field("train_runtime", s.seconds);
  field("metrics_bytes", s.metrics_bytes);
  field("data_digest", s.data_digest);
  field("choices", s.choices);
}

// JSON has no NaN and no infinity; a loss may be either.
Json number(double value) {
  if (std::isfinite(value)) return value;
  return std::isnan(value) ? "nan" : value > 0 ? "inf" : "-inf";
}

}  // namespace

bool TrainerState::add_evaluation(double metric, const Settings& s) {
  evaluated_step = step;
  metric_name = s.checkpoint.metric;
  ++evaluations;
  last_metric = metric;
  const double gain = s.checkpoint.larger_is_better() ? metric - best_metric : best_metric - metric;
  if (!std::isfinite(metric) || (has_best && !(gain > s.early_stop_delta))) {
    ++evaluations_without_gain;
    return false;
  }
  has_best = true;
  best_metric = metric;
  best_step = step;
  evaluations_without_gain = 0;
  return true;
}

bool TrainerState::judge_by(const std::string& metric) {
  if (metric_name.empty() || metric_name == metric) return false;
  metric_name.clear();
  has_best = false;
  best_metric = 0;
  best_step = evaluations_without_gain = 0;
  last_metric = std::nan("");
  return true;
}

std::string TrainerState::to_json(int64_t total_steps, double epochs) const {
  Json json = {{"max_steps", total_steps}, {"epoch", epochs}};
  visit(*this, [&](const char* name, const auto& value) {
    using T = std::decay_t<decltype(value)>;
    if constexpr (std::is_same_v<T, double>) {
      json[name] = number(value);
    } else if constexpr (std::is_same_v<T, std::deque<double>>) {
      json[name] = Json::array();
      for (const double v : value) json[name].push_back(number(v));
    } else {
      json[name] = value;
    }
  });
  return json.dump(2) + "\n";
}

TrainerState TrainerState::from_json(std::string_view text, const std::string& where) {
  auto refuse = [&](const std::string& field, const char* expected, const std::string& got) {
    throw Error({.code = ErrorCode::failure,
                 .what = "the state of the run cannot be read",
                 .where = field.empty() ? where : where + ": `" + field + "`",
                 .expected = expected,
                 .got = got,
                 .remedy = "resume from another checkpoint"});
  };
  if (text.size() > kMaxBytes) refuse("", "at most 16 MiB", "more");
  const std::function<bool(int, Parsed::parse_event_t, Parsed&)> flat = [&](int depth, auto,
                                                                            Parsed&) {
    if (depth > 3) refuse("", "at most three levels", "a deeper nesting");
    return true;
  };
  Parsed json;
  try {
    json = parse_json(text, flat);
  } catch (const Parsed::exception& error) {
    refuse("", "JSON", quote(error.what(), 200));
  }
  if (!json.is_object()) refuse("", "an object", quote(json.dump(), 60));
  auto to_number = [&](const char* name, const Parsed& value) {
    if (value.is_number()) return value.get<double>();
    if (value == "nan") return std::nan("");
    if (value == "inf" || value == "-inf") return value == "inf" ? HUGE_VAL : -HUGE_VAL;
    refuse(name, "a number", quote(value.dump(), 60));
    return 0.0;
  };
  TrainerState state;
  visit(state, [&](const char* name, auto& target) {
    using T = std::decay_t<decltype(target)>;
    const auto found = json.find(name);
    if (found == json.end()) {
      // Checkpoints of before it was kept: they are taken to be of the metric of now.
      if (std::string_view(name) == kMetricName) return;
      refuse(name, "a value", "nothing");
      return;
    }
    const Parsed& value = *found;
    if constexpr (std::is_same_v<T, double>) {
      target = to_number(name, value);
    } else if constexpr (std::is_same_v<T, bool>) {
      if (!value.is_boolean()) refuse(name, "true or false", quote(value.dump(), 60));
      target = value.template get<bool>();
    } else if constexpr (std::is_same_v<T, int64_t>) {
      // A new state has the lowest count of all. Unsigned, a number above int64 is not a negative.
      const bool counts = value.is_number_unsigned()
                              ? value.template get<uint64_t>() <= uint64_t{1} << 60
                              : value.is_number_integer() && value >= target;
      if (!counts) refuse(name, "a count", quote(value.dump(), 60));
      target = value.template get<int64_t>();
    } else if constexpr (std::is_same_v<T, std::string>) {
      if (!value.is_string()) refuse(name, "a text", quote(value.dump(), 60));
      target = value.template get<std::string>();
    } else {
      if (!value.is_array() || value.size() > 100'000)
        refuse(name, "a list of numbers", quote(value.dump(), 60));
      for (const Parsed& item : value) target.push_back(to_number(name, item));
    }
  });
  return state;
}

TrainerState TrainerState::of_checkpoint(const fs::path& folder) {
  const fs::path path = folder / kTrainerStateName;
  return from_json(read_file(path, static_cast<int64_t>(kMaxBytes)), path.string());
}

bool is_finished(const TrainerState& state, const Settings& s, const RunLength& length) {
  return (state.step >= length.total && state.evaluated_step == state.step) ||
         (s.early_stop_patience > 0 && state.evaluations_without_gain >= s.early_stop_patience);
}

}  // namespace millrace
