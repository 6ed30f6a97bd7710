// millrace eval: the metrics of a trained model on validation or test data.
#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "cli/commands.h"
#include "cli/data_progress.h"
#include "cli/device.h"
#include "cli/model_folder.h"
#include "cli/standard_output.h"
#include "core/clock.h"
#include "core/text.h"
#include "cpu/machine.h"
#include "cpu/parallel.h"
#include "train/checkpoint.h"
#include "train/text_evaluation.h"

namespace millrace {
namespace {

// A folder that has no config, exported or of somebody else: the model is the folder's, and the
// overrides say what it is to read.
void ask_for_folder(const fs::path& folder, RunRequest& request) {
  const MaxLengths lengths = load_model_config(folder)->max_lengths();
  request.config.clear();
  request.bare = true;
  request.overrides.insert(request.overrides.begin(),
                           {"model.init_from=" + fs::absolute(folder).string(),
                            fmt::format("training.max_length={}", lengths.target)});
  if (lengths.source > 0)
    request.overrides.insert(request.overrides.begin(),
                             fmt::format("training.max_source_length={}", lengths.source));
}

// Tokenizer and normalisation are the model's, or made from data.train: of other data the model's
// ids and numbers would have other meanings. Rare words, which stand behind a vocabulary, may be
// others.
void check_reading(const LoadedRun& run, const fs::path& folder) {
  const TokenizerFile reading = run.data.set.reading_file();
  const bool states = run.model->takes().states, trains = run.data.set.has(SplitName::train);
  const bool same = states ? read_file(folder / reading.name, 16 << 20) == reading.bytes
                           : load_tokenizer(folder)->vocabulary_file() ==
                                 run.data.set.tokenizer().vocabulary_file();
  if (same) return;
  throw Error({.code = ErrorCode::config,
               .what = fmt::format("the data gives another {} than the model was trained with",
                                   states ? "normalisation" : "vocabulary"),
               .where = run.schema.where(trains ? "data.train" : "data.tokenizer"),
               .expected = (folder / reading.name).string(),
               .got = "another one",
               .remedy = trains ? "data.validation=FILE, or data.test=FILE with --split test, "
                                  "evaluates on other data and leaves data.train as it was"
                                : "leave data.tokenizer out: the model has one"});
}

// The texts that are asked for: what is not said of their search is as validation had it.
TextEvaluation settled_texts(const EvalArguments& arguments, const LoadedRun& run) {
  const Given& given = arguments.given;
  TextEvaluation texts = arguments.texts;
  const BeamOptions told = texts.beam;
  texts.beam = validation_search(run.settings);
  texts.beam.beam = settled_beam(given, told.beam, *run.model);
  if (texts.beam.beam == 0) {
    given.refuse({"--texts", "--length-penalty", "--no-repeat-ngram", "--min-tokens", "--at-once"},
                 "an evaluation without texts", "--beam 4 searches for texts");
    return texts;
  }
  if (run.data.set.fields != 2)
    throw Error({.code = ErrorCode::config,
                 .what = "the data has no targets that texts could be measured by",
                 .where = "command line: --beam",
                 .expected = "0, or data of pairs: source and target, prompt and answer",
                 .got = std::to_string(told.beam),
                 .remedy = "leave --beam out"});
  if (given.has("--length-penalty")) texts.beam.length_penalty = told.length_penalty;
  if (given.has("--no-repeat-ngram")) texts.beam.no_repeat_ngram = told.no_repeat_ngram;
  if (given.has("--min-tokens")) texts.beam.min_length = told.min_length;
  const BeamSpelling option = option_spelling(), key = key_spelling(run.schema);
  check_beam(texts.beam, run.model->vocab_size(), run.model->max_lengths().target,
             {[&](const std::string& name) {
                return name == "beam" || given.has("--" + name) ? option.where(name)
                                                                : key.where(name);
              },
              option.with});
  return texts;
}

}  // namespace

int eval_command(const EvalArguments& arguments) {
  RunRequest request{"", arguments.overrides};
  request.evaluated = arguments.split == "test" ? SplitName::test : SplitName::validation;
  const fs::path folder = find_model_folder(run_place(request.overrides).folder, arguments.model);
  request.model = folder;
  request.config = (folder / "config.resolved.yaml").string();
  const bool has_config = fs::is_regular_file(request.config);
  const bool says_data =
      std::any_of(request.overrides.begin(), request.overrides.end(),
                  [](const std::string& text) { return text.starts_with("data."); });
  if (!has_config && says_data)
    ask_for_folder(folder, request);
  else if (!has_config)
    throw Error(
        {.code = ErrorCode::config,
         .what = "the folder says nothing about data",
         .where = request.config,
         .expected = "config.resolved.yaml, which every checkpoint of Millrace has",
         .got = "nothing there",
         .remedy = "name a run or a checkpoint of a run, or the data: data.validation=FILE"});
  if (fs::is_regular_file(folder / kManifestName)) verify_folder(folder);
  DataProgress reading_data;
  const auto run = load_run(request, reading_data);
  check_reading(*run, folder);
  const TextEvaluation texts = settled_texts(arguments, *run);
  const auto backend = open_device(
      *run, [](const std::string& text) { std::fprintf(stderr, "%s\n", text.c_str()); });
  std::fprintf(stderr, "model    %s\ndata     %s\nsplit    %s\n", folder.c_str(),
               run->data.set.description().c_str(), arguments.split.c_str());
  const int64_t start = now_ns();
  StatusLine line;
  auto progress = [&](const char* what, int64_t done, int64_t all) {
    line.draw([&] { return share_text(what, done, all); });
  };
  // First what may not fit: nobody is to wait for a loss, and then be refused.
  Metrics metrics;
  if (texts.beam.beam > 0)
    metrics =
        evaluate_texts(*run->model, run->settings, run->data, *backend, folder, texts, progress);
  metrics.merge(evaluate_model(*run->model, run->settings, run->data, *backend, folder, progress));
  line.clear();
  const double seconds = seconds_since(start);
  if (arguments.json) {
    nlohmann::ordered_json j = {
        {"model", folder.string()}, {"split", arguments.split}, {"eval/runtime_s", seconds}};
    for (const auto& [name, value] : metrics) j[name] = value;
    put(j.dump(2) + "\n");
    return 0;
  }
  std::string out;
  for (const auto& [name, value] : metrics) out += fmt::format("{:<18} {:.6f}\n", name, value);
  if (run->data.set.entropy_per_token)
    out += fmt::format("{:<18} {:.6f} ({:+.1f} %)\n", "source entropy",
                       *run->data.set.entropy_per_token,
                       100 * (metrics.at("eval/loss") / *run->data.set.entropy_per_token - 1));
  put(out);
  std::fprintf(stderr, "in %s\n", human_seconds(seconds).c_str());
  return 0;
}

}  // namespace millrace
