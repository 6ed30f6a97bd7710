#include "io/schema.h"

#include <gtest/gtest.h>

#include <limits>

#include "core/error.h"
#include "io/quote.h"
#include "io/schema_testing.h"

namespace millrace {
namespace {

using namespace schema_testing;

class SchemaTest : public ::testing::Test {
 protected:
  SchemaTest() { declare(&schema_, &settings_); }

  ErrorFields load_error(const std::string& text) {
    return config_error_of([&] { schema_.load_text(text, "f.yaml"); });
  }
  ErrorFields override_error(const std::string& assignment) {
    return config_error_of([&] { schema_.override_with(assignment); });
  }

  Settings settings_;
  Schema schema_;
};

TEST_F(SchemaTest, LoadsEveryKind) {
  schema_.load_text(
      "name: first run\n"
      "training:\n"
      "  batch_size: 64\n"
      "  resume: true\n"
      "  optimizer: {kind: sgd, lr: 3e-4}\n"
      "  seed: 1_000_000\n"
      "model:\n"
      "  vocab: auto\n"
      "  dropout: 0.1\n"
      "memory:\n"
      "  limit: 8GiB\n"
      "  cache: 512 MB\n"
      "data:\n"
      "  buckets: [[16, 3e2], []]\n"
      "  files:\n"
      "    - a.txt\n"
      "    - \"b c.txt\"\n",
      "f.yaml");
  schema_.finish();
  EXPECT_EQ(settings_.name, "first run");
  EXPECT_EQ(settings_.batch_size, 64);
  EXPECT_TRUE(settings_.resume);
  EXPECT_EQ(settings_.optimizer, "sgd");
  EXPECT_EQ(settings_.learning_rate, 3e-4);
  EXPECT_EQ(settings_.seed, 1'000'000);
  EXPECT_EQ(settings_.vocab, -1);
  EXPECT_EQ(settings_.dropout, 0.1);
  EXPECT_EQ(settings_.memory, int64_t{8} << 30);
  EXPECT_EQ(settings_.cache, 512'000'000);
  EXPECT_EQ(settings_.buckets, (IntegerRows{{16, 300}, {}}));
  EXPECT_EQ(settings_.files, (std::vector<std::string>{"a.txt", "b c.txt"}));
}

TEST_F(SchemaTest, AWordWithoutItsSectionIsTheOnlyKeyOfThatName) {
  schema_.load_text("batch_size: 5\nvocab: 9\n", "f.yaml");
  EXPECT_EQ(settings_.batch_size, 5);
  EXPECT_EQ(settings_.vocab, 9);
  schema_.override_with("batch_size=7");
  EXPECT_EQ(settings_.batch_size, 7);
  EXPECT_NE(load_error("batch_size: 5\ntraining: {batch_size: 6}\n").what.find("given twice"),
            std::string::npos);
  int64_t other = 0;
  schema_.integer("model.batch_size", &other).help("Another of that name.");
  EXPECT_NE(load_error("batch_size: 5\n").what.find("unknown key"), std::string::npos);
}

TEST_F(SchemaTest, WhatIsNotThereOnPurposeIsExplained) {
  schema_.absent({"pin_memory", "pinned"}, "it is always so");
  for (const char* text :
       {"pinned: true\n", "training: {pinned: true}\n", "zzz: {pin_memory: 1}\n"}) {
    const ErrorFields error = load_error(text);
    if (std::string_view(text).starts_with("zzz")) {
      EXPECT_NE(error.what.find("unknown key"), std::string::npos) << error.what;
      continue;
    }
    EXPECT_NE(error.what.find("there is no key"), std::string::npos) << error.what;
    EXPECT_EQ(error.expected, "none: it is always so");
    EXPECT_EQ(error.remedy, "remove it");
  }
}

TEST_F(SchemaTest, WhatOthersCallAKeyIsKnown) {
  schema_.renamed({"per_step", "lr"}, "training.batch_size");
  schema_.renamed({"dropuot"}, "model.elsewhere");  // a key that this model has not
  EXPECT_EQ(load_error("training: {lr: 1}\n").remedy, "did you mean `training.batch_size`?");
  EXPECT_EQ(load_error("per_step: 1\n").remedy, "did you mean `training.batch_size`?");
  EXPECT_EQ(load_error("model: {dropuot: 1}\n").remedy, "did you mean `model.dropout`?");
}

TEST_F(SchemaTest, AnUntimedDurationIsNoTime) {
  Duration warmup;
  std::vector<Duration> every;
  schema_.duration("training.warmup", &warmup).untimed();
  schema_.duration_list("training.every", &every).untimed();
  schema_.load_text("training: {warmup: 2 epochs, every: [3, 1 epoch]}\n", "f.yaml");
  EXPECT_EQ(warmup, (Duration{2, Duration::Unit::epochs}));
  EXPECT_EQ(every.size(), 2u);
  for (const char* text : {"training: {warmup: 10 minutes}\n", "training: {every: [3, 10 s]}\n",
                           "training: {every: 10m}\n"}) {
    const ErrorFields error = load_error(text);
    EXPECT_EQ(error.expected.find("minutes"), std::string::npos) << error.expected;
    EXPECT_NE(error.expected.find("no time"), std::string::npos) << error.expected;
  }
}

TEST_F(SchemaTest, LoadsJson) {
  schema_.load_text(
      R"({"name": "j", "model": {"vocab": "auto", "dropout": 0.5}, "memory": {"limit": "1MiB"},
          "training": {"batch_size": 16, "resume": false}, "data": {"files": ["x"]}})",
      "f.json");
  EXPECT_EQ(settings_.name, "j");
  EXPECT_EQ(settings_.batch_size, 16);
  EXPECT_EQ(settings_.vocab, -1);
  EXPECT_EQ(settings_.memory, 1 << 20);
  EXPECT_EQ(schema_.origin("model.dropout"), "f.json:1:53");
}

