#include "cli/resume.h"

#include <algorithm>
#include <array>

#include "io/quote.h"

namespace millrace {
namespace {

// A run with another value of these is another run.
constexpr std::array<std::string_view, 13> kFixed = {"data.tokenizer",
                                                     "data.vocab_size",
                                                     "data.min_frequency",
                                                     "data.lower_case",
                                                     "data.sampling",
                                                     "seed",
                                                     "training.max_length",
                                                     "training.max_source_length",
                                                     "training.length_curriculum",
                                                     "training.optimizer",
                                                     "training.ema_decay",
                                                     "training.momentum",
                                                     "training.nesterov"};

// And these, unless it was told to go on with other data.
constexpr std::array<std::string_view, 11> kData = {
    "data.train",         "data.train_target",  "data.format",        "data.fields",
    "data.max_chars",     "data.max_records",   "data.grammar_chars", "data.validation_fraction",
    "data.test_fraction", "data.on_bad_record", "data.chunking"};

bool is_fixed(const std::string& key, bool allow_change) {
  if (!allow_change && std::find(kData.begin(), kData.end(), key) != kData.end()) return true;
  return key.starts_with("model.") || std::find(kFixed.begin(), kFixed.end(), key) != kFixed.end();
}

}  // namespace

std::optional<Resume> find_resume(const fs::path& runs, const std::string& name,
                                  const std::string& named,
                                  const std::function<void(const std::string&)>& say) {
  std::string what = named;  // a shell completes folders with a slash, which hides their parents
  while (what.size() > 1 && what.ends_with('/')) what.pop_back();
  fs::path folder;
  if (what.empty()) {
    const auto newest = RunFolder::newest(runs, name);
    if (!newest) return std::nullopt;
    folder = *newest;
  } else {
    folder = RunFolder::find(runs, what);
  }
  Resume resume;
  resume.folder = RunFolder::open(folder);
  if (const std::string& dead = resume.folder->dead_owner(); !dead.empty())
    say("taken over from " + dead + ", which ended without a word");
  const CheckpointStore& store = resume.folder->checkpoints();
  resume.from = store.newest(say);
  if (!resume.from && !store.list().empty())
    throw Error({.code = ErrorCode::failure,
                 .what = "no checkpoint of this run can be used",
                 .where = store.folder().string(),
                 .expected = "at least one whole checkpoint",
                 .got = fmt::format("{}, all damaged", store.list().size()),
                 .remedy = "copy one back from elsewhere, or start a new run"});
  resume.config = folder / "config.resolved.yaml";
  for (const fs::path& given : {fs::path(what), runs / what}) {
    const fs::path above = given.parent_path().parent_path();
    if (what.empty() || !fs::is_directory(given) || above.empty() || !fs::exists(above) ||
        !fs::equivalent(above, folder))
      continue;
    // A checkpoint was named, not a run.
    FoundCheckpoint chosen{given, verify_folder(given)};
    if (resume.from && fs::equivalent(given, resume.from->folder)) break;
    resume.folder.reset();
    resume.config = given / "config.resolved.yaml";
    resume.from = std::move(chosen);
    break;
  }
  if (resume.from) resume.state = TrainerState::of_checkpoint(resume.from->folder);
  return resume;
}

void check_changes(const Schema& now, bool allow_change, const fs::path& config,
                   const std::function<void(const std::string&)>& say,
                   const std::function<void()>& check_data) {
  const auto then = load_settings({config.string(), {}});
  // What follows from the data differs when the data does: that is said first.
  for (const bool derived : {false, true}) {
    for (const std::string& key : now.paths()) {
      const std::string was = then->schema.value_text(key), is = now.value_text(key);
      if (was == is || key == "run_name" || key == "runs_folder") continue;
      if (now.origin(key).starts_with("auto") != derived) continue;
      if (is_fixed(key, allow_change))
        throw Error({.code = ErrorCode::config,
                     .what = fmt::format("a run cannot go on with another `{}`", key),
                     .where = now.where(key),
                     .expected = was + ", as the run began",
                     .got = is,
                     .remedy = "put it back, or start a new run without --resume"});
      say(fmt::format("changed  {}: {} -> {}", key, was, is));
    }
    if (!derived) check_data();
  }
}

}  // namespace millrace
