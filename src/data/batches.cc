#include "data/batches.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "core/rng.h"
#include "core/text.h"
#include "data/bucketing.h"
#include "data/packing.h"
#include "data/permutation.h"

namespace millrace {
namespace {

void clear(Batch& batch, const BatchShape& shape, bool open_words = false, StatePlace states = {}) {
  const auto places = static_cast<size_t>(shape.batch * shape.length);
  if (states.channels > 0) {
    clear_states(batch, shape, states);
  } else {
    batch.tokens.assign(places, 0);
    batch.targets.assign(places, -1);
  }
  if (shape.packed) {
    batch.segments.assign(places, -1);
    batch.positions.assign(places, 0);
  }
  if (shape.source > 0) {
    batch.source.assign(static_cast<size_t>(shape.batch * shape.source), 0);
    batch.source_lengths.assign(static_cast<size_t>(shape.batch), 0);
    if (open_words) batch.source_open.assign(batch.source.size(), -1);
  }
  batch.useful = batch.scored = batch.labelled = 0;
}

// T tokens and, one place further, T targets from a long text.
class WindowBatches : public Batches {
 public:
  WindowBatches(const Split& split, const BatchOptions& o)
      : tokens_(split.tokens),
        begin_(split.begin),
        size_(split.size()),
        T_(o.sequences.max_length),
        seed_(o.seed),
        random_(o.random_windows),
        context_(o.seed ? 0 : o.window_context),
        order_of_windows_((size_ - 1) / T_, o.seed.value_or(0), 0) {
    shapes_ = {{o.batch_size, T_, false}};
    stride_ = o.batch_size;
    positions_ = o.seed ? (size_ - 1) / T_ : (size_ - 1 - T_) / (T_ - context_) + 1;
    if (!o.seed && o.limit > 0) positions_ = std::min(positions_, o.limit * stride_);
    mean_places_ = static_cast<double>(o.batch_size * T_);
    order_ = fmt::format("windows {} {}", T_,
                         !o.seed   ? "in order"
                         : random_ ? "random"
                                   : "shuffled");
  }
  void fill(int64_t position, Batch& batch) const override {
    clear(batch, shapes_[0]);
    batch.shape = 0;
    thread_local std::vector<int32_t> window;
    window.resize(static_cast<size_t>(T_ + 1));
    for (int64_t row = 0; row < shapes_[0].batch; ++row) {
      if (!seed_ && position + row >= positions_) break;
      tokens_->read(begin_ + begin_of(position + row), window);
      std::copy(window.begin(), window.end() - 1, batch.tokens.begin() + row * T_);
      // What a window repeats of the one before it was scored there.
      const int64_t known = position + row > 0 ? context_ : 0;
      std::copy(window.begin() + 1 + known, window.end(), batch.targets.begin() + row * T_ + known);
      batch.useful += T_;
      batch.scored += T_ - known;
    }
  }

 private:
  int64_t begin_of(int64_t sample) const {
    if (!seed_) return sample * (T_ - context_);
    if (!random_) return order_of_windows_.at(sample % positions_, sample / positions_) * T_;
    RandomStream stream(*seed_, RandomUse::sampler, static_cast<uint64_t>(sample));
    return static_cast<int64_t>(stream.below(static_cast<uint64_t>(size_ - T_)));
  }
  std::shared_ptr<const TokenArray> tokens_;
  int64_t begin_, size_, T_;
  std::optional<uint64_t> seed_;
  bool random_;
  int64_t context_;
  Permutation order_of_windows_;
};

// Rows of whole sequences.
class SequenceBatches : public Batches {
 protected:
  SequenceBatches(const Dataset& data, const Split& split, std::unique_ptr<KeptSequences> index)
      : tokens_(split.tokens), index_(std::move(index)), start_id_(data.start_id) {
    const SequenceSummary& s = index_->current()->summary();
    if (s.cut > 0)
      cut_ =
          fmt::format("{} of {} pairs, at the front of their source (the longest has {} tokens)",
                      with_commas(s.cut), with_commas(s.before.count), with_commas(s.before.most));
  }