TEST_F(SchemaTest, NumbersAreReadByTheTypeOfTheKey) {
  for (const auto& [text, value] : std::vector<std::pair<std::string, int64_t>>{
           {"0", 0},
           {"-7", -7},
           {"+7", 7},
           {"1e3", 1000},
           {"3e8", 300'000'000},
           {"1.5e1", 15},
           {"10.0", 10},
           {"1_000_000", 1'000'000},
           {"007", 7},
           {"9223372036854775807", std::numeric_limits<int64_t>::max()},
           {"-9223372036854775808", std::numeric_limits<int64_t>::min()}}) {
    schema_.load_text("training: {seed: " + text + "}", "f.yaml");
    EXPECT_EQ(settings_.seed, value) << text;
  }
  for (const auto& [text, value] :
       std::vector<std::pair<std::string, double>>{{"1e-4", 1e-4},
                                                   {"1E-4", 1e-4},
                                                   {"3e8", 3e8},
                                                   {".5", 0.5},
                                                   {"5.", 5},
                                                   {"2", 2},
                                                   {"+1.5e+2", 150},
                                                   {"1_0.2_5", 10.25}}) {
    schema_.load_text("training: {optimizer: {lr: " + text + "}}", "f.yaml");
    EXPECT_EQ(settings_.learning_rate, value) << text;
  }
  for (const char* text : {"true", "True", "TRUE"}) {
    settings_.resume = false;
    schema_.load_text(std::string("training: {resume: ") + text + "}", "f.yaml");
    EXPECT_TRUE(settings_.resume) << text;
  }
  schema_.load_text("name: 1e3", "f.yaml");
  EXPECT_EQ(settings_.name, "1e3");  // a text stays as it was written
  schema_.load_text("name: 'auto'\nmemory: {limit: 0, cache: \"auto\"}\n", "f.yaml");
  EXPECT_EQ(settings_.name, "auto");
  EXPECT_EQ(settings_.memory, 0);
  EXPECT_EQ(settings_.cache, -1);
}

TEST_F(SchemaTest, OtherShapesThatAreAccepted) {
  schema_.load_text("data: {files: one.txt, buckets: []}\ntraining:\nmodel: {}\n", "f.yaml");
  EXPECT_EQ(settings_.files, std::vector<std::string>{"one.txt"});
  EXPECT_TRUE(settings_.buckets.empty());
  schema_.load_text("training.batch_size: 5\n", "f.yaml");  // a path on one line
  EXPECT_EQ(settings_.batch_size, 5);
  schema_.load_text("training: {learning_rate: 0.25}\n", "f.yaml");  // an alias
  EXPECT_EQ(settings_.learning_rate, 0.25);
  EXPECT_EQ(schema_.origin("training.optimizer.lr"), "f.yaml:1:27");
}

