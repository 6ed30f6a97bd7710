#include "cli/load.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>

#include "cli/device.h"
#include "cli/given.h"
#include "cli/model_folder.h"
#include "cli/quickstart.h"
#include "core/text.h"
#include "graph/passes.h"
#include "io/quote.h"
#include "io/yaml.h"
#include "train/auto_batch.h"
#include "train/evaluation.h"
#include "train/text_evaluation.h"

namespace millrace {
namespace {

// Where the type is not given, the keys may tell it: the first family that has them all; else the
// default, which says what is wrong with them.
std::string family_that_knows(const std::vector<std::string>& keys,
                              const std::vector<std::string>& families) {
  const std::string usual = Settings().model_type;
  auto knows_all = [&](const std::string& family) {
    Schema schema;
    Settings settings;
    const auto model = make_model(family);
    settings.declare(schema);
    model->declare(schema);
    return std::all_of(keys.begin(), keys.end(),
                       [&](const std::string& key) { return schema.knows(key); });
  };
  if (knows_all(usual)) return usual;
  const auto found = std::find_if(families.begin(), families.end(), knows_all);
  return found == families.end() ? usual : *found;
}

// What decides which keys exist, looked up before the schema reads the file.
struct ModelChoice {
  std::string family, where;
  std::string init_from, init_where;
  std::string runs = Settings().runs_folder;  // where init_from may name one
  std::vector<std::string> keys;              // that the family must know
};

ModelChoice model_choice(const std::string& text, const std::string& name,
                         const std::vector<std::string>& overrides) {
  ModelChoice choice;
  auto& [family, where, init_from, init_where, runs, keys] = choice;
  where = init_where = name;
  const YamlNode root = parse_yaml(text, name);
  for (const YamlEntry& section : root.entries) {
    if (section.value.kind != YamlNode::Kind::map) keys.push_back(section.key);
    if (section.key == "runs_folder") runs = section.value.text;
    if (section.key == "model")
      for (const YamlEntry& entry : section.value.entries) {
        keys.push_back("model." + entry.key);
        if (entry.key == "type") {
          family = entry.value.text;
          where = fmt::format("{}:{}:{}", name, entry.value.line, entry.value.column);
        } else if (entry.key == "init_from") {
          init_from = entry.value.text;
          init_where = fmt::format("{}:{}:{}: `model.init_from`", name, entry.value.line,
                                   entry.value.column);
        }
      }
  }
  for (std::string o : overrides) {
    while (o.starts_with('+')) o.erase(0, 1);
    if (o.starts_with("model.")) keys.push_back(o.substr(0, o.find('=')));
    if (o.starts_with("runs_folder=")) runs = o.substr(12);
    if (o.starts_with("model.type=")) {
      family = o.substr(11);
      where = "command line: " + printable(o, 200);
    }
    if (o.starts_with("model.init_from=")) {
      init_from = o.substr(16);
      init_where = "command line: " + printable(o, 200);
    }
  }
  return choice;
}

std::string family_of(const ModelChoice& choice) {
  const auto families = model_families();
  const std::string family =
      choice.family.empty() ? family_that_knows(choice.keys, families) : choice.family;
  if (std::find(families.begin(), families.end(), family) != families.end()) return family;
  const std::string near = nearest(family, families);
  throw Error({.code = ErrorCode::config,
               .what = "bad value for `model.type`",
               .where = choice.where,
               .expected = fmt::format("one of `{}`", fmt::join(families, "`, `")),
               .got = fmt::format("`{}`", printable(family, 200)),
               .remedy = near.empty() ? "model.type=" + families.front()
                                      : fmt::format("did you mean `{}`?", near)});
}

// A model whose sizes are those of the folder: they are the defaults of its keys.
std::unique_ptr<Model> model_of_folder(const ModelChoice& choice, const fs::path& folder,
                                       std::string& family) {
  auto model = load_model_config(folder, &family);
  if (!choice.family.empty() && choice.family != family)
    throw Error({.code = ErrorCode::config,
                 .what = "the weights are of another model family",
                 .where = choice.where,
                 .expected = fmt::format("`{}`, as {} has it", family, folder.string()),
                 .got = fmt::format("`{}`", printable(choice.family, 200)),
                 .remedy = "leave model.type out: the folder knows"});
  return model;
}

// The tokenizer is the folder's: another one would give the model's ids other meanings.
void take_tokenizer(LoadedRun& run) {
  constexpr const char* kKey = "data.tokenizer";
  const fs::path folder = run.settings.tuning.init_from;
  std::string& tokenizer = run.settings.data.tokenizer;
  if (folder.empty() || run.model->takes().states) return;
  const auto file = tokenizer_file(folder);
  if (!run.schema.was_set(kKey)) {
    if (!file)
      throw Error({.code = ErrorCode::config,
                   .what = "the folder of model.init_from has no tokenizer",
                   .where = folder.string(),
                   .expected = fmt::format("{}", fmt::join(kTokenizerFiles, " or ")),
                   .got = "neither",
                   .remedy = "data.tokenizer=FILE, the one that the weights were trained with"});
    tokenizer = file->string();
    run.schema.note(kKey, "auto: of model.init_from");
    return;
  }
  const bool same =
      !file || tokenizer == "ids" ||
      (fs::is_regular_file(tokenizer) &&
       read_tokenizer(tokenizer)->vocabulary_file() == read_tokenizer(*file)->vocabulary_file());
  if (same) return;
  throw Error({.code = ErrorCode::config,
               .what = "the tokenizer does not match the weights",
               .where = run.schema.where(kKey),
               .expected = file->string() + ", which the weights come with",
               .got = tokenizer + ", another one",
               .remedy = "leave data.tokenizer out"});
}

// What a tokenizer is to text: scaled otherwise, states would mean something else to the weights.
void take_normalisation(const LoadedRun& run, const fs::path& evaluated, Dataset& set) {
  const fs::path folder =
      set.has(SplitName::train) ? fs::path(run.settings.tuning.init_from) : evaluated;
  if (folder.empty() || !set.has_trajectories()) return;
  set.normalisation = load_normalisation(folder, *run.model);
}

// More ids than the weights have rows.
void check_vocabulary(const LoadedRun& run, const Dataset& set) {
  const std::string& folder = run.settings.tuning.init_from;
  if (folder.empty() || run.model->vocab_size() < 0 || set.vocab_size <= run.model->vocab_size())
    return;
  throw Error({.code = ErrorCode::config,
               .what = "the tokenizer does not match the weights",
               .where = run.settings.data.tokenizer,
               .expected = fmt::format("at most {} tokens, as {} has", run.model->vocab_size(),
                                       (fs::path(folder) / "config.json").string()),
               .got = fmt::format("{}", set.vocab_size),
               .remedy = "the tokenizer that the weights were trained with"});
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

// What people write down beside the two that make it; it decides nothing.
void check_effective_batch(const LoadedRun& run) {
  const Settings& s = run.settings;
  if (s.effective_batch == 0 || s.effective_batch == s.batch_size * s.grad_accum) return;
  throw Error({.code = ErrorCode::config,
               .what = "training.effective_batch is another than the two factors make",
               .where = run.schema.where("training.effective_batch"),
               .expected = fmt::format("batch_size {} x grad_accum {} = {}", s.batch_size,
                                       s.grad_accum, s.batch_size * s.grad_accum),
               .got = std::to_string(s.effective_batch),
               .remedy = fmt::format("training.effective_batch={}, or another grad_accum",
                                     s.batch_size * s.grad_accum)});
}

// Gradients of one update's batches are added up in buffers: what is not finite in them is cleared
// before the next update begins.
void check_replay(const LoadedRun& run) {
  const Settings& s = run.settings;
  if (s.steps_per_replay == 1 || s.grad_accum == 1) return;
  throw Error({.code = ErrorCode::config,
               .what = "several updates in one replay are for updates of one batch",
               .where = run.schema.where("training.steps_per_replay"),
               .expected = "training.steps_per_replay 1, or training.grad_accum 1",
               .got = fmt::format("{} updates of {} batches", s.steps_per_replay, s.grad_accum),
               .remedy = "a larger training.batch_size with grad_accum 1 is faster as well"});
}

// What stands in for `auto` until the memory is known, and for good where nothing is trained.
void settle_batch_for_now(LoadedRun& run, int64_t settled) {
  const Settings& s = run.settings;
  if (s.batch_size >= 0) return;
  if (settled > 0) return take_batch(run, settled, "as the run began");
  if (s.effective_batch > 0 && run.schema.was_set("training.grad_accum"))
    return take_batch(run, std::max<int64_t>(1, s.effective_batch / s.grad_accum),
                      "effective_batch / grad_accum");
  const auto list = auto_batches(s.effective_batch);
  const auto usual = std::upper_bound(list.begin(), list.end(), Settings().batch_size);
  take_batch(run, *std::prev(usual), "the usual one, where nothing is trained");
  run.batch_is_open = true;
}

void take_dataset(LoadedRun& run, const std::string& dataset, const std::string& config) {
  if (dataset.empty()) return;
  const auto names = run.schema.alternative_names();
  if (std::find(names.begin(), names.end(), dataset) != names.end())
    return run.schema.take_alternative(dataset);
  const std::string near = nearest(dataset, names);
  throw Error(
      {.code = ErrorCode::config,
       .what = fmt::format("no data set is called {}", quote(dataset)),
       .where = "command line: --dataset " + printable(dataset, 200),
       .expected = names.empty()
                       ? fmt::format("a name in section `datasets`, and {} has none", config)
                       : fmt::format("one of `{}`, from section `datasets` of {}",
                                     fmt::join(names, "`, `"), config),
       .got = quote(dataset),
       .remedy = !near.empty() ? fmt::format("did you mean `{}`?", near)
                               : "add it to the config, `datasets: {NAME: {train: FILE}}`, or "
                                 "leave --dataset out and say data.train=FILE"});
}

// Minutes mean nothing to a schedule: a run on a faster machine would be another run.
// A shell puts a user's own folder for the `~` of a word, but not behind `a.b=` and in no file.
void expand_home(std::string& path) {
  const char* const home = std::getenv("HOME");
  if (home && path.starts_with("~/")) path.replace(0, 1, home);
}

void expand_homes(Settings& s) {
  DataSettings& d = s.data;
  for (std::string* path : {&s.runs_folder, &d.folder, &d.tokenizer, &s.tuning.init_from})
    expand_home(*path);
  for (auto* paths :
       {&d.train, &d.validation, &d.test, &d.train_target, &d.validation_target, &d.test_target})
    for (std::string& path : *paths) expand_home(path);
}

void check_metric(const LoadedRun& run) {
  const bool writes = !run.model->takes().states;
  const std::string& metric = run.settings.checkpoint.metric;
  auto is_among = [&](const std::vector<std::string>& list) {
    return std::find(list.begin(), list.end(), metric) != list.end();
  };
  auto names = metric_names(run.model->takes());
  const auto of_texts = text_metric_names();
  if (writes && run.settings.eval_texts == 0 && is_among(of_texts))
    throw Error({.code = ErrorCode::config,
                 .what = "validation writes no texts to measure " + metric + " by",
                 .where = run.schema.where("checkpoint.metric"),
                 .expected = "training.eval_texts of at least 1",
                 .got = "0",
                 .remedy = "training.eval_texts=200"});
  if (writes) names.insert(names.end(), of_texts.begin(), of_texts.end());
  if (is_among(names)) return;
  const std::string near = nearest(metric, names);
  throw Error({.code = ErrorCode::config,
               .what = "validation has no metric of this name",
               .where = run.schema.where("checkpoint.metric"),
               .expected = fmt::format("one of {}", fmt::join(names, ", ")),
               .got = metric,
               .remedy = near.empty() ? "checkpoint.metric=eval/loss"
                                      : fmt::format("did you mean `{}`?", near)});
}

// Classes of the data are for a model's head, and the other way round.
void check_classes(LoadedRun& run) {
  constexpr const char *kColumn = "data.class_column", *kClasses = "model.classes";
  const std::string& column = run.settings.data.class_column;
  const int64_t classes = run.model->takes().classes;
  if ((classes > 0) == !column.empty()) return;
  if (classes > 0)
    throw Error({.code = ErrorCode::config,
                 .what = fmt::format("the model has {} classes, and the data none", classes),
                 .where = run.schema.where(kClasses),
                 .expected = "data.class_column, where the class of a state stands",
                 .got = "none",
                 .remedy = "data.class_column=5, or whatever number or name the column has; or "
                           "model.classes=0"});
  const bool can = run.schema.knows(kClasses);
  throw Error({.code = ErrorCode::config,
               .what = "the data has classes, and the model none",
               .where = run.schema.where(kColumn),
               .expected = can ? "model.classes of 2 or more" : "a model with model.classes",
               .got = can ? "0" : run.settings.model_type + ", which has no such key",
               .remedy = can ? "model.classes=2, or as many as there are; or leave "
                               "data.class_column out"
                             : "leave data.class_column out"});
}

void check_evaluated(const LoadedRun& run, const Dataset& set, const DataOptions& options,
                     SplitName evaluated) {
  // Training without validation data is allowed; a test of nothing is not.
  const bool test = evaluated == SplitName::test;
  if (set.has(evaluated) || (!test && !options.only)) return;
  const std::string name(split_name(evaluated)), key = "data." + name;
  throw Error(
      {.code = ErrorCode::config,
       .what = fmt::format("there is no {} data", name),
       .where = run.schema.where(key),
       .expected = fmt::format("files in {0}, or records drawn by {0}_fraction", key),
       .got = !options.only && options.test_fraction == 0 ? "neither" : "no record was drawn",
       .remedy = fmt::format("{}=FILE, or --split {}", key, test ? "validation" : "test")});
}

// Reads what is evaluated alone where it has files of its own: with the tokenizer that the model
// has, which is not learnt again, so that nothing else is needed.
void take_evaluated(LoadedRun& run, const RunRequest& request, DataOptions& options) {
  const auto& files = request.evaluated == SplitName::test ? options.test : options.validation;
  if (request.model.empty() || files.empty() || files[0] == kBuiltinGrammar) return;
  options.only = request.evaluated;
  constexpr const char* kKey = "data.tokenizer";
  std::string& tokenizer = run.settings.data.tokenizer;
  if (run.model->takes().states || tokenizer == "ids" ||
      run.schema.origin(kKey).starts_with("command line"))
    return;
  const auto file = tokenizer_file(request.model);
  if (!file) return;
  options.tokenizer.kind = tokenizer = file->string();
  run.schema.note(kKey, "auto: of the model");
}

// What the data and the model together allow.
void check_batching(const LoadedRun& run, const Dataset& set) {
  const std::string& batching = run.settings.data.batching;
  auto refuse = [&](const std::string& what, const std::string& expected,
                    const std::string& remedy) {
    throw Error({.code = ErrorCode::config,
                 .what = what,
                 .where = run.schema.where("data.batching"),
                 .expected = expected,
                 .got = batching,
                 .remedy = remedy});
  };
  if (run.model->takes().states && !set.has_trajectories())
    throw Error({.code = ErrorCode::config,
                 .what = fmt::format("{} reads trajectories", run.settings.model_type),
                 .where = run.schema.where("data.train"),
                 .expected = "paths of points",
                 .got = set.description(),
                 .remedy = "data.format=trajectories with tables of frame, agent, x and y"});
  if (set.has_trajectories()) {
    if (batching == "windows")
      refuse("paths cannot be read as one long text", "buckets, packing or auto",
             "data.batching=auto");
    return;
  }
  if (!set.records && (batching == "buckets" || batching == "packing"))
    refuse("a long text has no records to batch", "windows or auto",
           "data.format=lines makes a record of every line");
  if (set.fields == 2 && batching == "windows")
    refuse("pairs cannot be read as one long text", "buckets, packing or auto",
           "data.batching=auto");
  const std::string& separator = run.settings.data.separator;
  if (run.model->takes().pairs && separator != "end")
    throw Error({.code = ErrorCode::config,
                 .what = fmt::format("a source that {} reads ends with the end token",
                                     run.settings.model_type),
                 .where = run.schema.where("data.separator"),
                 .expected = "end",
                 .got = separator,
                 .remedy = "data.separator=end"});
  if (set.fields == 2 && separator == "end" && set.end_id < 0)
    throw Error({.code = ErrorCode::config,
                 .what = "pairs want a token between source and target",
                 .where = run.schema.where("data.tokenizer"),
                 .expected = "a tokenizer with an end token",
                 .got = set.tokenizer_name + " without one",
                 .remedy = "add `</s>` or `<|endoftext|>` to its added_tokens, or name one of them "
                           "as eos_token in tokenizer_config.json beside it"});
  if (run.model->takes().pairs && set.fields != 2)
    throw Error(
        {.code = ErrorCode::config,
         .what = fmt::format("{} reads pairs of source and target", run.settings.model_type),
         .where = run.schema.where("data.train"),
         .expected = "data.train_target beside data.train, or two data.fields",
         .got = set.source + " with one text a record",
         .remedy = "data.train_target=FILE, or data.fields=[SOURCE, TARGET]"});
  if (run.model->takes().open_words && run.settings.label_smoothing > 0)
    throw Error(
        {.code = ErrorCode::config,
         .what = fmt::format("{} copies words, and one that is copied is no class among others",
                             run.settings.model_type),
         .where = run.schema.where("training.label_smoothing"),
         .expected = "0",
         .got = fmt::format("{}", run.settings.label_smoothing),
         .remedy = "training.label_smoothing=0"});
  if (batching == "packing" && !run.model->takes().packed_rows)
    refuse(fmt::format("{} cannot keep packed records apart", run.settings.model_type),
           "buckets or auto", "data.batching=auto");
}

// Stages of a length curriculum, once the full lengths are known.
void check_curriculum(const LoadedRun& run) {
  const char* kKey = "training.length_curriculum";
  const Settings& s = run.settings;
  auto refuse = [&](const std::string& what, const std::string& expected, const std::string& got,
                    const std::string& remedy) {
    throw Error({.code = ErrorCode::config,
                 .what = what,
                 .where = run.schema.where(kKey),
                 .expected = expected,
                 .got = got,
                 .remedy = remedy});
  };
  if (s.length_curriculum.empty()) return;
  if (!run.model->takes().pairs)
    refuse(fmt::format("{} has no sources and targets to shorten", s.model_type),
           "a model that reads source and target apart", run.schema.value_text(kKey),
           "leave it out");
  std::vector<int64_t> before{0, 1, 1};
  for (const std::vector<int64_t>& row : s.length_curriculum) {
    const std::string text = fmt::format("[{}]", fmt::join(row, ", "));
    if (row.size() != 3)
      refuse("a stage of a length curriculum is three numbers",
             "[last update, source length, target length]", text,
             fmt::format("{}=[[2000, {}, {}]]", kKey, (s.max_source_length + 1) / 2,
                         (s.max_length + 1) / 2));
    if (row[0] <= before[0])
      refuse("a stage of a length curriculum ends before it begins",
             fmt::format("an update after {}", before[0]), text, "put the stages in their order");
    if (row[1] < before[1] || row[2] < before[2])
      refuse("a length curriculum goes from short to long",
             fmt::format("lengths of at least {} and {}", before[1], before[2]), text,
             "put the stages in their order");
    if (row[1] > s.max_source_length || row[2] > s.max_length)
      refuse("a stage of a length curriculum is longer than the full lengths",
             fmt::format("at most training.max_source_length {} and training.max_length {}",
                         s.max_source_length, s.max_length),
             text, "leave the stage out: behind the last one lengths are full");
    before = row;
  }
}

// The model and what depends on it, for data of this kind.
void resolve_model(LoadedRun& run, const Dataset& set) {
  const Settings& s = run.settings;
  check_batching(run, set);
  if (run.settings.max_source_length < 0) {
    const int64_t own = run.model->own_source_length();
    run.settings.max_source_length = own > 0 ? own : s.max_length;
    run.schema.note("training.max_source_length",
                    own > 0 ? "auto: the model's" : "auto: max_length");
  }
  if (!set.has_trajectories()) check_vocabulary(run, set);
  const int64_t width =
      set.has_trajectories() ? set.first_trajectories()->channels() : set.vocab_size;
  run.model->resolve(run.schema, width, {s.max_length, s.max_source_length});
  if (!s.tuning.init_from.empty()) run.weights_note = check_folder(s.tuning.init_from, *run.model);
  run.model = tuned_model(std::move(run.model), s.tuning, run.schema);
  if (s.eval_texts > 0 && set.fields != 2)
    throw Error({.code = ErrorCode::config,
                 .what = "the data has no targets that texts could be measured by",
                 .where = run.schema.where("training.eval_texts"),
                 .expected = "0, or data of pairs: source and target, prompt and answer",
                 .got = std::to_string(s.eval_texts),
                 .remedy = "training.eval_texts=0"});
  if (s.eval_texts > 0)
    check_beam(validation_search(s), run.model->vocab_size(), run.model->max_lengths().target,
               key_spelling(run.schema));
  check_curriculum(run);
}

// What a vocabulary of `auto` follows.
constexpr const char *kVocabulary = "data.vocab_size", *kModelVocabulary = "model.vocab_size",
                     *kOfModel = "auto: model.vocab_size";

void settle_vocabulary(LoadedRun& run) {
  // What the model is to have is what there is to learn.
  const std::string model =
      run.schema.knows(kModelVocabulary) ? run.schema.value_text(kModelVocabulary) : "";
  int64_t size = 8000;
  const bool given =
      std::from_chars(model.data(), model.data() + model.size(), size).ec == std::errc();
  run.settings.data.vocab_size = size;
  run.schema.note(kVocabulary, given ? kOfModel : "auto");
}

// What only names a key, as all of data/ does, says where that key was given.
Error with_place(const Error& error, const Schema& schema) {
  ErrorFields fields = error.fields();
  const auto keys = schema.paths();
  if (std::find(keys.begin(), keys.end(), fields.where) == keys.end()) return error;
  const bool follows = fields.where == kVocabulary && schema.origin(kVocabulary) == kOfModel;
  fields.where = schema.where(follows ? kModelVocabulary : fields.where);
  return Error(std::move(fields));
}

// Opens the data of a run and all that depends on it.
void open_data(LoadedRun& run, const RunRequest& request, DataObserver& observer) {
  const Settings& s = run.settings;
  if (s.run_name.empty() || s.run_name.find('/') != std::string::npos ||
      s.run_name.starts_with('.'))
    throw Error({.code = ErrorCode::config,
                 .what = "run_name must be a plain name",
                 .where = run.schema.where("run_name"),
                 .expected = "letters, digits, - and _",
                 .got = s.run_name,
                 .remedy = "run_name=my-run"});
  if (s.eval_context >= s.max_length)
    throw Error({.code = ErrorCode::config,
                 .what = "validation windows would score nothing",
                 .where = run.schema.where("training.eval_context"),
                 .expected = fmt::format("less than training.max_length = {}", s.max_length),
                 .got = std::to_string(s.eval_context),
                 .remedy = fmt::format("training.eval_context={}", s.max_length / 2)});
  if (s.data.chunk_overlap >= s.max_length)
    throw Error({.code = ErrorCode::config,
                 .what = "a chunk would be all overlap",
                 .where = run.schema.where("data.chunk_overlap"),
                 .expected = fmt::format("less than training.max_length = {}", s.max_length),
                 .got = std::to_string(s.data.chunk_overlap),
                 .remedy = fmt::format("data.chunk_overlap={}", s.max_length / 4)});
  if (s.data.vocab_size < 0) settle_vocabulary(run);
  check_classes(run);
  take_tokenizer(run);
  DataOptions options = data_options(s, run.model->takes());
  take_evaluated(run, request, options);
  Dataset set = open_dataset(options, observer);
  if (set.counts.bad > 0)
    observer.note(fmt::format("{} bad records were passed over, the first: {}",
                              with_commas(set.counts.bad), set.counts.first_bad));
  check_evaluated(run, set, options, request.evaluated);
  if (!set.has(request.evaluated) && s.data.validation.empty() && !set.has_trajectories())
    observer.note(
        "no record was drawn for validation, so there is no loss of it (nan): a larger "
        "data.validation_fraction, or data.validation=FILE");
  if (set.has_trajectories() && !run.model->takes().states) {
    run.data.set = std::move(set);  // to be looked at
    return;
  }
  resolve_model(run, set);
  take_normalisation(run, request.model, set);
  if (set.fields == 2 && set.end_id < 0)
    observer.note(
        "the tokenizer has no token that ends a text: answers are trained without one, and "
        "generated text goes on behind them");
  run.data = make_training_data(std::move(set), s, run.model->takes(), observer, request.evaluated);
}

}  // namespace

void take_batch(LoadedRun& run, int64_t batch, const std::string& reason) {
  Settings& s = run.settings;
  s.batch_size = batch;
  run.schema.note("training.batch_size", "auto: " + reason);
  if (s.effective_batch > 0 && !run.schema.was_set("training.grad_accum")) {
    s.grad_accum = s.effective_batch / batch;
    run.schema.note("training.grad_accum", "auto: what is left of effective_batch");
    check_replay(run);
  }
  run.batch_is_open = false;
}

RunPlace run_place(const std::vector<std::string>& overrides) {
  RunPlace place;
  Schema schema;
  schema.text("runs_folder", &place.folder);
  schema.text("run_name", &place.name);
  for (const std::string& o : overrides) {
    const size_t begin = std::min(o.find_first_not_of('+'), o.size());
    const std::string key = o.substr(begin, o.find('=', begin) - begin);
    if (key == "runs_folder" || key == "run_name") schema.override_with(o);
  }
  return place;
}

std::unique_ptr<LoadedRun> load_settings(const RunRequest& request) {
  auto run = std::make_unique<LoadedRun>();
  const std::string name = request.bare             ? "command line"
                           : request.config.empty() ? "built-in quickstart"
                                                    : request.config;
  if (!request.config.empty() && !fs::is_regular_file(request.config))
    throw Error(
        {.code = ErrorCode::config,
         .what = "no config file at " + request.config,
         .where = request.config,
         .expected = "a YAML or JSON file",
         .got = fs::is_directory(request.config) ? "a folder" : "nothing there",
         .remedy =
             "name a file (configs/ has ready ones), or leave it out for the built-in quickstart"});
  run->config_text = request.bare             ? "{}\n"
                     : request.config.empty() ? std::string(kQuickstartConfig)
                                              : read_file(request.config, 16 << 20);
  ModelChoice choice = model_choice(run->config_text, name, request.overrides);
  expand_home(choice.init_from);
  expand_home(choice.runs);
  std::string family;
  if (choice.init_from.empty()) {
    family = family_of(choice);
    run->model = make_model(family);
  } else {
    run->model = model_of_folder(
        choice, find_initial_folder(choice.runs, choice.init_from, choice.init_where), family);
  }
  run->settings.declare(run->schema);
  run->model->declare(run->schema);
  run->schema.load_text(run->config_text, name);
  take_dataset(*run, request.dataset, name);
  for (const std::string& o : request.overrides) run->schema.override_with(o);
  run->schema.finish();
  expand_homes(run->settings);
  run->settings.model_type = family;
  settle_batch_for_now(*run, request.settled_batch);
  if (std::string& from = run->settings.tuning.init_from; !from.empty()) {
    // Where it is now: a run goes on from any folder, and with the same weights.
    from = fs::absolute(find_initial_folder(run->settings.runs_folder, from, choice.init_where))
               .lexically_normal()
               .string();
  }
  check_effective_batch(*run);
  check_replay(*run);
  check_passes(*run);
  check_device(run->settings.device, run->schema.where("device"));
  check_metric(*run);
  return run;
}

std::unique_ptr<LoadedRun> load_run(const RunRequest& request, DataObserver& observer) {
  auto run = load_data(request, observer);
  if (run->data.batches || run->data.validation) return run;
  std::vector<std::string> readers = model_families();
  std::erase_if(readers, [](const std::string& f) { return !make_model(f)->takes().states; });
  throw Error({.code = ErrorCode::config,
               .what = fmt::format("{} does not read trajectories", run->settings.model_type),
               .where = run->schema.where("data.train"),
               .expected = "text or tokens",
               .got = run->data.set.description(),
               .remedy = fmt::format("model.type={}", fmt::join(readers, " or model.type="))});
}

std::unique_ptr<LoadedRun> load_model(const RunRequest& request, const Dataset& set) {
  auto run = load_settings(request);
  resolve_model(*run, set);
  return run;
}

std::unique_ptr<LoadedRun> load_data(const RunRequest& request, DataObserver& observer) {
  auto run = load_settings(request);
  try {
    open_data(*run, request, observer);
  } catch (const Error& error) {
    throw with_place(error, run->schema);
  }
  return run;
}

}  // namespace millrace