  // Puts a sequence at `place` of the batch; returns its places.
  int64_t put(int64_t rank, int64_t place, int32_t segment, bool packed, Batch& batch) const {
    const Sequence s = index_->read([&](const SequenceIndex& index) { return index.at(rank); });
    thread_local std::vector<int32_t> ids;
    // With what stands before it: a start token, or the token that it follows.
    const bool start = s.opens && start_id_ >= 0, before = !s.opens;
    ids.resize(static_cast<size_t>(s.length + (start || before ? 1 : 0)));
    if (start) ids[0] = start_id_;
    tokens_->read(s.begin - (before ? 1 : 0), std::span(ids).subspan(start ? 1 : 0));
    const auto n = static_cast<int64_t>(ids.size()) - 1;
    std::copy(ids.begin(), ids.end() - 1, batch.tokens.begin() + place);
    std::copy(ids.begin() + 1 + s.context, ids.end(), batch.targets.begin() + place + s.context);
    if (packed)
      for (int64_t i = 0; i < n; ++i) {
        batch.segments[static_cast<size_t>(place + i)] = segment;
        batch.positions[static_cast<size_t>(place + i)] = static_cast<int32_t>(i);
      }
    batch.useful += n;
    batch.scored += n - s.context;
    return n;
  }

  std::shared_ptr<const TokenArray> tokens_;
  std::unique_ptr<KeptSequences> index_;
  int32_t start_id_;
};

// Batches as a BucketOrder has them: a shape for each bucket, the one with most places first. In a
// stage of a curriculum the same sequences are in a batch, and the shape is cut to its lengths.
class BucketShapes {
 public:
  explicit BucketShapes(BucketOrder order, bool open_words = false,
                        std::vector<LengthStage> stages = {}, StatePlace states = {})
      : order_(std::move(order)),
        open_words_(open_words),
        states_(states),
        stages_(std::move(stages)) {
    const auto& buckets = order_.buckets();
    for (auto b = buckets.rbegin(); b != buckets.rend(); ++b)
      if (b->batches > 0) place_of(shape_of(*b));
    // With a token budget a shorter bucket may have more places than the longest.
    std::swap(shapes_[0], *std::max_element(shapes_.begin(), shapes_.end(),
                                            [](const BatchShape& a, const BatchShape& b) {
                                              return a.places() < b.places();
                                            }));
    for (size_t stage = 0; stage <= stages_.size(); ++stage) {
      std::vector<size_t>& places = place_of_shape_.emplace_back();
      for (const Bucket& bucket : buckets) {
        BatchShape shape = shape_of(bucket);
        if (stage < stages_.size()) {
          shape.length = std::min(shape.length, stages_[stage].target);
          shape.source = std::min(shape.source, stages_[stage].source);
        }
        places.push_back(bucket.batches > 0 ? place_of(shape) : 0);
      }
    }
  }
  const std::vector<BatchShape>& shapes() const { return shapes_; }
  const BucketOrder& order() const { return order_; }
  // Makes room, and calls put(rank, row) for each row that holds something.
  template <typename Put>
  void fill(int64_t position, Batch& batch, Put put) const {
    const int64_t all = order_.batches_per_epoch();
    const int64_t index = position % all, epoch = position / all;
    const auto stage = std::find_if(stages_.begin(), stages_.end(),
                                    [&](const LengthStage& s) { return position < s.end; });
    batch.shape = place_of_shape_[static_cast<size_t>(stage - stages_.begin())]
                                 [order_.bucket_of(index, epoch)];
    clear(batch, shapes_[batch.shape], open_words_, states_);
    thread_local std::vector<int64_t> ranks;
    order_.ranks(index, epoch, ranks);
    for (size_t row = 0; row < ranks.size(); ++row)
      if (ranks[row] >= 0) put(ranks[row], static_cast<int64_t>(row));
  }

 private:
  static BatchShape shape_of(const Bucket& b) { return {b.rows, b.length, false, b.source}; }
  size_t place_of(const BatchShape& shape) {
    const auto found = std::find(shapes_.begin(), shapes_.end(), shape);
    const auto place = static_cast<size_t>(found - shapes_.begin());
    if (found == shapes_.end()) shapes_.push_back(shape);
    return place;
  }

  BucketOrder order_;
  bool open_words_;
  StatePlace states_;
  std::vector<LengthStage> stages_;
  std::vector<BatchShape> shapes_;
  std::vector<std::vector<size_t>> place_of_shape_;  // by stage, full lengths last, and bucket
};

BucketSettings bucket_settings(const BatchOptions& o) {
  return {.batch_size = o.batch_size, .batch_tokens = o.batch_tokens};
}

class BucketBatches : public SequenceBatches {
 public:
  BucketBatches(const Dataset& data, const Split& split, std::unique_ptr<KeptSequences> index,
                const BatchOptions& o)
      : SequenceBatches(data, split, std::move(index)),
        buckets_(BucketOrder(index_->current()->lengths(), bucket_settings(o), o.seed)) {
    take(buckets_.shapes(), buckets_.order(), o);
  }
  void fill(int64_t position, Batch& batch) const override {
    buckets_.fill(position, batch, [&](int64_t rank, int64_t row) {
      put(rank, row * buckets_.shapes()[batch.shape].length, 0, false, batch);
    });
  }