struct Bad {
  const char* text;
  const char* place;  // line:column
  const char* what;   // part of the whole message
};

TEST_F(SchemaTest, RefusesBadFiles) {
  const std::vector<Bad> table = {
      // nothing to read
      {"", "1:1", "the file is empty"},
      {"\n\n", "1:1", "the file is empty"},
      {"# words\n", "1:1", "the file is empty"},
      {"---\n", "2:1", "the file is empty"},
      {"~\n", "1:1", "the file is empty"},
      {"word\n", "1:1", "holds no keys"},
      {"- a\n- b\n", "1:1", "holds no keys"},
      {"[1, 2]\n", "1:1", "holds no keys"},
      {"\"text\"\n", "1:1", "holds no keys"},
      // unknown keys
      {"nmae: x\n", "1:1", "did you mean `name`?"},
      {"training:\n  batchsize: 3\n", "2:3", "did you mean `training.batch_size`?"},
      {"trainnig:\n  batch_size: 3\n", "1:1", "did you mean `training`?"},
      {"batch_sise: 3\n", "1:1", "did you mean `training.batch_size`?"},
      {"model:\n  batch_sise: 3\n", "2:3", "did you mean `training.batch_size`?"},
      {"training:\n  optimizer:\n    knid: sgd\n", "3:5", "`training.optimizer.kind`?"},
      {"zzzzzzzzzz: 1\n", "1:1", "unknown key `zzzzzzzzzz`"},
      {"zzzzzzzzzz: {a: 1}\n", "1:1", "unknown key `zzzzzzzzzz`"},
      {"zzzzzzzzzz: [1]\n", "1:1", "unknown key `zzzzzzzzzz`"},
      {"zzzzzzzzzz:\n", "1:1", "unknown key `zzzzzzzzzz`"},
      {"'': 1\n", "1:1", "unknown key ``"},
      {"training: {'': 1}\n", "1:12", "unknown key `training.`"},
      {"training.: 1\n", "1:1", "unknown key `training.`"},
      {".training: 1\n", "1:1", "unknown key `.training`"},
      {"Name: x\n", "1:1", "did you mean `name`?"},
      {"<<: {name: x}\n", "1:1", "unknown key `<<`"},
      // sections and keys mixed up
      {"training: 5\n", "1:11", "`training` is a section"},
      {"training: [1]\n", "1:11", "`training` is a section"},
      {"training:\n  optimizer: adamw\n", "2:14", "`training.optimizer` is a section"},
      {"name: {a: 1}\n", "1:7", "a map of keys"},
      {"training:\n  batch_size:\n    a: 1\n", "3:5", "a map of keys"},
      {"data:\n  files: {a: b}\n", "2:10", "a map of keys"},
      // twice
      {"name: a\nname: b\n", "2:1", "given twice"},
      {"training: {seed: 1}\ntraining: {resume: true}\n", "2:1", "given twice"},
      {"training: {seed: 1}\ntraining.seed: 2\n", "2:1", "the first at f.yaml:1:18"},
      {"training: {learning_rate: 1, optimizer: {lr: 1}}\n", "1:42", "given twice"},
      // integers
      {"training: {batch_size: 0}\n", "1:24", "an integer, at least 1, at most 4096"},
      {"training: {batch_size: 4097}\n", "1:24", "`4097`"},
      {"training: {batch_size: -1}\n", "1:24", "`-1`"},
      {"training: {batch_size: 1.5}\n", "1:24", "`1.5`"},
      {"training: {batch_size: 1e-3}\n", "1:24", "`1e-3`"},
      {"training: {batch_size: eight}\n", "1:24", "`eight`"},
      {"training: {batch_size: \"8\"}\n", "1:24", "the text `8`"},
      {"training: {batch_size: 0x10}\n", "1:24", "`0x10`"},
      {"training: {batch_size: 1__0}\n", "1:24", "`1__0`"},
      {"training: {batch_size: _1}\n", "1:24", "`_1`"},
      {"training: {batch_size: 1_}\n", "1:24", "`1_`"},
      {"training: {batch_size: 1,5}\n", "1:26", "unknown key `training.5`"},
      {"training: {batch_size: 8 16}\n", "1:24", "`8 16`"},
      {"training: {batch_size: true}\n", "1:24", "`true`"},
      {"training: {batch_size: auto}\n", "1:24", "`auto`"},
      {"training: {batch_size: }\n", "1:12", "nothing"},
      {"training:\n  batch_size:\n  seed: 1\n", "2:3", "nothing"},
      {"training: {batch_size: null}\n", "1:12", "nothing"},
      {"training: {batch_size: [8]}\n", "1:24", "a list"},
      {"training: {seed: 9223372036854775808}\n", "1:18", "an integer"},
      {"training: {seed: 1e19}\n", "1:18", "an integer"},
      {"training: {seed: 1e400}\n", "1:18", "an integer"},
      {"training: {seed: .nan}\n", "1:18", "`.nan`"},
      {"training: {seed: -.}\n", "1:18", "`-.`"},
      {"training: {seed: +-1}\n", "1:18", "`+-1`"},
      {"training: {seed: 1e}\n", "1:18", "`1e`"},
      {"model: {vocab: -1}\n", "1:16", "or `auto`"},
      {"model: {vocab: Auto}\n", "1:16", "or `auto`"},
      // numbers
      {"model: {dropout: 1}\n", "1:18", "a number, at least 0, below 1"},
      {"model: {dropout: -0.1}\n", "1:18", "`-0.1`"},
      {"model: {dropout: nan}\n", "1:18", "`nan`"},
      {"model: {dropout: .nan}\n", "1:18", "`.nan`"},
      {"model: {dropout: .inf}\n", "1:18", "`.inf`"},
      {"model: {dropout: -inf}\n", "1:18", "`-inf`"},
      {"training: {optimizer: {lr: 0}}\n", "1:28", "a number, above 0"},
      {"training: {optimizer: {lr: inf}}\n", "1:28", "`inf`"},
      {"training: {optimizer: {lr: 1e999}}\n", "1:28", "`1e999`"},
      {"training: {optimizer: {lr: 0x1p-3}}\n", "1:28", "`0x1p-3`"},
      {"training: {optimizer: {lr: '1e-4'}}\n", "1:28", "the text `1e-4`"},
      {"training: {optimizer: {lr: 1e-4x}}\n", "1:28", "`1e-4x`"},
      {"training: {learning_rate: 0}\n", "1:27", "bad value for `training.optimizer.lr`"},
      // the rest
      {"training: {resume: yes}\n", "1:20", "`true` or `false`"},
      {"training: {resume: 1}\n", "1:20", "`true` or `false`"},
      {"training: {resume: \"true\"}\n", "1:20", "the text `true`"},
      {"training: {optimizer: {kind: adamx}}\n", "1:30", "did you mean `adamw`?"},
      {"training: {optimizer: {kind: zzz}}\n", "1:30", "one of `adamw`, `sgd`, `lion`"},
      {"training: {optimizer: {kind: [sgd]}}\n", "1:30", "a list"},
      {"training: {optimizer: {kind: }}\n", "1:24", "nothing"},
      {"name: [a]\n", "1:7", "a list"},
      {"name:\n", "1:1", "nothing"},
      {"memory: {limit: 8 GG}\n", "1:17", "a size such as 8GiB"},
      {"memory: {limit: 8G}\n", "1:17", "a size such as 8GiB"},
      {"memory: {limit: -1}\n", "1:17", "a size such as 8GiB"},
      {"memory: {limit: 1023}\n", "1:17", "at least 1KiB"},
      {"memory: {limit: auto}\n", "1:17", "`auto`"},
      {"memory: {limit: [1GiB]}\n", "1:17", "a list"},
      {"data: {buckets: 64}\n", "1:17", "a list of lists of integers"},
      {"data: {buckets: [64]}\n", "1:18", "`64`"},
      {"data: {buckets: [[64, x]]}\n", "1:23", "`x`"},
      {"data: {buckets: [[64], [0]]}\n", "1:25", "at least 1"},
      {"data: {buckets: [[64, [1]]]}\n", "1:23", "a list"},
      {"data: {buckets: [[64, ~]]}\n", "1:23", "nothing"},
      {"data: {files: [a, [b]]}\n", "1:19", "a list"},
      {"data: {files: [a, null]}\n", "1:19", "nothing"},
      {"data: {files: }\n", "1:8", "nothing"},
      // not YAML at all (io/yaml_test.cc has the long list)
      {"name: \"x\n", "2:2", "not YAML"},
      {"name: &a x\n", "1:7", "anchors"},
      {"name: !!str x\n", "1:7", "tags"},
      {"name: x\n---\nname: y\n", "2:1", "second document"},
      {"name: \x01\n", "1:7", "not text"},
  };
  for (const Bad& bad : table) {
    Settings fresh;
    Schema one;
    declare(&one, &fresh);
    const ErrorFields fields = config_error_of([&] { one.load_text(bad.text, "f.yaml"); });
    EXPECT_TRUE(fields.where.starts_with(std::string("f.yaml:") + bad.place))
        << bad.text << "at " << fields.where;
    EXPECT_NE(std::string(Error(fields).what()).find(bad.what), std::string::npos)
        << bad.text << Error(fields).what();
    EXPECT_FALSE(fields.expected.empty()) << bad.text;
    EXPECT_FALSE(fields.got.empty()) << bad.text;
    EXPECT_FALSE(fields.remedy.empty()) << bad.text;
  }
}

