// What training reads of paths: windows, their parts, and the changes from state to state.
#include <cmath>
#include <map>
#include <set>

#include "data/batches.h"
#include "data/data_testing.h"

namespace millrace {
namespace {

class StateBatchesTest : public DataTest {
 protected:
  // Person p walks at `(p, t)`, t * t + 10 p, for `points[p]` frames.
  std::string scene(const std::vector<int>& points) {
    std::string text;
    for (size_t p = 0; p < points.size(); ++p)
      for (int t = 0; t < points[p]; ++t)
        text += fmt::format("{} {} {} {}\n", 10 * t, p, 10 * static_cast<int>(p) + t * t, t);
    return file("scene.txt", text);
  }
  Dataset paths(const std::vector<int>& points) {
    DataOptions o;
    o.train = {scene(points)};
    o.format = "trajectories";
    o.validation_fraction = 0;
    return open(o);
  }
  static BatchOptions options(int64_t max_length, const std::string& batching, int64_t rows) {
    BatchOptions o;
    o.batching = batching;
    o.batch_size = rows;
    o.states = {{3, 2}, max_length, 1, false, true};
    return o;  // no seed: in order
  }
  std::unique_ptr<Batches> batches(const Dataset& data, const BatchOptions& o) {
    return make_batches(data, SplitName::train, o, notes_);
  }
};

TEST_F(StateBatchesTest, APlaceHoldsAChangeAndItsTargetTheNext) {
  const Dataset data = paths({7});
  const auto all = batches(data, options(7, "buckets", 1));
  // Windows that end at points 7, 6 and 5, shortest first.
  ASSERT_EQ(all->batches_per_epoch(), 3);
  Batch batch;
  all->fill(2, batch);
  const BatchShape shape = all->shapes()[batch.shape];
  ASSERT_EQ(shape.length, 5);  // 7 states are 6 changes, each but the last with one behind it
  const Normalisation& n = data.normalisation;
  for (size_t t = 0; t < 5; ++t) {
    const double change = 2.0 * static_cast<double>(t) + 1;  // (t + 1)^2 - t^2
    EXPECT_NEAR(n.change(batch.states[2 * t], 0), change, 1e-5) << t;
    EXPECT_NEAR(n.change(batch.state_targets[2 * t], 0), change + 2, 1e-5) << t;
    EXPECT_NEAR(n.change(batch.states[2 * t + 1], 1), 1, 1e-5) << t;
  }
  // States 0 and 1 are context, 2 to 4 previous, 5 and 6 current; place t is the change to t + 1.
  EXPECT_EQ(batch.parts, (std::vector<int32_t>{0, 1, 1, 1, 2}));
  EXPECT_EQ(batch.weights, (std::vector<float>{0, 0, 0, 1, 1}));
  EXPECT_EQ(batch.useful, 5);
  EXPECT_EQ(batch.scored, 2);
}

TEST_F(StateBatchesTest, ChangesAreNormalisedByTheTrainingData) {
  const Dataset data = paths({7, 9});
  double sum = 0, squares = 0, count = 0;
  for (const int points : {7, 9})
    for (int t = 0; t + 1 < points; ++t) {
      sum += 2 * t + 1;
      squares += (2 * t + 1) * (2 * t + 1);
      ++count;
    }
  const double mean = sum / count;
  ASSERT_EQ(data.normalisation.channels(), 2);
  EXPECT_NEAR(data.normalisation.mean[0], mean, 1e-9);
  EXPECT_NEAR(data.normalisation.deviation[0], std::sqrt(squares / count - mean * mean), 1e-9);
  EXPECT_EQ(data.normalisation.deviation[1], 1);  // y always changes by 1
  // And comes back from what a checkpoint has of it.
  EXPECT_EQ(read_normalisation(data.normalisation.text(), "n.json"), data.normalisation);
}

TEST_F(StateBatchesTest, WhatIsDrawnForValidationScalesNothingOtherwise) {
  std::vector<int> points;
  for (int i = 0; i < 60; ++i) points.push_back(6 + i % 7);
  DataOptions o;
  o.train = {scene(points)};
  o.format = "trajectories";
  o.validation_fraction = 0;
  const Normalisation whole = open(o).normalisation;
  o.validation_fraction = 0.3;
  const Dataset drawn = open(o);
  ASSERT_NE(drawn.trajectories[1], nullptr);
  EXPECT_EQ(drawn.normalisation, whole);
  o.validation = {file("other.txt", "0 0 1000 1\n1 0 3000 5\n2 0 9000 7\n")};
  o.validation_fraction = 0;
  EXPECT_EQ(open(o).normalisation, whole);
}

TEST_F(StateBatchesTest, WindowsEndEverywhereOrByTheStride) {
  const Dataset data = paths({9, 5, 4});
  BatchOptions o = options(6, "buckets", 1);
  // Ends 9 to 5 of the first path, 5 of the second, none of the third: it is too short.
  auto all = batches(data, o);
  EXPECT_EQ(all->batches_per_epoch(), 6);
  EXPECT_TRUE(has(all->cut(), "1 paths with too few points")) << all->cut();
  EXPECT_TRUE(has(all->cut(), "3 sequences, at the front of their context")) << all->cut();
  std::multiset<float> lasts;
  Batch batch;
  for (int64_t i = 0; i < 6; ++i) {
    all->fill(i, batch);
    lasts.insert(std::round(
        data.normalisation.change(batch.state_targets[batch.state_targets.size() - 2], 0)));
  }
  // (t + 1)^2 - t^2 at the last point of each window.
  EXPECT_EQ(lasts, (std::multiset<float>{7, 7, 9, 11, 13, 15}));
  o.states.window_stride = 1000;
  EXPECT_EQ(batches(data, o)->batches_per_epoch(), 2);
  EXPECT_NE(batches(data, o)->order(), all->order());
}

TEST_F(StateBatchesTest, PackedRowsHoldTheSameSequences) {
  const Dataset data = paths({5, 6, 7, 8, 9, 10, 11, 12});
  std::map<std::string, std::multiset<std::vector<float>>> seen;
  for (const std::string way : {"buckets", "packing"}) {
    const auto all = batches(data, options(12, way, 3));
    Batch batch;
    for (int64_t i = 0; i < all->batches_per_epoch(); ++i) {
      all->fill(i * all->stride(), batch);
      int64_t scored = 0;
      const BatchShape shape = all->shapes()[batch.shape];
      for (int64_t row = 0; row < shape.batch; ++row) {
        std::vector<float> sequence;
        for (int64_t t = 0; t < shape.length; ++t) {
          const auto at = static_cast<size_t>(row * shape.length + t);
          sequence.insert(sequence.end(), {batch.states[2 * at], batch.state_targets[2 * at],
                                           batch.weights[at], static_cast<float>(batch.parts[at])});
          scored += batch.weights[at] > 0 ? 1 : 0;
          // A sequence ends behind its second scored place.
          const bool ends =
              batch.weights[at] > 0 && sequence.size() >= 8 && sequence[sequence.size() - 6] > 0;
          if (ends) seen[way].insert(std::exchange(sequence, {}));
        }
      }
      EXPECT_EQ(scored, batch.scored);
    }
  }
  EXPECT_EQ(seen["buckets"].size(), 36u);  // 1 + 2 + ... + 8 windows
  EXPECT_EQ(seen["buckets"], seen["packing"]);
}

TEST_F(StateBatchesTest, TurnedSequencesHaveTheirLengthsAndNoDirection) {
  const Dataset data = paths({7, 8, 9});
  for (const std::string way : {"buckets", "packing"}) {
    BatchOptions o = options(9, way, 1);
    o.seed = 4;
    const auto straight = batches(data, o);
    o.states.rotate = true;
    const auto turned = batches(data, o);
    EXPECT_NE(turned->order(), straight->order());
    Batch a, b, again;
    std::set<int> angles;
    for (int64_t i = 0; i < 3 * turned->positions_per_epoch(); ++i) {
      straight->fill(i, a);
      turned->fill(i, b);
      turned->fill(i, again);
      EXPECT_EQ(b.states, again.states);
      EXPECT_EQ(a.weights, b.weights);
      for (size_t at = 0; at + 1 < a.states.size(); at += 2) {
        if (a.states[at] == 0 && a.states[at + 1] == 0) continue;  // nothing stands there
        auto change = [&](const Batch& batch, size_t c) {
          return double{data.normalisation.change(batch.states[at + c], c)};
        };
        EXPECT_NEAR(std::hypot(change(b, 0), change(b, 1)), std::hypot(change(a, 0), change(a, 1)),
                    1e-3);
        angles.insert(
            static_cast<int>(10 * std::remainder(std::atan2(change(b, 1), change(b, 0)) -
                                                     std::atan2(change(a, 1), change(a, 0)),
                                                 6.2831853)));
      }
    }
    EXPECT_GT(angles.size(), 10u) << way;
  }
  BatchOptions o = options(9, "buckets", 1);
  o.states.rotate = true;  // in order, for validation: as they are
  Batch a, b;
  batches(data, o)->fill(0, a);
  batches(data, options(9, "buckets", 1))->fill(0, b);
  EXPECT_EQ(a.states, b.states);
}

TEST_F(StateBatchesTest, PathsThatAreTooShortAreRefusedUnlessPassedOver) {
  Dataset data = paths({9, 4});
  data.place_of_path = [](SplitName, int64_t path) { return fmt::format("path {}", path); };
  BatchOptions o = options(9, "buckets", 1);
  o.states.skip_short = false;
  const ErrorFields one = refusal_of([&] { batches(data, o); });
  EXPECT_TRUE(has(one.what, "too few points")) << one.what;
  EXPECT_TRUE(has(one.got, "4 points")) << one.got;
  EXPECT_EQ(one.where, "path 1");
  EXPECT_TRUE(has(one.remedy, "data.on_bad_record=skip")) << one.remedy;
  o.states = {{8, 12}, 20, 1, false, true};
  const ErrorFields none = refusal_of([&] { batches(data, o); });
  EXPECT_TRUE(has(none.expected, "at least 20 points")) << none.expected;
  EXPECT_TRUE(has(none.got, "the longest of 9")) << none.got;
}

TEST_F(StateBatchesTest, ADamagedNormalisationIsRefused) {
  const Normalisation n{{0.5, 1}, {2, 3}};
  for (const char* text : {"", "{}", "{\"mean\": [1], \"deviation\": [1]}"})
    EXPECT_TRUE(has(refusal_of([&] { read_normalisation(text, "n.json"); }).where, "n.json"));
  std::string other = n.text();
  other[other.find("0.5") + 2] = '6';
  EXPECT_TRUE(has(refusal_of([&] { read_normalisation(other, "n.json"); }).got, "other bytes"));
  // Right sums do not make it right.
  for (const Normalisation& bad : {Normalisation{{1}, {0}}, Normalisation{{1, 2}, {1}},
                                   Normalisation{{}, {}}, Normalisation{{1}, {-1}}})
    refusal_of([&] { read_normalisation(bad.text(), "n.json"); });
}

// Each point of person p at frame t is of class (p + t) % 4, or of none where that is 3.
class ClassBatchesTest : public StateBatchesTest {
 protected:
  Dataset classes(const std::vector<int>& points) {
    std::string text;
    for (size_t p = 0; p < points.size(); ++p)
      for (int t = 0; t < points[p]; ++t) {
        const int kind = (static_cast<int>(p) + t) % 4;
        text += fmt::format("{},{},{},{},{}\n", 10 * t, p, 10 * p, t,
                            kind < 3 ? std::to_string(kind) : "");
      }
    DataOptions o;
    o.train = {file("kinds.csv", text)};
    o.format = "trajectories";
    o.validation_fraction = 0;
    o.class_column = {"5", 3};
    return open(o);
  }
};

TEST_F(ClassBatchesTest, TheLastPlaceOfAPartHasTheClassOfItsLastState) {
  const Dataset data = classes({7});
  EXPECT_EQ(data.classes(), 3);
  EXPECT_TRUE(has(data.description(), "one of 3 classes")) << data.description();
  const auto all = batches(data, options(7, "buckets", 1));
  Batch batch;
  // States 0 and 1 are context, 2 to 4 previous, 5 and 6 current: classes 1, 0 and 2.
  all->fill(2, batch);
  EXPECT_EQ(batch.parts, (std::vector<int32_t>{0, 1, 1, 1, 2}));
  EXPECT_EQ(batch.class_targets, (std::vector<int32_t>{1, -1, -1, 0, 2}));
  EXPECT_EQ(batch.labelled, 3);
  // States 0 to 4: no context, 0 to 2 previous, 3 and 4 current; a context of one state, of which
  // no change is read, has no place either, and state 3 has no class.
  all->fill(0, batch);
  EXPECT_EQ(batch.class_targets, (std::vector<int32_t>{-1, 2, 0}));
  EXPECT_EQ(batch.labelled, 2);
  all->fill(1, batch);
  EXPECT_EQ(batch.class_targets, (std::vector<int32_t>{-1, -1, -1, 1}));
  EXPECT_EQ(batch.labelled, 1);
}

TEST_F(ClassBatchesTest, PackedRowsHaveTheSameClasses) {
  const Dataset data = classes({5, 6, 7, 8, 9, 10, 11, 12});
  std::map<std::string, std::multiset<std::vector<int32_t>>> seen;
  std::map<std::string, int64_t> labelled;
  for (const std::string way : {"buckets", "packing"}) {
    const auto all = batches(data, options(12, way, 3));
    Batch batch;
    for (int64_t i = 0; i < all->batches_per_epoch(); ++i) {
      all->fill(i * all->stride(), batch);
      labelled[way] += batch.labelled;
      // A sequence is told by its two scored places, which end it.
      for (size_t at = 0, begin = 0; at < batch.weights.size(); ++at) {
        if (batch.weights[at] == 0) continue;
        std::vector<int32_t> row;
        for (size_t place = begin; place < at + 2; ++place)
          if (batch.class_targets[place] >= 0) row.push_back(batch.class_targets[place]);
        seen[way].insert(row);
        begin = at + 2;
        ++at;  // the second of the two
      }
    }
  }
  EXPECT_EQ(seen["buckets"], seen["packing"]);
  EXPECT_EQ(labelled["buckets"], labelled["packing"]);
  EXPECT_GT(labelled["packing"], 0);
}

TEST_F(ClassBatchesTest, OtherClassesAreOtherData) {
  DataOptions o;
  o.train = {file("kinds.txt", "0 1 0 0 0\n1 1 0 0 1\n2 1 0 0 2\n")};
  o.format = "trajectories";
  o.validation_fraction = 0;
  std::set<std::string> keys;
  keys.insert(open(o).key);  // the fifth column is a channel
  o.class_column = {"5", 3};
  const Dataset three = open(o);
  keys.insert(three.key);
  EXPECT_EQ(three.normalisation.channels(), 2);
  o.class_column = {"5", 4};
  keys.insert(open(o).key);
  o.class_column = {"4", 4};
  keys.insert(open(o).key);
  EXPECT_EQ(keys.size(), 4u);
  // A class that the cache cannot hold is damage, and the store is made again.
  o.class_column = {"5", 3};
  const fs::path stored = three.folder / "train" / "classes.bin";
  std::string bytes = read_file(stored);
  bytes[0] ^= 1;
  write_file(stored, bytes);
  std::vector<int32_t> classes(3);
  EXPECT_THROW(open(o).trajectories[0]->read_classes(0, classes), Error);
  fs::remove(stored);
  open(o).trajectories[0]->read_classes(0, classes);
  EXPECT_EQ(classes, (std::vector<int32_t>{0, 1, 2}));
}

}  // namespace
}  // namespace millrace