 private:
  BucketShapes buckets_;
};

// Pairs whose source and target stand apart: the target begins with a start token, or with the end
// token of the source where the tokenizer has none.
class PairBatches : public Batches {
 public:
  PairBatches(const Dataset& data, const Split& split, std::unique_ptr<KeptPairs> index,
              const BatchOptions& o)
      : tokens_(split.tokens),
        open_(o.open_words ? split.open : nullptr),
        index_(std::move(index)),
        start_id_(data.target_start()),
        buckets_(BucketOrder(index_->current()->cells(), index_->current()->summary().useful,
                             bucket_settings(o), o.seed),
                 o.open_words, o.stages) {
    take(buckets_.shapes(), buckets_.order(), o);
    const PairSummary& s = index_->current()->summary();
    auto add = [&](int64_t cut, const LengthSummary& lengths, const char* what, int64_t limit) {
      if (cut > 0)
        cut_ += fmt::format("{}{} of {} {} to their first {} tokens (the longest has {})",
                            cut_.empty() ? "" : ", ", with_commas(cut), with_commas(lengths.count),
                            what, limit, with_commas(lengths.most));
    };
    add(s.cut_sources, s.source, "sources", o.max_source);
    add(s.cut_targets, s.target, "targets", o.sequences.max_length);
  }
  void fill(int64_t position, Batch& batch) const override {
    buckets_.fill(position, batch, [&](int64_t rank, int64_t row) {
      const BatchShape& shape = buckets_.shapes()[batch.shape];
      const Pair pair = index_->read([&](const PairIndex& index) { return index.at(rank); });
      const int64_t source = std::min<int64_t>(pair.source, shape.source),
                    target = std::min<int64_t>(pair.target, shape.length);
      const auto at = static_cast<size_t>(row);
      auto source_row = [&](std::vector<int32_t>& all) {
        return std::span(all).subspan(at * static_cast<size_t>(shape.source),
                                      static_cast<size_t>(source));
      };
      tokens_->read(pair.begin, source_row(batch.source));
      batch.source_lengths[at] = static_cast<int32_t>(source);
      const auto first = batch.targets.begin() + row * shape.length;
      tokens_->read(pair.begin + pair.source, {first, static_cast<size_t>(target)});
      batch.tokens[at * static_cast<size_t>(shape.length)] = start_id_;
      std::copy_n(first, target - 1, batch.tokens.begin() + row * shape.length + 1);
      if (open_)
        put_open(pair, source_row(batch.source_open), {first, static_cast<size_t>(target)});
      batch.useful += source + target;
      batch.scored += target;
    });
  }

 private:
  // What can be copied: the words of the source, and those targets, <unk> so far, that are among
  // them. Other rare targets stay <unk>.
  void put_open(const Pair& pair, std::span<int32_t> source, std::span<int32_t> targets) const {
    open_->read(pair.begin, source);
    thread_local std::vector<int32_t> words;
    words.resize(targets.size());
    open_->read(pair.begin + pair.source, words);
    for (size_t i = 0; i < words.size(); ++i)
      if (words[i] != targets[i] &&
          std::find(source.begin(), source.end(), words[i]) != source.end())
        targets[i] = words[i];
  }

  std::shared_ptr<const TokenArray> tokens_, open_;
  std::unique_ptr<KeptPairs> index_;
  int32_t start_id_;
  BucketShapes buckets_;
};

// Rows that hold several sequences, as a PackedOrder has them.
class PackedRows {
 public:
  PackedRows(const LengthHistogram& lengths, int64_t row_length, const BatchOptions& o)
      : T_(row_length), in_order_(!o.seed), order_(lengths, row_length, kPackedPerRow, o.seed) {}
  const PackedOrder& order() const { return order_; }
  int64_t row_length() const { return T_; }
  // Makes room, and calls put(rank, place, segment), which returns the places it took.
  template <typename Put>
  void fill(int64_t position, int64_t positions, const BatchShape& shape, Batch& batch,
            StatePlace states, Put put) const {
    clear(batch, shape, false, states);
    batch.shape = 0;
    thread_local std::vector<int64_t> ranks;
    const int64_t all = order_.rows_per_epoch();
    for (int64_t row = 0; row < shape.batch; ++row) {
      const int64_t sample = position + row;
      if (in_order_ && sample >= positions) break;
      order_.ranks(sample % all, sample / all, ranks);
      int64_t at = row * T_;
      for (size_t i = 0; i < ranks.size(); ++i) at += put(ranks[i], at, static_cast<int32_t>(i));
      // What is left of the row is a segment of its own.
      std::fill(batch.segments.begin() + at, batch.segments.begin() + (row + 1) * T_,
                static_cast<int32_t>(ranks.size()));
    }
  }