TEST_F(SchemaTest, ErrorsNameTheKeyAndTheWayOut) {
  ErrorFields fields = load_error("training:\n  batch_size: 0\n");
  EXPECT_EQ(fields.what, "bad value for `training.batch_size`");
  EXPECT_EQ(fields.where, "f.yaml:2:15: `training.batch_size`");
  EXPECT_EQ(fields.expected, "an integer, at least 1, at most 4096");
  EXPECT_EQ(fields.got, "`0`");
  EXPECT_EQ(fields.remedy, "correct it, or leave it out for the default `8`");

  fields = load_error("training:\n  bach_size: 0\n");
  EXPECT_EQ(fields.what, "unknown key `training.bach_size`");
  EXPECT_EQ(fields.where, "f.yaml:2:3: `training.bach_size`");
  EXPECT_EQ(fields.expected, "one of: `batch_size`, `optimizer`, `resume`, `seed`");
  EXPECT_EQ(fields.remedy, "did you mean `training.batch_size`?");
}

TEST_F(SchemaTest, ABadValueLeavesTheTarget) {
  load_error("training: {batch_size: 0}");
  EXPECT_EQ(settings_.batch_size, 8);
  EXPECT_FALSE(schema_.was_set("training.batch_size"));
  load_error("data: {buckets: [[1], [x]]}");
  EXPECT_EQ(settings_.buckets, (IntegerRows{{64, 128}, {256}}));
}

