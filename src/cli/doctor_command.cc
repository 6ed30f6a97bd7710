// millrace doctor: where the time of a training goes, what would make it faster, tried for real.
// millrace tune: the search behind it, over everything that can be tried.
#include <cmath>
#include <cstdio>
#include <ctime>
#include <nlohmann/json.hpp>

#include "cli/advice.h"
#include "cli/commands.h"
#include "cli/data_progress.h"
#include "cli/device.h"
#include "cli/memory_report.h"
#include "cli/standard_output.h"
#include "core/clock.h"
#include "core/process.h"
#include "core/text.h"
#include "cpu/machine.h"
#include "cpu/parallel.h"
#include "doctor/diagnosis_page.h"
#include "doctor/fit.h"
#include "doctor/machine_profile.h"
#include "io/config_edit.h"
#include "io/unified_diff.h"
#include "train/run_folder.h"
#include "train/signals.h"

namespace millrace {
namespace {

Error usage(const std::string& option, const std::string& expected, const std::string& got) {
  return Error({.code = ErrorCode::config,
                .what = option + " is not understood",
                .where = "command line: " + option + " " + got,
                .expected = expected,
                .got = got,
                .remedy = "write it like that"});
}

double parse_budget(const std::string& text) {
  size_t used = 0;
  double number = -1;
  try {
    number = std::stod(text, &used);
  } catch (const std::exception&) {
  }
  const std::string unit = text.substr(std::min(used, text.size()));
  const double factor = unit == "s" || unit.empty() ? 1 : unit == "m" ? 60 : unit == "h" ? 3600 : 0;
  if (!(number > 0) || factor == 0 || number * factor > 1e6)
    throw usage("--time-budget", "90s, 5m, 1h", text);
  return number * factor;
}

Severity parse_severity(const std::string& text) {
  for (const Severity s : {Severity::low, Severity::medium, Severity::high})
    if (text == severity_name(s)) return s;
  throw usage("--fail-on", "low, medium or high", text);
}

std::string now_text() {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  localtime_r(&now, &parts);
  char text[32];
  return {text, std::strftime(text, sizeof text, "%Y-%m-%d %H:%M", &parts)};
}

// A word as it could be typed into a shell.
std::string shell_word(const std::string& text) {
  constexpr std::string_view kPlain =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-+=./:,@%";
  if (!text.empty() && text.find_first_not_of(kPlain) == std::string::npos) return text;
  std::string s = "'";
  for (const char c : text) s += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return s + "'";
}

std::string command_text(const DoctorArguments& a) {
  const DoctorArguments usual;
  std::string s = a.everything ? "millrace tune" : "millrace doctor";
  auto word = [&](const std::string& text) { s += " " + shell_word(text); };
  auto option = [&](const char* name, const std::string& value, const std::string& left_out) {
    if (value == left_out) return;
    word(name);
    word(value);
  };
  if (!a.request.config.empty()) word(a.request.config);
  for (const std::string& o : a.request.overrides) word(o);
  option("--dataset", a.request.dataset, "");
  option("--time-budget", a.time_budget, usual.time_budget);
  option("--memory", a.memory, "");
  option("--fail-on", a.fail_on, "");
  if (a.quick) word("--quick");
  return s;
}

// What is known of a run before anything is tried.
struct Known {
  Settings settings;
  bool on_host = true, packable = false;
  std::string saving;  // what is computed twice or cut, to fit
  int64_t vocabulary = 0, words = 0;
  int64_t parameters = 0;
  std::string machine, data, batching, fast_precision;
  double fast_flops = 0;     // that are known in it; 0: not known
  double flops_of_kind = 0;  // what another of its kind was measured to do; 0: not known
};

// What is wrong with the device itself: no setting mends it.
std::vector<std::string> device_notes(const Known& known, const nlohmann::ordered_json& profile) {
  constexpr double kAsFast = 0.85;  // ceilings of two of a kind, one warm, one not
  std::vector<std::string> notes;
  if (profile.contains("slowed"))
    notes.push_back(fmt::format("the device holds its clock down: {}",
                                profile.at("slowed").get<std::string>()));
  const double here = profile.at("ceiling").at("flops_per_second").get<double>();
  if (here > 0 && here < kAsFast * known.flops_of_kind)
    notes.push_back(fmt::format(
        "products reach {:.0f} TFLOP/s here, {:.0f} on another device of this kind: look at its "
        "cooling, its power limit, and who else is on it",
        here * 1e-12, known.flops_of_kind * 1e-12));
  return notes;
}

// What is to know of a measurement before its figures are believed.
std::vector<std::string> training_notes(const Measured& measured) {
  std::vector<std::string> notes;
  if (!std::isfinite(measured.loss))
    notes.push_back("the loss is not finite in the measured updates: look at that first");
  const double epoch = measured.profile.at("updates_per_epoch").get<double>();
  const auto all = measured.updates + measured.profile.at("warm_up").get<int64_t>();
  if (epoch < static_cast<double>(all))
    notes.push_back(
        fmt::format("the data repeats every {:.{}f} updates, fewer than the {} that were run",
                    epoch, epoch < 10 ? 1 : 0, all));
  return notes;
}

// How much of the files a limit lets in.
std::string limit_text(const DataSettings& settings, const Dataset& set) {
  if (settings.max_chars <= 0 || settings.max_chars >= set.file_bytes) return "";
  return fmt::format("; data.max_chars takes {} characters of files of {}",
                     with_commas(settings.max_chars), human_bytes(set.file_bytes));
}

// Trials beside other work would measure that work too, and disturb it. Asked before anything that
// takes time of its own.
class Idleness {
 public:
  Idleness(bool allowed, std::vector<std::string>& notes) : allowed_(allowed), notes_(notes) {}

