// The program: parses the command line, runs a sub-command, and is the one place where errors are
// caught.
#include <malloc.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <limits>
#include <sstream>
#include <utility>

#include "cli/command_line.h"
#include "cli/commands.h"
#include "cli/commit.h"
#include "cli/standard_output.h"
#include "core/text.h"
#include "cpu/machine.h"
#include "exec/cuda_library.h"

namespace {

using millrace::one_of;
using millrace::within;

constexpr const char* kHelp =
    R"(millrace trains sequence models on the hardware you have, and says where every millisecond goes.

  millrace train                           watch a small language model learn, right now
  millrace train CONFIG [a.b=c ...]        train from a YAML or JSON config; a.b=c overrides a key
  millrace train --resume [RUN]            go on where a run was stopped, killed or cut off
  millrace eval  RUN                       metrics of a trained model, on validation or test data
  millrace runs                            every run here: state, progress, best metric, time
  millrace watch [RUN]                     a run, live: curves, throughput, where the time goes, its log
  millrace compare RUN_A RUN_B             two runs: where the time of an update changed, and what else differs
  millrace plan  CONFIG [--memory 8GiB]    parameters, FLOPs, exact memory: does it fit? before it runs
  millrace profile CONFIG                  some updates measured: where their time goes, and what could be saved
  millrace doctor CONFIG [--quick]         why it is slow, what makes it faster: tried for real, and the faster config
  millrace tune  CONFIG                    the same search over everything that can be tried
  millrace data stats CONFIG               lengths, and what padding costs with and without buckets and packing
  millrace data prepare CONFIG             tokenize now, so that training starts at once
  millrace generate RUN --prompt TEXT      text from a run, a checkpoint or a Hugging Face folder
  millrace export RUN OUT [--format gguf]  a trained model for other programs: a Hugging Face folder, or GGUF
  millrace import FOLDER OUT               a Hugging Face folder, checked and in one file, to train on or write with
  millrace score HYPOTHESES REFERENCES     BLEU, chrF and ROUGE of texts, line by line beside their references
  millrace docs config                     every config key with its meaning, default and range
  millrace docs ops                        every op of the engine with its kernels

Examples
  millrace train configs/shakespeare-small.yaml data.train=input.txt --run-name first-try
  millrace train configs/shakespeare-small.yaml --resume first-try training.max_steps=5000
  millrace train configs/shakespeare.yaml --dataset shakespeare training.batch_size=auto
  millrace train configs/lm-6x512.yaml --max-steps 20
  millrace plan configs/lm-6x512.yaml --memory 2GiB --why
  millrace plan configs/quickstart.yaml training.batch_size=256 --json
  millrace doctor configs/quickstart.yaml --time-budget 2m
  millrace generate runs/latest --prompt "the " --temperature 0.7 --top-k 40

Signals to a training run: SIGINT or SIGTERM saves and stops (a second one stops at once), SIGUSR1 saves.
Results go to standard output, progress to standard error. Run folders are made under runs/.
Exit codes: 0 done, 1 failure, 2 usage or config, 3 does not fit, 4 findings (doctor --fail-on), 5 slower, 10 diverged,
75 stopped and saved.
`millrace COMMAND --help` tells more.
)";

void add_request(CLI::App* command, millrace::RunRequest& request,
                 std::vector<std::string>& words) {
  command->add_option(
      "CONFIG", words,
      "config file (YAML or JSON), then overrides a.b=c; without a file: the built-in quickstart");
  command->add_option("--dataset", request.dataset,
                      "a data set of the config's section `datasets`, by its name");
  command->callback([&request, &words] {
    for (const std::string& w : words) {
      if (w.find('=') != std::string::npos)
        request.overrides.push_back(w);
      else if (request.config.empty() && request.overrides.empty())
        request.config = w;
      else
        throw millrace::Error({.code = millrace::ErrorCode::config,
                               .what = "`" + w + "` is neither the config nor an override",
                               .where = "command line",
                               .expected = "CONFIG first, then a.b=c",
                               .got = w,
                               .remedy = "write key=value without spaces"});
    }
  });
}

millrace::Given given_to(const CLI::App* command) {
  millrace::Given given;
  for (const CLI::Option* option : command->get_options())
    if (option->count() > 0) given.options.push_back(option->get_name());
  return given;
}