 private:
  int64_t T_;
  bool in_order_;
  PackedOrder order_;
};

class PackedBatches : public SequenceBatches {
 public:
  PackedBatches(const Dataset& data, const Split& split, std::unique_ptr<KeptSequences> index,
                const BatchOptions& o)
      : SequenceBatches(data, split, std::move(index)),
        rows_(index_->current()->lengths(), o.sequences.max_length, o) {
    take(rows_.order(), rows_.row_length(), o);
  }
  void fill(int64_t position, Batch& batch) const override {
    rows_.fill(position, positions_, shapes_[0], batch, {},
               [&](int64_t rank, int64_t place, int32_t segment) {
                 return put(rank, place, segment, true, batch);
               });
  }

 private:
  PackedRows rows_;
};

// Sequences of states.
class StateBatches : public Batches {
 protected:
  StateBatches(const Dataset& data, SplitName split, StateSamples found, const BatchOptions& o)
      : store_(data.trajectories[static_cast<size_t>(split)]),
        turn_seed_(o.states.rotate && store_->channels() >= 2 ? o.seed : std::nullopt),
        normalisation_(data.normalisation),
        room_{store_->channels(), store_->classes() > 0},
        parts_(o.states.parts),
        samples_(std::move(found)) {
    auto add = [&](int64_t count, const char* what) {
      if (count > 0)
        cut_ += fmt::format("{}{} {}", cut_.empty() ? "" : ", ", with_commas(count), what);
    };
    add(samples_.short_paths, "paths with too few points, passed over");
    add(samples_.cut, "sequences, at the front of their context");
  }
  void add_states(const BatchOptions& o) {
    order_ +=
        fmt::format(", {} + {} of {} states by {}{}", parts_.previous, parts_.current,
                    o.states.max_length, o.states.window_stride, turn_seed_ ? ", turned" : "");
  }

  // Puts a sequence at `place` of the batch at `position`; returns its places.
  int64_t put(int64_t rank, int64_t place, int32_t segment, bool packed, int64_t position,
              Batch& batch) const {
    const StateSample& s = samples_.samples[static_cast<size_t>(rank)];
    const int64_t n = StateParts::places(s.states);
    thread_local std::vector<float> states;
    states.resize(static_cast<size_t>(s.states * room_.channels));
    store_->read(s.begin, states);
    if (turn_seed_) turn(states, rank, position);
    put_states(states, parts_, normalisation_, place, batch);
    if (room_.classes) {
      thread_local std::vector<int32_t> classes;
      classes.resize(static_cast<size_t>(s.states));
      store_->read_classes(s.begin, classes);
      put_classes(classes, parts_, place, batch);
    }
    if (packed)
      for (int64_t t = 0; t < n; ++t) {
        batch.segments[static_cast<size_t>(place + t)] = segment;
        batch.positions[static_cast<size_t>(place + t)] = static_cast<int32_t>(t);
      }
    batch.useful += n;
    batch.scored += parts_.current;
    return n;
  }

  // By any angle, another one each time that the sequence comes.
  void turn(std::span<float> states, int64_t rank, int64_t position) const {
    RandomStream stream(*turn_seed_, RandomUse::sampler, static_cast<uint64_t>(rank),
                        static_cast<uint64_t>(position));
    const double angle = 2 * std::numbers::pi * stream.uniform(), cosine = std::cos(angle),
                 sine = std::sin(angle);
    for (size_t i = 0; i < states.size(); i += static_cast<size_t>(room_.channels)) {
      const double x = states[i], y = states[i + 1];
      states[i] = static_cast<float>(cosine * x - sine * y);
      states[i + 1] = static_cast<float>(sine * x + cosine * y);
    }
  }