TEST_F(SchemaTest, LoadsFromDisk) {
  const fs::path path = ::testing::TempDir() + "millrace-schema_.yaml";
  write_file(path, "training:\n  batch_size: 3\n");
  schema_.load(path);
  EXPECT_EQ(settings_.batch_size, 3);
  EXPECT_EQ(schema_.origin("training.batch_size"), path.string() + ":2:15");
  write_file(path, "#" + std::string(11'000'000, 'x'));
  EXPECT_EQ(config_error_of([&] { schema_.load(path); }).what, "the file is too large");
  fs::remove(path);
  EXPECT_EQ(config_error_of([&] { schema_.load(path); }).where, path.string());
  EXPECT_EQ(config_error_of([&] { schema_.load(::testing::TempDir()); }).remedy,
            "name a file, not a folder");
}

TEST_F(SchemaTest, LaterWins) {
  EXPECT_FALSE(schema_.was_set("name"));
  EXPECT_EQ(schema_.origin("name"), "default");
  EXPECT_EQ(schema_.where("name"), "`name` (default)");
  schema_.load_text("name: one\ntraining: {seed: 1}\n", "base.yaml");
  schema_.load_text("name: two\n", "mine.yaml");
  EXPECT_EQ(settings_.name, "two");
  EXPECT_EQ(schema_.origin("name"), "mine.yaml:1:7");
  EXPECT_EQ(schema_.where("name"), "mine.yaml:1:7: `name`");
  EXPECT_EQ(schema_.origin("training.seed"), "base.yaml:2:18");
  schema_.override_with("name=three");
  schema_.override_with("name=four");
  EXPECT_EQ(settings_.name, "four");
  EXPECT_TRUE(schema_.was_set("name"));
  EXPECT_EQ(schema_.origin("name"), "command line: name=four");
  EXPECT_EQ(schema_.where("name"), "command line: name=four");
}

