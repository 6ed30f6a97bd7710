// Checkpoints. A checkpoint is a folder that the Hugging Face ecosystem loads as a model, with
// everything beside it that bit-exact resume needs:
//
//   model.safetensors      the weights, as validation measured them; with config.json and
//                          tokenizer.json the model
//   optimizer.safetensors  moments, and master weights when the model is an average
//   trainer_state.json     where the run stood; config.resolved.yaml: under which settings
//   manifest.json          written last: sizes and checksums
//
// Commit: everything into .tmp-<step>, each file flushed, the manifest last, the folder flushed,
// renamed to checkpoint-<step>, the parent flushed; only then is it acknowledged. The newest folder
// that verifies wins; there is no pointer that could go stale.
#pragma once
#include <condition_variable>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "exec/session.h"
#include "io/manifest.h"
#include "model/model.h"
#include "train/trainer_state.h"

namespace millrace {

// A copy in host memory of all that a checkpoint holds, so that training goes on while it is
// written.
struct Snapshot {
  std::map<std::string, std::vector<float>> tensors;  // by leaf: parameters and optimizer state
  std::map<std::string, std::string> texts;           // by file name
  Manifest manifest;                                  // without its files
};

// Copies the state leaves; buffers that are there already are filled again.
void copy_state(const Session& session, const Plan& step, Snapshot* snapshot);

// The leaves that make up the state of training: parameters and optimizer state.
std::vector<std::string> state_leaves(const Plan& step);
int64_t state_bytes(const Plan& step);

// With averaged weights (leaves "ema.<parameter>") those are the model.
void write_checkpoint_files(const fs::path& folder, const Snapshot& snapshot, const Model& model,
                            std::map<std::string, FileDigest>* digests);
// Fills the session from a verified folder. Error names a tensor that is missing or misshapen.
void load_checkpoint_tensors(const fs::path& folder, const Plan& step, Session& session,
                             const Model& model);

struct FoundCheckpoint {
  fs::path folder;
  Manifest manifest;
};

class CheckpointStore {
 public:
  explicit CheckpointStore(fs::path folder) : folder_(std::move(folder)) {}

  const fs::path& folder() const { return folder_; }
  // Half-made and half-removed folders of a writer that died. Call with the run locked.
  void sweep() const;
  // By name only, newest first.
  std::vector<fs::path> list() const;
  // The newest that verifies. `damaged` hears about each newer one that does not.
  std::optional<FoundCheckpoint> newest(
      const std::function<void(const std::string&)>& damaged) const;
  std::optional<FoundCheckpoint> best(const std::string& metric, bool larger_is_better) const;
  // Returns the folder, on disk. An Error leaves what was there before.
  fs::path commit(const Snapshot& snapshot, const Model& model) const;
  // Removes all but the newest `last` and, by the metric, the best `best`.
  void retain(int64_t last, int64_t best, const std::string& metric, bool larger_is_better) const;

 private:
  fs::path folder_;
};

// Writes one snapshot at a time on a thread of its own.
class BackgroundSaver {
 public:
  using Save = std::function<void(const Snapshot&)>;                   // on the thread
  using Done = std::function<void(int64_t step, const Error* error)>;  // by poll() or wait()
  BackgroundSaver(Save save, Done done);
  ~BackgroundSaver();
  BackgroundSaver(const BackgroundSaver&) = delete;
  BackgroundSaver& operator=(const BackgroundSaver&) = delete;

  // The buffers of the last snapshot, to be filled again. Waits for the last save.
  Snapshot& buffers();
  void start();
  void poll();  // never waits
  void wait();

 private:
  void work();

  Save save_;
  Done done_;
  Snapshot snapshot_;
  std::mutex mutex_;
  std::condition_variable changed_;
  enum class Phase { idle, saving, finished, ending } phase_ = Phase::idle;
  std::optional<Error> error_;
  std::thread thread_;
};

}  // namespace millrace