  void check_host() {
    constexpr double kBusy = 0.3;
    if (const double busy = busy_share(0.5); busy > kBusy)
      taken(cpu::machine_name(),
            fmt::format("{:.0f} % of {} cores are used by others", 100 * busy, usable_cores()));
  }
  void check(const Backend& device) {
    const auto vitals = device.vitals();
    if (vitals && vitals->shared())
      taken(device.name(), fmt::format("{} of the device's memory are taken by others",
                                       human_bytes(*vitals->others_bytes)));
  }

 private:
  void taken(const std::string& where, const std::string& got) {
    if (allowed_) return notes_.push_back(got + ": these figures are worth less");
    throw Error({.code = ErrorCode::failure,
                 .what = "others are at work here: trials would measure them too, and disturb them",
                 .where = where,
                 .expected = "a device that nobody else uses",
                 .got = got,
                 .remedy = "wait; `millrace plan` and `millrace watch` disturb nobody; or "
                           "--allow-busy, for figures that are worth less"});
  }
  bool allowed_;
  std::vector<std::string>& notes_;
};

// The device is given back before trials take it.
Known look(const RunRequest& request, Idleness& idleness) {
  DataProgress progress;
  const auto run = load_run(request, progress);
  const auto backend = open_device(*run, [](const std::string&) {});
  idleness.check(*backend);
  settle_batch(*run, *backend, progress, [](const std::string&) {});
  const Settings& s = run->settings;
  const Programs programs = plan_run(*run, *backend);
  check_fit(request, *run, programs, *backend);
  const Takes takes = run->model->takes();
  Known k;
  k.settings = s;
  k.on_host = backend->on_host();
  k.packable = takes.packed_rows;
  k.saving = saving_text(programs);
  if (!takes.states) {
    k.vocabulary = run->model->vocab_size();
    k.words = run->data.set.vocab_size;
  }
  k.machine = k.on_host ? cpu::machine_name() : backend->name();
  k.data = run->data.set.description() + limit_text(s.data, run->data.set);
  for (const Parameter& p : run->model->parameters()) k.parameters += p.shape.numel();
  k.batching = resolved_batching(s.data.batching, run->data.set, takes.packed_rows);
  const Precision fast =
      backend->computes(Precision::bf16) ? Precision::bf16 : backend->usual_precision();
  k.fast_precision = precision_name(fast);
  const MachineProfile machine = recall_machine(*backend);
  const PrecisionProfile* const seen = machine.find(fast);
  k.fast_flops = seen ? seen->ceiling.flops : 0;
  if (k.fast_flops <= 0) k.fast_flops = known_flops(backend->kind(), fast);
  k.flops_of_kind = known_flops(backend->kind(), s.pass_precision());
  return k;
}

// The config with what was kept, each key with what it gave, and with what the command line said.
std::string optimized_config(const RunRequest& request, const SearchResult& r, Diagnosis& d) {
  const auto run = load_settings(request);
  std::vector<ConfigChange> changes;
  auto change = [&](const std::string& assignment, const std::string& comment) {
    const size_t at = assignment.find('=');
    const std::string written = assignment.substr(0, at);
    ConfigChange made{run->schema.path_of(written.substr(written.find_first_not_of('+'))),
                      assignment.substr(at + 1), comment};
    std::erase_if(changes, [&](const ConfigChange& c) {
      const bool same = c.path == made.path;
      if (same && comment.empty()) made.comment = c.comment;
      return same;
    });
    changes.push_back(std::move(made));
  };
  for (const std::string& o : request.overrides) change(o, "");
  for (const Tried& t : r.together)
    if (t.kept)
      for (const std::string& o : t.remedy.overrides)
        change(o, fmt::format("{:+.0f} % +-{:.0f}, {}", 100 * (t.gain.ratio - 1),
                              100 * t.gain.noise * t.gain.ratio, maths_name(t.remedy.maths)));
  // All together they may set something that none of them does alone.
  for (const std::string& o : r.overrides) {
    change(o, "");
    if (changes.back().comment.empty()) changes.back().comment = "as many sequences as before";
  }
  const std::string text = edit_config(run->config_text, changes, run->schema, d.config);
  d.diff = unified_diff(run->config_text, text, d.config, "config.optimized.yaml");
  return text;
}

// Where the device works most of the time, only another problem is clearly faster.
bool worth_advice(const Diagnosis& d) {
  constexpr double kMost = 0.5;
  double work = 0, all = 0;
  const auto budget = budget_of(d.profile);
  for (size_t i = 0; i < kOwners; ++i) {
    const auto owner = static_cast<Owner>(i);
    all += budget[i];
    if (owner == Owner::forward || owner == Owner::backward || owner == Owner::optimizer)
      work += budget[i];
  }
  return work > kMost * all;
}

// Measures, examines, tries, and writes what came out into a folder of its own.
Diagnosis diagnose(const DoctorArguments& arguments, bool everything, fs::path& written) {
  auto say = [](const std::string& text) { std::fprintf(stderr, "%s\n", text.c_str()); };
  RunRequest request = arguments.request;
  if (!arguments.memory.empty()) {
    if (parse_bytes(arguments.memory) <= 0)
      throw usage("--memory", "8GiB, 512MB", arguments.memory);
    request.overrides.push_back("runtime.memory_limit=" + arguments.memory);
  }
  const double budget = parse_budget(arguments.time_budget);
  const int64_t begin = now_ns();
  Diagnosis d;
  (void)load_settings(request);  // a fault of the config is told first
  Idleness idleness(arguments.allow_busy || arguments.quick, d.notes);
  idleness.check_host();
  const Known known = look(request, idleness);
  const auto folder =
      RunFolder::create(known.settings.runs_folder,
                        known.settings.run_name + (everything ? "-tune" : "-doctor"), false);
  written = folder->path();
  // Three updates are what a diagnosis needs at the least, and they have their time.
  constexpr double kLongestLook = 600;
  TrialRunner runner{{}, folder->path() / "trials", std::max(kLongestLook, budget), true};
  if (!request.config.empty()) runner.request.push_back(request.config);
  runner.request.insert(runner.request.end(), request.overrides.begin(), request.overrides.end());
  if (!request.dataset.empty())
    runner.request.insert(runner.request.end(), {"--dataset", request.dataset});
  auto measured = [&](int64_t updates) {
    Measured m = runner({}, updates);
    if (!m.is_measured())
      throw Error({.code = ErrorCode::failure,
                   .what = "this config cannot be measured as it is",
                   .where = request.config.empty() ? "the built-in quickstart" : request.config,
                   .got = fmt::format("{}: {}", outcome_name(m.outcome), m.reason),
                   .remedy = m.outcome == Measured::Outcome::timed_out
                                 ? "a longer --time-budget, or a smaller training.batch_size"
                                 : "millrace train says more"});
    return m;
  };
  say("a look at a few updates");
  const double trial_seconds = arguments.quick ? 1.5 : 3;
  d.profile = measured(3);
  // As long as leaves time to try something; where there is none for that, as long as there is.
  runner.limit_seconds = std::max(60.0, budget);
  constexpr double kSearch = 1 + kTrying + kConfirming, kSpare = 1.5;  // runs take more at times
  const double left = budget - seconds_since(begin);
  const bool searches = !arguments.quick && left > kSearch * d.profile.seconds;
  const int64_t updates =
      updates_of_trial(d.profile, trial_seconds, searches ? kSpare * kSearch : 1, left);
  if (updates > d.profile.updates) {
    say(fmt::format("{} updates as the config has them", updates));
    d.profile = measured(updates);
  }
  runner.keeps_timeline = false;
  if (const double spent = seconds_since(begin); !arguments.quick && spent > budget)
    d.notes.push_back(
        fmt::format("--time-budget {} was over before anything was tried: a look at {} updates "
                    "took {}",
                    arguments.time_budget, d.profile.updates, human_seconds(spent)));
  d.timeline =
      read_file(fs::path(d.profile.profile.at("folder").get<std::string>()) / "timeline.svg");
  d.command = command_text(arguments);
  d.config = request.config.empty() ? "the built-in quickstart" : request.config;
  d.machine = known.machine;
  d.data = known.data;
  d.precision = known.settings.precision;
  d.on_host = known.on_host;
  d.date = now_text();
  d.parameters = known.parameters;
  const Situation situation{.settings = known.settings,
                            .profile = d.profile.profile,
                            .on_host = known.on_host,
                            .cores = static_cast<int64_t>(usable_cores()),
                            .vocabulary = known.vocabulary,
                            .words = known.words,
                            .batching = known.batching,
                            .packable = known.packable,
                            .saving = known.saving,
                            .limit_is_given = !arguments.memory.empty(),
                            .fast_precision = known.fast_precision,
                            .fast_flops = known.fast_flops};
  d.findings = examine(situation);
  if (situation.limit_is_given && !known.saving.empty())
    d.notes.push_back(fmt::format("{}, to fit --memory {}", known.saving, arguments.memory));
  for (std::string& note : training_notes(d.profile)) d.notes.push_back(std::move(note));
  for (std::string& note : device_notes(known, d.profile.profile))
    d.notes.push_back(std::move(note));
  if (!arguments.quick) {
    std::vector<Remedy> remedies;
    if (everything)
      remedies = knobs(situation);
    else
      remedies = remedies_of(d.findings, situation);
    SearchOptions options;
    options.budget_seconds = budget;
    options.spent_seconds = seconds_since(begin);
    options.say = [&](const std::string& what) {
      say(fmt::format("{:>6}  trying: {}", human_seconds(seconds_since(begin)), what));
    };
    const TryOut try_out = [&](const std::vector<std::string>& overrides, int64_t count) {
      return runner(with_same_validation(known.settings, overrides), count);
    };
    d.searched = search(try_out, d.profile, d.profile.updates, std::move(remedies), options);
    d.searched->overrides = with_same_validation(known.settings, d.searched->overrides);
    if (d.searched->is_faster())
      folder->write("config.optimized.yaml", optimized_config(request, *d.searched, d));
  }
  d.settle();
  if (worth_advice(d)) {
    DataProgress progress;
    const auto run = load_run(request, progress);
    const auto backend = open_device(*run, [](const std::string&) {});
    settle_batch(*run, *backend, progress, [](const std::string&) {});
    d.advice = advise(request, *run, *backend, recall_machine(*backend));
  }
  nlohmann::ordered_json record = {{"id", folder->id()},
                                   {"name", written.parent_path().filename().string()},
                                   {"status", everything ? "tune" : "doctor"},
                                   {"machine", d.machine},
                                   {"version", MILLRACE_VERSION}};
  folder->write("run.json", record.dump(2) + "\n");
  folder->write(
      "report.json",
      diagnosis_json(d).dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n");
  folder->write("report.md", diagnosis_markdown(d));
  folder->write("report.html", diagnosis_page(d));
  folder->close();
  return d;
}

// What trains as the user does, with what was kept: a data set is chosen by its name.
std::string train_text(const std::string& dataset, const fs::path& written) {
  std::string s = "millrace train " + shell_word((written / "config.optimized.yaml").string());
  if (!dataset.empty()) s += " --dataset " + shell_word(dataset);
  return s;
}

std::string ending(const Diagnosis& d, const std::string& train, const fs::path& written) {
  std::string s = fmt::format("\n{}: report.html, report.md, report.json", written.string());
  if (!d.diff.empty()) s += fmt::format(", config.optimized.yaml\n{}\n{}", d.diff, train);
  return s + "\n";
}

}  // namespace

int doctor_command(const DoctorArguments& arguments) {
  [[maybe_unused]] static const auto* const signals = new TrainingSignals;
  const Severity fail_on =
      arguments.fail_on.empty() ? Severity::none : parse_severity(arguments.fail_on);
  fs::path written;
  const Diagnosis d = diagnose(arguments, arguments.everything, written);
  const std::string train = train_text(arguments.request.dataset, written);
  if (arguments.json) {
    auto j = diagnosis_json(d);
    j["folder"] = written.string();
    if (!d.diff.empty()) j["train"] = train;
    put(j.dump(2) + "\n");
  } else {
    put(diagnosis_text(d) + ending(d, train, written));
  }
  return fail_on != Severity::none && d.worst() >= fail_on ? static_cast<int>(ErrorCode::findings)
                                                           : 0;
}

}  // namespace millrace
