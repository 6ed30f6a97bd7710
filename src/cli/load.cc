#include "cli/load.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "cli/quickstart.h"
#include "core/text.h"
#include "graph/passes.h"
#include "io/quote.h"
#include "io/yaml.h"
#include "train/trainer.h"

namespace millrace {
namespace {

// The family decides which keys exist, so it is looked up before the schema reads the file.
std::string family_of(const std::string& text, const std::string& name,
                      const std::vector<std::string>& overrides) {
  std::string family = Settings().model_type, where = name;
  const YamlNode root = parse_yaml(text, name);
  for (const YamlEntry& section : root.entries)
    if (section.key == "model")
      for (const YamlEntry& entry : section.value.entries)
        if (entry.key == "type") {
          family = entry.value.text;
          where = fmt::format("{}:{}:{}", name, entry.value.line, entry.value.column);
        }
  for (std::string o : overrides) {
    while (o.starts_with('+')) o.erase(0, 1);
    if (o.starts_with("model.type=")) {
      family = o.substr(11);
      where = "command line: " + printable(o, 200);
    }
  }
  const auto families = model_families();
  if (std::find(families.begin(), families.end(), family) != families.end()) return family;
  const std::string near = nearest(family, families);
  throw Error({.code = ErrorCode::config,
               .what = "bad value for `model.type`",
               .where = where,
               .expected = fmt::format("one of `{}`", fmt::join(families, "`, `")),
               .got = fmt::format("`{}`", printable(family, 200)),
               .remedy = near.empty() ? "model.type=" + families.front()
                                      : fmt::format("did you mean `{}`?", near)});
}

void check_passes(const LoadedRun& run) {
  for (const std::string& off : run.settings.passes_off) {
    const auto names = pass_names();
    if (std::find(names.begin(), names.end(), off) != names.end()) continue;
    std::string known;
    for (std::string_view n : names) known += (known.empty() ? "" : ", ") + std::string(n);
    throw Error({.code = ErrorCode::config,
                 .what = "no pass is called `" + off + "`",
                 .where = run.schema.where("runtime.passes_off"),
                 .expected = known,
                 .got = off,
                 .remedy = "one of the names above"});
  }
}

// Minutes mean nothing to a schedule: a run on a faster machine would be another run.
void check_durations(const LoadedRun& run) {
  const Settings& s = run.settings;
  auto check = [&](const char* key, const std::vector<Duration>& list) {
    for (const Duration& d : list)
      if (d.unit == Duration::Unit::seconds)
        throw Error({.code = ErrorCode::config,
                     .what = fmt::format("`{}` cannot be a time", key),
                     .where = run.schema.where(key),
                     .expected = "steps, tokens or epochs: results must not depend on the clock",
                     .got = d.str(),
                     .remedy = fmt::format("{}=100", key)});
  };
  check("training.warmup", {s.schedule.warmup});
  check("training.eval_every", s.eval_every);
  check("sample.every", s.sample_every);
}

void check_metric(const LoadedRun& run) {
  const auto names = metric_names();
  const std::string& metric = run.settings.checkpoint.metric;
  if (std::find(names.begin(), names.end(), metric) != names.end()) return;
  const std::string near = nearest(metric, names);
  throw Error({.code = ErrorCode::config,
               .what = "validation has no metric of this name",
               .where = run.schema.where("checkpoint.metric"),
               .expected = fmt::format("one of {}", fmt::join(names, ", ")),
               .got = metric,
               .remedy = near.empty() ? "checkpoint.metric=eval/loss"
                                      : fmt::format("did you mean `{}`?", near)});
}

}  // namespace

std::unique_ptr<LoadedRun> load_settings(const RunRequest& request) {
  auto run = std::make_unique<LoadedRun>();
  const std::string name = request.config.empty() ? "built-in quickstart" : request.config;
  if (!request.config.empty() && !fs::is_regular_file(request.config))
    throw Error(
        {.code = ErrorCode::config,
         .what = "no config file at " + request.config,
         .where = request.config,
         .expected = "a YAML or JSON file",
         .got = fs::is_directory(request.config) ? "a folder" : "nothing there",
         .remedy =
             "name a file (configs/ has ready ones), or leave it out for the built-in quickstart"});
  run->config_text =
      request.config.empty() ? std::string(kQuickstartConfig) : read_file(request.config, 16 << 20);
  run->model = make_model(family_of(run->config_text, name, request.overrides));
  run->settings.declare(run->schema);
  run->model->declare(run->schema);
  run->schema.load_text(run->config_text, name);
  for (const std::string& o : request.overrides) run->schema.override_with(o);
  run->schema.finish();
  check_passes(*run);
  check_durations(*run);
  check_metric(*run);
  return run;
}

std::unique_ptr<LoadedRun> load_run(const RunRequest& request) {
  auto run = load_settings(request);
  const Settings& s = run->settings;
  if (s.run_name.empty() || s.run_name.find('/') != std::string::npos ||
      s.run_name.starts_with('.'))
    throw Error({.code = ErrorCode::config,
                 .what = "run_name must be a plain name",
                 .where = run->schema.where("run_name"),
                 .expected = "letters, digits, - and _",
                 .got = s.run_name,
                 .remedy = "run_name=my-run"});
  if (s.eval_context >= s.max_length)
    throw Error({.code = ErrorCode::config,
                 .what = "validation windows would score nothing",
                 .where = run->schema.where("training.eval_context"),
                 .expected = fmt::format("less than training.max_length = {}", s.max_length),
                 .got = std::to_string(s.eval_context),
                 .remedy = fmt::format("training.eval_context={}", s.max_length / 2)});
  TextDataOptions options;
  options.train = s.train_data;
  options.validation = s.validation_data;
  options.validation_fraction = s.validation_fraction;
  options.tokenizer = s.tokenizer;
  options.max_chars = s.max_chars;
  options.grammar_chars = s.grammar_chars;
  options.seed = static_cast<uint64_t>(s.seed);
  options.window = s.max_length + 1;
  run->data = load_text_data(options);
  run->model->resolve(run->schema, run->data.tokenizer->vocab_size(), s.max_length);
  return run;
}

}  // namespace millrace
