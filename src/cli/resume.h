// Going on with a run: which folder, which checkpoint, and which settings may have changed.
#pragma once
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "cli/load.h"
#include "train/checkpoint.h"
#include "train/run_folder.h"

namespace millrace {

struct Resume {
  std::unique_ptr<RunFolder> folder;    // locked; null: a new run that starts from `from`
  std::optional<FoundCheckpoint> from;  // empty: the run died before its first checkpoint
  TrainerState state;                   // of `from`
  fs::path config;                      // the settings the run had
};

// `what` is a run folder, the name of a run, or a checkpoint; empty: the newest run called `name`.
// Nothing when there is no such run. A checkpoint that is not its run's newest starts a new run:
// the later ones are not thrown away. `say` hears about damaged checkpoints and dead owners.
std::optional<Resume> find_resume(const fs::path& runs, const std::string& name,
                                  const std::string& what,
                                  const std::function<void(const std::string&)>& say);

// Says which settings differ from those the run had. Error for one that makes it another run.
// `check_data` is called between those that were given and those that follow from the data.
void check_changes(const Schema& now, bool allow_change, const fs::path& config,
                   const std::function<void(const std::string&)>& say,
                   const std::function<void()>& check_data);

}  // namespace millrace