// Options of a beam search.
void add_beam(CLI::App* command, millrace::BeamOptions& beam, int64_t& at_once) {
  within(command->add_option(
             "--beam", beam.beam,
             "hypotheses of a beam search; 0: none, generate draws; unless said 4 for models of "
             "source and target, 0 for others"),
         int64_t{0}, int64_t{1024});
  within(command->add_option("--length-penalty", beam.length_penalty,
                             "beam: log-probabilities are divided by the length to this power"),
         0.0, 10.0)
      ->capture_default_str();
  within(command->add_option("--no-repeat-ngram", beam.no_repeat_ngram,
                             "beam: so many tokens in a row do not come twice; 0: they may"),
         int64_t{0}, int64_t{1000})
      ->capture_default_str();
  within(command->add_option("--min-tokens", beam.min_length, "beam: tokens before a text may end"),
         int64_t{0}, int64_t{1'000'000})
      ->capture_default_str();
  within(command->add_option("--at-once", at_once,
                             "beam: sources in one batch; 64, on a GPU 256 unless said"),
         int64_t{1}, int64_t{65536});
}

std::string version_text() {
  namespace cpu = millrace::cpu;
  const std::string commit = millrace::kCommit;
  return fmt::format("millrace {}{}\ninstructions  {}{}\noneDNN        {}\nCUDA backend  {}",
                     MILLRACE_VERSION, commit.empty() ? "" : ", commit " + commit,
                     cpu::isa_name(cpu::best_isa()), cpu::multiplies_bf16() ? ", bf16" : "",
                     cpu::onednn_version(), millrace::has_cuda_library() ? "yes" : "no");
}

