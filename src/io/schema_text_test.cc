#include <gtest/gtest.h>

#include <limits>

#include "core/error.h"
#include "io/schema.h"
#include "io/schema_testing.h"

namespace millrace {
namespace {

using namespace schema_testing;

class SchemaTextTest : public ::testing::Test {
 protected:
  SchemaTextTest() { declare(&schema_, &settings_); }
  Settings settings_;
  Schema schema_;
};

TEST_F(SchemaTextTest, Required) {
  std::string corpus;
  schema_.text("corpus", &corpus).required();
  const ErrorFields fields = config_error_of([&] { schema_.finish(); });
  EXPECT_EQ(fields.what, "`corpus` is missing");
  EXPECT_EQ(fields.remedy, "give it in the file or as corpus=...");
  schema_.override_with("corpus=a.txt");
  schema_.finish();
}

TEST_F(SchemaTextTest, ResolvedSaysWhereEverythingComesFrom) {
  schema_.load_text("training: {batch_size: 64}\nmemory: {limit: 1536KiB}\n", "f.yaml");
  schema_.override_with("data.files=[a.txt, 'b c']");
  settings_.vocab = 50257;
  schema_.note("model.vocab", "auto: from the data");
  EXPECT_EQ(schema_.origin("model.vocab"), "auto: from the data");
  EXPECT_EQ(schema_.where("model.vocab"), "`model.vocab` (auto: from the data)");
  EXPECT_FALSE(schema_.was_set("model.vocab"));
  EXPECT_EQ(schema_.resolved_yaml(),
            "name: run  # default\n"
            "training:\n"
            "  batch_size: 64  # f.yaml:1:24\n"
            "  optimizer:\n"
            "    lr: 0.001  # default\n"
            "    kind: adamw  # default\n"
            "  resume: false  # default\n"
            "  seed: 0  # default\n"
            "model:\n"
            "  vocab: 50257  # auto: from the data\n"
            "  dropout: 0  # default\n"
            "memory:\n"
            "  limit: 1536KiB  # f.yaml:2:17\n"
            "  cache: auto  # default\n"
            "data:\n"
            "  buckets: [[64, 128], [256]]  # default\n"
            "  files: [a.txt, \"b c\"]  # command line: data.files=[a.txt, 'b c']\n");
}

TEST_F(SchemaTextTest, ResolvedReadsBack) {
  settings_.learning_rate = 0.1 + 0.2;  // needs all 17 digits
  settings_.memory = 1025;
  settings_.seed = std::numeric_limits<int64_t>::min();
  settings_.buckets = {};
  for (const char* text : {"", " x ", "null", "~", "a: b", "# c", "two\nlines\t", "\"q\" \\ 'r'",
                           "größe", "[x", "- a", "-5", "\x1b\x7f", "...", "---", "true", "{}"}) {
    settings_.name = text;
    settings_.files = {text, "b"};
    Settings again;
    Schema other;
    declare(&other, &again);
    other.load_text(schema_.resolved_yaml(), "resolved.yaml");
    EXPECT_EQ(again.name, settings_.name);
    EXPECT_EQ(again.files, settings_.files);
    EXPECT_EQ(again.learning_rate, settings_.learning_rate);
    EXPECT_EQ(again.memory, settings_.memory);
    EXPECT_EQ(again.seed, settings_.seed);
    EXPECT_EQ(again.buckets, settings_.buckets);
    EXPECT_EQ(again.cache, -1);
  }
  schema_.note("name", "an origin\nof two lines");  // must stay one comment
  Settings again;
  Schema other;
  declare(&other, &again);
  other.load_text(schema_.resolved_yaml(), "resolved.yaml");
}

TEST_F(SchemaTextTest, Markdown) {
  Schema small;
  Settings values;
  small.text("name", &values.name).help("Name | of the run.").required();
  small.number("training.lr", &values.learning_rate).above(0).alias("lr").help("Peak rate.");
  small.choice("training.kind", &values.optimizer, {"adamw", "sgd"});
  small.integer("model.vocab", &values.vocab).min(1).allow_auto();
  small.bytes("memory", &values.memory);
  EXPECT_EQ(small.markdown(),
            "## Top level\n\n"
            "| Key | Type | Default | Allowed | Meaning |\n|---|---|---|---|---|\n"
            "| `name` | text | required |  | Name \\| of the run. |\n"
            "| `memory` | size, 0 for no limit | `0` |  |  |\n"
            "\n## training\n\n"
            "| Key | Type | Default | Allowed | Meaning |\n|---|---|---|---|---|\n"
            "| `training.lr` | number | `0.001` | above 0 | Peak rate. Also written `lr`. |\n"
            "| `training.kind` | choice | `adamw` | one of `adamw`, `sgd` |  |\n"
            "\n## model\n\n"
            "| Key | Type | Default | Allowed | Meaning |\n|---|---|---|---|---|\n"
            "| `model.vocab` | integer | `auto` | at least 1, or `auto` |  |\n");
  schema_.load_text("name: other\n", "f.yaml");
  EXPECT_NE(schema_.markdown().find("| `name` | text | `run` |"), std::string::npos);
}

TEST(SchemaDeathTest, DeclarationsAreChecked) {
  int64_t number = 0;
  std::string word = "none";
  EXPECT_DEATH(
      {
        Schema s;
        s.integer("a", &number);
        s.integer("a", &number);
      },
      "declared twice");
  EXPECT_DEATH(
      {
        Schema s;
        s.integer("a.b", &number);
        s.integer("a", &number);
      },
      "declared twice");
  EXPECT_DEATH(
      {
        Schema s;
        s.integer("a", &number);
        s.integer("a.b", &number);
      },
      "inside another");
  EXPECT_DEATH(
      {
        Schema s;
        s.integer("", &number);
      },
      "words joined by dots");
  EXPECT_DEATH(
      {
        Schema s;
        s.integer("a b", &number);
      },
      "words joined by dots");
  EXPECT_DEATH(
      {
        Schema s;
        s.text("a", &word).min(1);
      },
      "no limits");
  EXPECT_DEATH(
      {
        Schema s;
        s.text("a", &word).allow_auto();
      },
      "cannot be auto");
  EXPECT_DEATH(
      {
        Schema s;
        s.integer("a", &number).min(1);
        s.finish();
      },
      "default 0 of `a`");
  EXPECT_DEATH(
      {
        Schema s;
        s.choice("a", &word, {"x"});
        s.finish();
      },
      "default none of `a`");
  EXPECT_DEATH(
      {
        Schema s;
        s.integer("a", &number).alias("b");
        s.integer("b", &number);
        s.finish();
      },
      "declared twice");
  EXPECT_DEATH(
      {
        Schema s;
        s.integer("a", &number);
        s.integer("b", &number).alias("a");
        s.finish();
      },
      "alias `a` is also a key");
  EXPECT_DEATH(
      {
        Schema s;
        (void)s.origin("a");
      },
      "not declared");
  EXPECT_DEATH(
      {
        Schema s;
        s.note("a", "x");
      },
      "not declared");
}

}  // namespace
}  // namespace millrace