TEST_F(SchemaTest, AnAlternativeStandsInForItsSection) {
  const std::string text =
      "data: {files: a.txt, buckets: [[1]]}\n"
      "sets:\n"
      "  plays: {files: plays.txt}\n"
      "  tales:\n"
      "    files: [b.txt, c.txt]\n"
      "    buckets: [[2]]\n";
  load_error(text);  // not declared yet
  schema_.alternatives("sets", "data", "Named sets.");
  schema_.load_text(text, "f.yaml");
  EXPECT_EQ(schema_.alternative_names(), (std::vector<std::string>{"plays", "tales"}));
  EXPECT_EQ(settings_.files, (std::vector<std::string>{"a.txt"})) << "none was taken";
  schema_.take_alternative("plays");
  EXPECT_EQ(settings_.files, (std::vector<std::string>{"plays.txt"}));
  EXPECT_EQ(settings_.buckets, (IntegerRows{{1}})) << "it says nothing about these";
  EXPECT_EQ(schema_.origin("data.files"), "f.yaml:3:18");
  schema_.take_alternative("tales");
  EXPECT_EQ(settings_.files, (std::vector<std::string>{"b.txt", "c.txt"}));
  EXPECT_EQ(settings_.buckets, (IntegerRows{{2}}));
  schema_.override_with("data.files=mine.txt");
  EXPECT_EQ(settings_.files, (std::vector<std::string>{"mine.txt"}));
  EXPECT_EQ(schema_.resolved_yaml().find("sets"), std::string::npos) << "what was taken is written";
  EXPECT_NE(schema_.markdown().find("## sets\n\nNamed sets.\n"), std::string::npos);
  EXPECT_EQ(override_error("sets=plays").expected, "one of its keys: `plays`, `tales`");
  schema_.load_text("name: x\nsets:\n", "empty.yaml");
  EXPECT_TRUE(schema_.alternative_names().empty());
}

TEST_F(SchemaTest, RefusesBadAlternatives) {
  schema_.alternatives("sets", "data", "Named sets.");
  ErrorFields fields = load_error("sets: plays\n");
  EXPECT_EQ(fields.where, "f.yaml:1:1: `sets`");
  EXPECT_EQ(fields.got, "`plays`");
  fields = load_error("sets:\n  plays: plays.txt\n");
  EXPECT_EQ(fields.where, "f.yaml:2:3: `sets.plays`");
  EXPECT_EQ(fields.expected, "keys of `data`: `buckets`, `files`");
  // Also of one that nobody takes.
  fields = load_error("sets:\n  plays: {files: a.txt}\n  tales:\n    fiels: b.txt\n");
  EXPECT_EQ(fields.where, "f.yaml:4:5: `sets.tales.fiels`");
  EXPECT_EQ(fields.expected, "one of: `buckets`, `files`");
  EXPECT_EQ(fields.remedy, "did you mean `data.files`?");
  EXPECT_EQ(load_error("stes: {plays: {files: a.txt}}\n").where, "f.yaml:1:1: `stes`");
  schema_.load_text("sets: {plays: {buckets: 3}}\n", "f.yaml");
  fields = config_error_of([&] { schema_.take_alternative("plays"); });
  EXPECT_EQ(fields.where, "f.yaml:1:25: `sets.plays.buckets`");
}