int run(int argc, char** argv) {
  // As other programs have it.
  static char help[] = "--help", version[] = "--version";
  if (argc > 1 && std::string_view(argv[1]) == "version") argv[1] = version;
  if (argc > 1 && std::string_view(argv[1]) == "help") {
    if (argc > 2) argv[1] = argv[2];
    argv[argc > 2 ? 2 : 1] = help;
  }
  if (argc == 1 ||
      (argc == 2 && (std::string_view(argv[1]) == "--help" || std::string_view(argv[1]) == "-h"))) {
    millrace::put(kHelp);
    return 0;
  }
  CLI::App app{"millrace"};
  app.name("millrace");
  app.set_version_flag("--version", version_text);
  app.require_subcommand(1);
  millrace::TrainArguments train;
  millrace::PlanArguments plan;
  std::vector<std::string> train_words, plan_words;
  CLI::App* train_app = app.add_subcommand("train", "train a model");
  add_request(train_app, train.request, train_words);
  train_app->add_option("--run-name", train.run_name, "name of the run (run_name)");
  within(train_app->add_option("--max-steps", train.max_steps, "updates (training.max_steps)"),
         int64_t{0}, std::numeric_limits<int64_t>::max());
  CLI::Option* resume =
      train_app
          ->add_option(
              "--resume", train.resume_from,
              "go on with a run: its folder or name, or a checkpoint; without a value: the "
              "newest run of this name")
          ->expected(0, 1);
  CLI::App* plan_app =
      app.add_subcommand("plan", "parameters, FLOPs, exact memory and time before running");
  add_request(plan_app, plan.request, plan_words);
  plan_app->add_option("--memory", plan.memory,
                       "memory it must fit in, such as 8GiB (exit code 3 when it does not)");
  plan_app->add_option("--device", plan.device,
                       "plan for this: auto, cpu, cuda, cuda:N, or a device that is not here: its "
                       "name (h200) or the file of its profile");
  plan_app->add_flag("--grid", plan.grid,
                     "other batches and lengths: memory, tokens/s, what makes them fit");
  plan_app->add_flag("--why", plan.why,
                     "which passes and kernels were chosen, and why others declined");
  plan_app->add_flag("--json", plan.json, "the same as one JSON object");
  millrace::ProfileArguments profile;
  std::vector<std::string> profile_words;
  CLI::App* profile_app = app.add_subcommand(
      "profile", "measure some updates: time by component and op, a trace, a picture");
  add_request(profile_app, profile.request, profile_words);
  within(profile_app->add_option("--steps", profile.steps,
                                 "updates to measure, after some to warm up"),
         int64_t{3}, int64_t{1'000'000})
      ->capture_default_str();
  profile_app->add_flag("--json", profile.json, "the same as one JSON object");
  millrace::DoctorArguments doctor, tune;
  tune.everything = true;
  std::vector<std::string> doctor_words, tune_words;
  CLI::App* doctor_app = app.add_subcommand(
      "doctor", "why a training is slow, and what makes it faster: tried for real");
  CLI::App* tune_app = app.add_subcommand(
      "tune", "try everything that may make a training faster, and write the faster config");
  add_request(doctor_app, doctor.request, doctor_words);
  add_request(tune_app, tune.request, tune_words);
  for (auto [sub, of] : {std::pair{doctor_app, &doctor}, std::pair{tune_app, &tune}}) {
    sub->add_option("--time-budget", of->time_budget, "about how long: 90s, 5m, 1h")
        ->capture_default_str();
    sub->add_option("--memory", of->memory, "memory that trials must fit in, such as 8GiB");
    sub->add_flag("--allow-busy", of->allow_busy, "also where others are at work");
    sub->add_flag("--json", of->json, "the same as one JSON object");
  }
  doctor_app->add_flag("--quick", doctor.quick, "seconds: look, try nothing");
  doctor_app->add_option("--fail-on", doctor.fail_on,
                         "exit code 4 when a finding is at least low, medium or high");
  millrace::DataArguments data;
  std::vector<std::string> stats_words, prepare_words;
  CLI::App* data_app = app.add_subcommand("data", "look at the data of a config, or tokenize it");
  data_app->require_subcommand(1);
  CLI::App* stats_app = data_app->add_subcommand(
      "stats", "lengths of records, and what padding costs with and without buckets and packing");
  CLI::App* prepare_app = data_app->add_subcommand(
      "prepare", "tokenize into the cache, so that training starts at once");
  add_request(stats_app, data.request, stats_words);
  add_request(prepare_app, data.request, prepare_words);
  for (CLI::App* sub : {stats_app, prepare_app})
    sub->add_flag("--json", data.json, "the same as one JSON object");
  millrace::EvalArguments eval;
  CLI::App* eval_app = app.add_subcommand("eval", "validate a trained model");
  eval_app
      ->add_option("RUN", eval.model,
                   "run folder or name, or a checkpoint; or another model folder with "
                   "data.validation=FILE")
      ->required();
  eval_app->add_option("OVERRIDES", eval.overrides, "a.b=c, such as data.validation=other.txt");
  one_of(eval_app->add_option(
             "--split", eval.split,
             "what is evaluated: validation, or test (data.test, data.test_fraction)"),
         {"validation", "test"})
      ->capture_default_str();
  eval_app->add_flag("--json", eval.json, "the same as one JSON object");
  within(eval_app->add_option("--texts", eval.texts.most,
                              "beam: texts that BLEU, chrF and ROUGE are of; 0: all"),
         int64_t{0}, int64_t{1'000'000'000})
      ->capture_default_str();
  add_beam(eval_app, eval.texts.beam, eval.texts.at_once);
  millrace::RunsArguments runs;
  CLI::App* runs_app = app.add_subcommand("runs", "list runs: state, progress, best metric, time");
  runs_app->add_option("FOLDER", runs.folder, "where runs are (runs)");
  runs_app->add_flag("--json", runs.json, "the same as a JSON list");
  millrace::WatchArguments watch;
  CLI::App* watch_app = app.add_subcommand(
      "watch",
      "a run as it stands: curves, throughput, time budget, log; live on a terminal (q leaves)");
  watch_app->add_option("RUN", watch.run, "run folder or name")->capture_default_str();
  watch_app->add_flag("--once", watch.once, "one picture, also on a terminal");
  watch_app->add_flag("--json", watch.json, "the same as one JSON object");
  millrace::CompareArguments compare;
  CLI::App* compare_app = app.add_subcommand(
      "compare", "two runs: time budgets, throughput, memory, losses, settings, machines");
  compare_app->add_option("RUN_A", compare.first, "run folder or name: before")->required();
  compare_app->add_option("RUN_B", compare.second, "run folder or name: after")->required();
  compare_app->add_option("--max-regression", compare.max_regression,
                          "exit code 5 when an update of RUN_B takes longer by more than this and "
                          "than the noise (5%)");
  compare_app->add_flag("--json", compare.json, "the same as one JSON object");
  millrace::GenerateArguments generate;
  CLI::App* generate_app = app.add_subcommand("generate", "text from a trained model");
  generate_app
      ->add_option(
          "RUN", generate.folder,
          "run folder or name (its best checkpoint), a checkpoint, or a Hugging Face folder")
      ->required();
  generate_app->add_option("--prompt", generate.prompt, "what the text starts with");
  generate_app->add_option(
      "--prompt-ids", generate.prompt_ids,
      "the same as tokens, 1,2,3, with nothing put before them: for models whose "
      "tokenizer is not read");
  generate_app->add_option(
      "--input", generate.input,
      "a file with a prompt, or a source, on each line, or of named fields (*.csv, *.tsv, "
      "*.jsonl); a line for each comes out");
  generate_app->add_option("--field", generate.field,
                           "the field of --input that is read; unless said, the run's first of "
                           "data.fields");
  generate_app->add_option("--class-column", generate.class_column,
                           "trajectories: a column of --input, by number or name, that holds "
                           "classes and is not read");
  generate_app->add_flag("--ids", generate.ids, "print tokens as numbers");
  add_beam(generate_app, generate.beam, generate.at_once);
  within(
      generate_app->add_option("--max-tokens", generate.options.max_tokens, "tokens to generate"),
      int64_t{0}, int64_t{1'000'000'000})
      ->capture_default_str();
  within(generate_app->add_option("--temperature", generate.options.temperature,
                                  "0: always the likeliest token"),
         0.0, 100.0)
      ->capture_default_str();
  within(generate_app->add_option("--top-k", generate.options.top_k,
                                  "draw from the k likeliest tokens; 0: all"),
         int64_t{0}, int64_t{1} << 30)
      ->capture_default_str();
  within(generate_app->add_option(
             "--top-p", generate.options.top_p,
             "draw from the likeliest tokens that together have this probability"),
         1e-9, 1.0)
      ->capture_default_str();
  within(generate_app->add_option("--seed", generate.options.seed,
                                  "everything random follows from it"),
         uint64_t{0}, std::numeric_limits<uint64_t>::max())
      ->capture_default_str();
  generate_app
      ->add_option("--device", generate.device,
                   "auto (a GPU where there is one), cpu, cuda, cuda:N")
      ->capture_default_str();
  one_of(generate_app->add_option("--precision", generate.precision,
                                  "auto (what the device is fast in), fp32, tf32, bf16 or fp16"),
         {"auto", "fp32", "tf32", "bf16", "fp16"})
      ->capture_default_str();
  millrace::ConvertArguments exported, imported;
  CLI::App* export_app = app.add_subcommand(
      "export", "a trained model for other programs; low-rank additions are merged");
  export_app
      ->add_option(
          "RUN", exported.from,
          "run folder or name (its best checkpoint), a checkpoint, or a Hugging Face folder")
      ->required();
  export_app->add_option("OUT", exported.to, "folder to make, or the .gguf file")->required();
  one_of(export_app->add_option(
             "--format", exported.format,
             "hf (config.json, model.safetensors, tokenizer) or gguf (GPT-2 and Llama shapes); "
             "without it: gguf where OUT ends in .gguf, else hf"),
         {"hf", "gguf"});
  CLI::App* import_app = app.add_subcommand(
      "import", "a Hugging Face folder (shards, 16 bits), checked and in one file of f32");
  imported.is_import = true;
  import_app->add_option("FOLDER", imported.from, "a Hugging Face folder")->required();
  import_app->add_option("OUT", imported.to, "folder to make")->required();
  for (auto [sub, arguments] : {std::pair{export_app, &exported}, {import_app, &imported}})
    one_of(sub->add_option("--dtype", arguments->dtype,
                           "of matrices: f32, f16 or bf16; vectors stay f32"),
           {"f32", "f16", "bf16"})
        ->capture_default_str();
  millrace::ScoreArguments score;
  CLI::App* score_app =
      app.add_subcommand("score",
                         "BLEU and chrF (as sacrebleu's defaults) and the F1 of ROUGE (as "
                         "rouge-score), all from 0 to 100");
  score_app->add_option("HYPOTHESES", score.hypotheses, "a file with a text on each line")
      ->required();
  score_app->add_option("REFERENCES", score.references, "a file with what each of them should be")
      ->required();
  score_app
      ->add_option("--metric", score.metrics,
                   "only these: bleu, chrf, rouge1, rouge2, rougeL; with commas, or several times")
      ->delimiter(',')
      ->allow_extra_args(false);
  score_app->add_flag("--stem", score.stem,
                      "ROUGE compares words without their endings (English, Porter's stemmer)");
  CLI::Option* score_json =
      score_app->add_flag("--json", score.json, "the same as one JSON object, not rounded");
  score_app
      ->add_flag("--per-line", score.per_line,
                 "a JSON object for each line instead; BLEU then leaves out n-grams that are "
                 "longer than the line")
      ->excludes(score_json);
  std::string page = "config";
  CLI::App* docs_app = app.add_subcommand(
      "docs", "print a generated page: config (docs/CONFIG.md) or ops (docs/OPS.md)");
  one_of(docs_app->add_option("PAGE", page, "config or ops"), {"config", "ops"});
  const std::vector<std::string> commands{"train", "plan",    "eval",    "data",   "generate",
                                          "score", "runs",    "docs",    "export", "import",
                                          "watch", "compare", "profile", "doctor", "tune"};
  if (argv[1][0] != '-' && std::find(commands.begin(), commands.end(), argv[1]) == commands.end()) {
    const std::string near = millrace::nearest(argv[1], commands);
    throw millrace::Error({.code = millrace::ErrorCode::config,
                           .what = fmt::format("no command is called `{}`", argv[1]),
                           .where = "command line",
                           .expected = fmt::format("{}", fmt::join(commands, ", ")),
                           .got = argv[1],
                           .remedy = near.empty()
                                         ? "millrace --help"
                                         : fmt::format("did you mean `millrace {}`?", near)});
  }
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& e) {
    if (e.get_exit_code() != 0) throw millrace::command_line_error(app, e);
    std::ostringstream text;  // help, or the version
    app.exit(e, text);
    millrace::put(text.str());
    return 0;
  }
  if (*export_app) return millrace::convert_command(exported);
  if (*import_app) return millrace::convert_command(imported);
  if (*docs_app) return millrace::docs_command(page);
  if (*stats_app) return millrace::data_stats_command(data);
  if (*prepare_app) return millrace::data_prepare_command(data);
  if (*eval_app) {
    eval.given = given_to(eval_app);
    return millrace::eval_command(eval);
  }
  if (*runs_app) return millrace::runs_command(runs);
  if (*watch_app) return millrace::watch_command(watch);
  if (*compare_app) return millrace::compare_command(compare);
  if (*train_app) {
    train.resume = resume->count() > 0;
    // `--resume a.b=c` and `--resume gpt.yaml`: the override and the config stand on their own.
    if (train.resume_from.find('=') != std::string::npos &&
        !std::filesystem::exists(train.resume_from))
      train.request.overrides.push_back(std::exchange(train.resume_from, ""));
    if (train.request.config.empty() && std::filesystem::is_regular_file(train.resume_from))
      train.request.config = std::exchange(train.resume_from, "");
    for (int i = 0; i < argc; ++i) train.command += (i > 0 ? " " : "") + std::string(argv[i]);
    return millrace::train_command(train);
  }
  if (*profile_app) return millrace::profile_command(profile);
  if (*doctor_app) return millrace::doctor_command(doctor);
  if (*tune_app) return millrace::doctor_command(tune);
  if (*plan_app) return millrace::plan_command(plan);
  if (*score_app) return millrace::score_command(score);
  if (*generate_app) {
    generate.given = given_to(generate_app);
    return millrace::generate_command(generate);
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (!millrace::cpu::supports(millrace::cpu::Isa::avx2)) {
    std::fputs(
        "millrace: this CPU lacks AVX2 and FMA, which Millrace needs (x86-64-v3, 2013 and later)\n",
        stderr);
    return 1;
  }
  // Large blocks go back to the system when they are freed, always: glibc would keep them after the
  // first, and the memory of a run could not be predicted.
  mallopt(M_MMAP_THRESHOLD, 1 << 20);
  try {
    return run(argc, argv);
  } catch (const millrace::Error& e) {
    const bool colour = millrace::wants_colour(STDERR_FILENO);
    std::fprintf(stderr, "%serror:%s %s\n", colour ? "\033[1;31m" : "", colour ? "\033[0m" : "",
                 e.what());
    return static_cast<int>(e.code());
  } catch (const std::bad_alloc&) {
    std::fputs(
        "error: the system refused memory\n  remedy:   a smaller batch, or `millrace plan` to see "
        "what is needed\n",
        stderr);
    return 1;
  }
}
