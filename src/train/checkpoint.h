// Checkpoints. A checkpoint is a folder that the Hugging Face ecosystem loads as a model, with
// everything beside it that bit-exact resume needs:
//
//   model.safetensors      the weights, as validation measured them; with config.json and
//                          tokenizer.json the model. Of low-rank additions alone, as PEFT has
//                          them: adapter_model.safetensors and adapter_config.json
//   optimizer.safetensors  moments, and master weights when the model is an average
//   trainer_state.json     where the run stood; config.resolved.yaml: under which settings
//   manifest.json          written last: sizes and checksums
//
// Commit: everything into .tmp-<step>, each file flushed, the manifest last, the folder flushed,
// renamed to checkpoint-<step>, the parent flushed; only then is it acknowledged. The newest folder
// that verifies wins; there is no pointer that could go stale.
#pragma once
#include <atomic>
#include <condition_variable>
#include <functional>
#include <initializer_list>
#include <map>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "exec/session.h"
#include "io/manifest.h"
#include "model/model.h"
#include "train/trainer_state.h"

namespace millrace {

// A tensor of the state, read piece by piece where it stands: no copy of the state is ever made.
struct StateTensor {
  Shape shape;
  std::function<void(int64_t begin, std::span<float> out)> read;

  std::vector<float> values() const;
};

// All that a checkpoint holds.
struct CheckpointContent {
  std::map<std::string, StateTensor> tensors;  // by leaf: parameters and optimizer state
  std::map<std::string, std::string> texts;    // by file name
  Manifest manifest;                           // without its files
};

// The leaves that make up the state of training: parameters and optimizer state.
std::vector<std::string> state_leaves(const Plan& step);
// They read from the session, which must outlive them.
std::map<std::string, StateTensor> state_tensors(const Session& session, const Plan& step);

// With averaged weights (leaves "ema.<parameter>") those are the model. `state_read` is called when
// the last tensor has been read; what follows, most of all waiting for the disk, does without them.
void write_checkpoint_files(const fs::path& folder, const CheckpointContent& content,
                            const Model& model, std::map<std::string, FileDigest>* digests,
                            const std::function<void()>& state_read = {});
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
  fs::path commit(const CheckpointContent& content, const Model& model,
                  const std::function<void()>& state_read = {}) const;
  // Removes all but the newest `last` and, by the metric, the best `best`.
  void retain(int64_t last, int64_t best, const std::string& metric, bool larger_is_better) const;

 private:
  fs::path folder_;
};

// Writes one checkpoint at a time on a thread of its own, while training goes on up to where it
// would change what is still being read.
class BackgroundSaver {
 public:
  // On the thread; must call `state_read`.
  using Save =
      std::function<void(const CheckpointContent&, const std::function<void()>& state_read)>;
  using Done = std::function<void(int64_t step, const Error* error)>;  // by poll() or wait()
  BackgroundSaver(Save save, Done done);
  ~BackgroundSaver();
  BackgroundSaver(const BackgroundSaver&) = delete;
  BackgroundSaver& operator=(const BackgroundSaver&) = delete;

  void start(CheckpointContent content);  // waits for the last one
  bool is_reading() const;
  void wait_until_read();
  void poll();  // never waits
  void wait();

 private:
  enum class Phase { idle, reading, flushing, finished, ending };
  void work();
  void enter(Phase phase);
  void wait_while(std::initializer_list<Phase> phases);

  Save save_;
  Done done_;
  CheckpointContent content_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::atomic<Phase> phase_ = Phase::idle;
  std::optional<Error> error_;
  std::thread thread_;
};

}  // namespace millrace
