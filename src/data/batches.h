// What a training step reads. A batch is a pure function of its position in the order of training:
// nothing to save but that number, resume is O(1), and any number of threads may fill batches.
#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "data/batch_shape.h"
#include "data/dataset.h"
#include "data/pair_index.h"
#include "data/sequence_index.h"
#include "data/trajectory_samples.h"

namespace millrace {

// Places [B,T]. A target of -1 is not scored. Segments number the sequences of a row from 0,
// padding has its own; positions count from 0 in each. Of pairs that stand apart, tokens and
// targets are the target's; the source has places [B,S], of which the first source_lengths [B] of
// a row hold a token. For models that copy words, source_open [B,S] has rare words by ids of their
// own (WordTokenizer) and -1 behind a source; a rare target has its own id where its source has it.
// Of trajectories, instead of tokens and targets: changes from state to state [B,T,C], normalised;
// those that follow them; weights [B,T] of these, 1 or 0; and the part that a place is of [B,T].
// Where points have classes also, at the last place of each part, the class of its last state
// [B,T], else -1.
struct Batch {
  size_t shape = 0;  // which of Batches::shapes()
  std::vector<int32_t> tokens, targets, segments, positions;
  std::vector<int32_t> source, source_lengths, source_open;
  std::vector<float> states, state_targets, weights;
  std::vector<int32_t> parts, class_targets;
  int64_t useful = 0;    // places with a token
  int64_t scored = 0;    // targets that count
  int64_t labelled = 0;  // parts that have a class
};

// What a place of a batch of states holds.
struct StatePlace {
  int64_t channels = 0;  // 0: there are tokens
  bool classes = false;
};
// Room for a batch of states, all of it empty.
void clear_states(Batch& batch, const BatchShape& shape, StatePlace room);
// A sequence of states [count, channels] from `place` on.
void put_states(std::span<const float> states, const StateParts& parts,
                const Normalisation& normalisation, int64_t place, Batch& batch);
// The classes [count] of the same. A part of which no place is, a context of one state, has none.
void put_classes(std::span<const int32_t> classes, const StateParts& parts, int64_t place,
                 Batch& batch);

struct BatchOptions;
class PackedOrder;

class Batches {
 public:
  virtual ~Batches() = default;
  const std::vector<BatchShape>& shapes() const {
    return shapes_;
  }  // the one with most places first
  int64_t most_places() const { return shapes_[0].places(); }
  // Positions count from the start of the run; a batch moves on by `stride`.
  int64_t stride() const { return stride_; }
  int64_t positions_per_epoch() const { return positions_; }
  int64_t batches_per_epoch() const { return (positions_ + stride_ - 1) / stride_; }
  // Of an epoch.
  double mean_places() const { return mean_places_; }  // of a batch
  double useful_share() const { return useful_share_; }
  // The order is the same wherever this is.
  const std::string& order() const { return order_; }
  // What is read only in part because it is too long, for people; empty: nothing.
  const std::string& cut() const { return cut_; }
  virtual void fill(int64_t position, Batch& batch) const = 0;

 protected:
  void take(const std::vector<BatchShape>& shapes, const BucketOrder& order,
            const BatchOptions& options);  // what buckets say
  void take(const PackedOrder& order, int64_t row_length, const BatchOptions& options);
  std::vector<BatchShape> shapes_;
  int64_t stride_ = 1, positions_ = 0;
  double mean_places_ = 0, useful_share_ = 1;
  std::string order_, cut_;
};

// Sequences that a packed row holds at most.
constexpr int64_t kPackedPerRow = 256;

// A stage of a length curriculum, for pairs that stand apart: at positions before `end` no more
// than this is read of a source and of a target.
struct LengthStage {
  int64_t end = 0;
  int64_t source = 0, target = 0;
};

struct BatchOptions {
  std::string batching = "auto";  // windows, buckets, packing; auto: see resolved_batching
  int64_t batch_size = 1;
  int64_t batch_tokens = 0;  // buckets: places of a batch instead of rows
  SequenceOptions sequences = {};
  int64_t max_source = 0;   // above 0: source and target stand apart, this much of a source
  bool open_words = false;  // of those: Batch::source_open
  std::vector<LengthStage> stages = {};  // of those: by their ends; then full lengths
  StateOptions states = {};              // of trajectories
  bool random_windows = true;            // begin anywhere; else every window once per epoch
  std::optional<uint64_t> seed = {};     // none: in order, everything once, for validation
  int64_t window_context = 0;  // in order: windows overlap by so much, which is not scored
  int64_t limit = 0;           // in order: batches at most; 0: all
};

// How pairs that stand apart are read.
PairOptions pair_options(const BatchOptions& options);

// What `auto` means for this data: windows of a long text; of records packed rows when the model
// can take those, else buckets.
std::string resolved_batching(const std::string& batching, const Dataset& data, bool packable);

// `key`: the config key of the split, for messages. Error when the data is too short for one batch
// of any shape.
std::unique_ptr<Batches> make_batches(const Dataset& data, SplitName split,
                                      const BatchOptions& options, DataObserver& observer);

}  // namespace millrace