  std::shared_ptr<const ValueStore> store_;
  std::optional<uint64_t> turn_seed_;
  const Normalisation normalisation_;
  const StatePlace room_;
  const StateParts parts_;
  const StateSamples samples_;
};

class BucketedStates : public StateBatches {
 public:
  BucketedStates(const Dataset& data, SplitName split, StateSamples found, const BatchOptions& o)
      : StateBatches(data, split, std::move(found), o),
        buckets_(BucketOrder(samples_.places, bucket_settings(o), o.seed), false, {}, room_) {
    take(buckets_.shapes(), buckets_.order(), o);
    add_states(o);
  }
  void fill(int64_t position, Batch& batch) const override {
    buckets_.fill(position, batch, [&](int64_t rank, int64_t row) {
      put(rank, row * buckets_.shapes()[batch.shape].length, 0, false, position, batch);
    });
  }

 private:
  BucketShapes buckets_;
};

class PackedStates : public StateBatches {
 public:
  PackedStates(const Dataset& data, SplitName split, StateSamples found, const BatchOptions& o)
      : StateBatches(data, split, std::move(found), o),
        // Twice the longest sequence: beside most that are longer than half of a row nothing fits.
        rows_(samples_.places, 2 * StateParts::places(o.states.max_length), o) {
    take(rows_.order(), rows_.row_length(), o);
    add_states(o);
  }
  void fill(int64_t position, Batch& batch) const override {
    rows_.fill(position, positions_, shapes_[0], batch, room_,
               [&](int64_t rank, int64_t place, int32_t segment) {
                 return put(rank, place, segment, true, position, batch);
               });
  }