TEST_F(SchemaTest, Overrides) {
  schema_.override_with("training.batch_size=1e2");
  EXPECT_EQ(settings_.batch_size, 100);
  schema_.override_with("+training.batch_size=7");
  EXPECT_EQ(settings_.batch_size, 7);
  schema_.override_with("++training.optimizer.lr=1e-5");
  EXPECT_EQ(settings_.learning_rate, 1e-5);
  schema_.override_with("training.learning_rate=2e-5");
  EXPECT_EQ(settings_.learning_rate, 2e-5);
  schema_.override_with("training.resume=true");
  EXPECT_TRUE(settings_.resume);
  schema_.override_with("training.optimizer.kind=lion");
  EXPECT_EQ(settings_.optimizer, "lion");
  schema_.override_with("model.vocab=300");
  schema_.override_with("model.vocab=auto");
  EXPECT_EQ(settings_.vocab, -1);
  schema_.override_with("memory.limit=2GiB");
  EXPECT_EQ(settings_.memory, int64_t{2} << 30);
  schema_.override_with("data.buckets=[[1, 2], [3]]");
  EXPECT_EQ(settings_.buckets, (IntegerRows{{1, 2}, {3}}));
  schema_.override_with("data.files=[a.txt, 'b c']");
  EXPECT_EQ(settings_.files, (std::vector<std::string>{"a.txt", "b c"}));
  schema_.override_with("data.files=*.txt");
  EXPECT_EQ(settings_.files, std::vector<std::string>{"*.txt"});
}

TEST_F(SchemaTest, TextOverridesAreTakenAsTheyStand) {
  for (const auto& [typed, value] :
       std::vector<std::pair<std::string, std::string>>{{"", ""},
                                                        {"a=b", "a=b"},
                                                        {"To be: or not", "To be: or not"},
                                                        {"null", "null"},
                                                        {"[x]", "[x]"},
                                                        {"*", "*"},
                                                        {"# no", "# no"},
                                                        {"\"a\\tb\"", "a\tb"},
                                                        {"'x y'", "x y"},
                                                        {"größe", "größe"},
                                                        {"two\nlines", "two\nlines"}}) {
    schema_.override_with("name=" + typed);
    EXPECT_EQ(settings_.name, value);
  }
}

TEST_F(SchemaTest, RefusesBadOverrides) {
  for (const auto& [typed, message] : std::vector<std::pair<std::string, std::string>>{
           {"", "not an override"},
           {"name", "not an override"},
           {"=x", "not an override"},
           {"+=x", "not an override"},
           {"--help", "not an override"},
           {"+++name=x", "unknown key `+name`"},
           {"~name=x", "did you mean `name`?"},
           {"nmae=x", "did you mean `name`?"},
           {"trainnig.seed=1", "did you mean `training.seed`?"},
           {"zzzzzz.zzzzzz=1", "unknown key"},
           {"training=1", "`training` is a section"},
           {"training={seed: 1}", "`training` is a section"},
           {"training.batch_size=0", "at least 1"},
           {"training.batch_size=", "nothing"},
           {"training.batch_size= ", "nothing"},
           {"training.batch_size='8'", "the text `8`"},
           {"training.batch_size=[8", "not YAML"},
           {"training.batch_size=8: 9", "a map of keys"},
           {"training.batch_size=&a 8", "anchors"},
           {"training.batch_size=!!int 8", "tags"},
           {"training.batch_size=nan", "`nan`"},
           {"training.batch_size=" + std::string(5000, '['), "too deep"},
           {"training.optimizer.kind=adam", "did you mean `adamw`?"},
           {"data.buckets=64", "a list of lists of integers"},
           {"data.files=", "nothing"},
           {"data.files=[a, [b]]", "a list"},
           {"name=\"x", "not YAML"},
           {"name=\xff", "UTF-8"},
           {"training.seed=\x04", "not text"}}) {
    const ErrorFields fields = override_error(typed);
    EXPECT_TRUE(fields.where.starts_with("command line: " + printable(typed.substr(0, 100), 100)))
        << typed << " at " << fields.where;
    EXPECT_NE(std::string(Error(fields).what()).find(message), std::string::npos)
        << typed << "\n"
        << Error(fields).what();
    EXPECT_FALSE(fields.expected.empty() || fields.got.empty() || fields.remedy.empty()) << typed;
  }
}

TEST_F(SchemaTest, LongAndHostileNamesStayOnOneLine) {
  const ErrorFields fields = load_error("\"\\e[31m" + std::string(100'000, 'x') + "\": 1\n");
  EXPECT_LT(fields.what.size(), 200u);
  EXPECT_LT(fields.where.size(), 200u);
  EXPECT_EQ(fields.what.find('\x1b'), std::string::npos);
}

}  // namespace
}  // namespace millrace