 private:
  PackedRows rows_;
};

// A long text must hold one window, records one sequence.
void check_length(const Dataset& data, const Split& split, SplitName name, int64_t T) {
  const std::string key = fmt::format("data.{}", split_name(name));
  const int64_t count = split.size(), window = T + 1;
  if (data.records ? count > 0 : count >= window) return;
  const bool own = split.tokens && split.begin == 0;
  std::string remedy = data.source == kBuiltinGrammar    ? "raise data.grammar_chars"
                       : own || name == SplitName::train ? "give more text"
                                                         : "raise data.validation_fraction";
  if (count > 1) remedy += fmt::format(", or set training.max_length={} or less", count - 1);
  throw Error(
      {.code = ErrorCode::config,
       .what = data.records ? fmt::format("no records for {}", split_name(name))
                            : fmt::format("the {} text is shorter than one window",
                                          name == SplitName::train ? "training" : split_name(name)),
       .where = key,
       .expected = data.records ? "at least one record"
                                : fmt::format("at least {} tokens (training.max_length + 1)",
                                              with_commas(window)),
       .got = fmt::format("{} tokens in {}", with_commas(count), data.source_of(name)),
       .remedy = remedy});
}

}  // namespace

void clear_states(Batch& batch, const BatchShape& shape, StatePlace room) {
  const auto places = static_cast<size_t>(shape.batch * shape.length);
  batch.states.assign(places * static_cast<size_t>(room.channels), 0);
  batch.state_targets.assign(batch.states.size(), 0);
  batch.weights.assign(places, 0);
  batch.parts.assign(places, 0);
  if (room.classes) batch.class_targets.assign(places, -1);
}

void put_states(std::span<const float> states, const StateParts& parts,
                const Normalisation& normalisation, int64_t place, Batch& batch) {
  const int64_t C = normalisation.channels(), count = std::ssize(states) / C,
                n = StateParts::places(count);
  // Place t holds the change to state t + 1, its target the change to state t + 2.
  for (int64_t t = 0; t <= n; ++t)
    for (int64_t c = 0; c < C; ++c) {
      const auto at = static_cast<size_t>(t * C + c), to = static_cast<size_t>(place * C) + at,
                 row = static_cast<size_t>(C);
      const float change =
          normalisation.normalised(states[at + row] - states[at], static_cast<size_t>(c));
      if (t < n) batch.states[to] = change;
      if (t > 0) batch.state_targets[to - row] = change;
    }
  const int64_t current = count - parts.current, previous = current - parts.previous;
  for (int64_t t = 0; t < n; ++t) {
    const auto to = static_cast<size_t>(place + t);
    batch.parts[to] = t + 1 < previous ? 0 : t + 1 < current ? 1 : 2;
    batch.weights[to] = t + 2 < current ? 0.0f : 1.0f;
  }
}

void put_classes(std::span<const int32_t> classes, const StateParts& parts, int64_t place,
                 Batch& batch) {
  const int64_t count = std::ssize(classes), current = count - parts.current,
                previous = current - parts.previous;
  auto put = [&](int64_t last_state, int64_t last_place) {
    const int32_t label = classes[static_cast<size_t>(last_state)];
    if (label < 0) return;
    batch.class_targets[static_cast<size_t>(place + last_place)] = label;
    ++batch.labelled;
  };
  // Place t is the change to state t + 1; to the last state of all leads only a prediction.
  if (previous >= 2) put(previous - 1, previous - 2);
  put(current - 1, current - 2);
  put(count - 1, count - 3);
}

void Batches::take(const std::vector<BatchShape>& shapes, const BucketOrder& order,
                   const BatchOptions& o) {
  shapes_ = shapes;
  positions_ = order.batches_per_epoch();
  if (!o.seed && o.limit > 0) positions_ = std::min(positions_, o.limit);
  mean_places_ =
      static_cast<double>(order.places()) / static_cast<double>(order.batches_per_epoch());
  useful_share_ = static_cast<double>(order.useful()) / static_cast<double>(order.places());
  order_ = fmt::format("{} {} {} {}", shapes[0].source > 0 ? "pairs" : "buckets",
                       order.buckets().size(), o.batch_size, o.batch_tokens);
}

void Batches::take(const PackedOrder& order, int64_t row_length, const BatchOptions& o) {
  shapes_ = {{.batch = o.batch_size,
              .length = row_length,
              .packed = true,
              .sequence_length = order.sequence_length()}};
  stride_ = o.batch_size;
  positions_ = order.rows_per_epoch();
  if (!o.seed && o.limit > 0) positions_ = std::min(positions_, o.limit * stride_);
  mean_places_ = static_cast<double>(o.batch_size * row_length);
  useful_share_ = static_cast<double>(order.useful()) / static_cast<double>(order.places());
  order_ = fmt::format("packing {}", row_length);
}

PairOptions pair_options(const BatchOptions& o) {
  // Fewer pairs in a cell would fill no batches, and move up into longer ones.
  constexpr int64_t kBatches = 4;
  const int64_t mean = std::max<int64_t>(1, (o.max_source + o.sequences.max_length) / 4);
  const int64_t rows = o.batch_tokens > 0 ? o.batch_tokens / mean : o.batch_size;
  return {o.max_source, o.sequences.max_length, std::max<int64_t>(1, kBatches * rows)};
}

std::string resolved_batching(const std::string& batching, const Dataset& data, bool packable) {
  if (batching != "auto") return batching;
  if (!data.records && !data.has_trajectories()) return "windows";
  return packable ? "packing" : "buckets";
}

std::unique_ptr<Batches> make_batches(const Dataset& data, SplitName name,
                                      const BatchOptions& options, DataObserver& observer) {
  if (data.has_trajectories()) {
    StateSamples found = find_state_samples(data, name, options.states);
    if (options.batching == "buckets")
      return std::make_unique<BucketedStates>(data, name, std::move(found), options);
    return std::make_unique<PackedStates>(data, name, std::move(found), options);
  }
  const Split& split = data.split(name);
  check_length(data, split, name, options.sequences.max_length);
  if (options.batching == "windows") return std::make_unique<WindowBatches>(split, options);
  if (options.max_source > 0) {
    auto index = open_pair_index(data, name, pair_options(options), observer);
    if (index->current()->size() == 0)
      throw Error({.code = ErrorCode::config,
                   .what = "no pair has both a source and a target",
                   .where = fmt::format("data.{}", split_name(name)),
                   .expected = "a token on either side",
                   .got = fmt::format("{} pairs of {}, all empty on one",
                                      with_commas(data.counts.records[static_cast<size_t>(name)]),
                                      data.source_of(name)),
                   .remedy = "check data.fields, or the two files"});
    return std::make_unique<PairBatches>(data, split, std::move(index), options);
  }
  auto index = open_sequence_index(data, name, options.sequences, observer);
  if (index->current()->size() == 0)
    throw Error({.code = ErrorCode::config,
                 .what = "no record holds anything to predict",
                 .where = fmt::format("data.{}", split_name(name)),
                 .expected = "a token behind another one",
                 .got = fmt::format("{} records of {}, all too short",
                                    with_commas(index->current()->summary().before.count),
                                    data.source_of(name)),
                 .remedy = "give longer records, or raise training.max_length"});
  if (options.batching == "buckets")
    return std::make_unique<BucketBatches>(data, split, std::move(index), options);
  return std::make_unique<PackedBatches>(data, split, std::move(index), options);
}

}  // namespace millrace
