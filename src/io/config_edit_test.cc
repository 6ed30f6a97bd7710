#include "io/config_edit.h"

#include <gtest/gtest.h>

#include "core/error.h"
#include "core/rng.h"
#include "io/json_parser.h"
#include "io/schema_testing.h"

namespace millrace {
namespace {

using namespace schema_testing;
using Changes = std::vector<ConfigChange>;

class ConfigEditTest : public ::testing::Test {
 protected:
  ConfigEditTest() {
    declare(&schema_, &settings_);
    schema_.alternatives("datasets", "data", "Other data.");
  }

  // The edited text, which must load with these values and nothing else changed.
  std::string edit(const std::string& text, const Changes& changes) {
    const std::string edited = edit_config(text, changes, schema_, "f.yaml");
    EXPECT_TRUE(edited_config_matches(text, edited, changes, schema_)) << edited;
    Settings old_values, new_values;
    Schema before, after;
    for (auto [schema, values] : {std::pair{&before, &old_values}, {&after, &new_values}}) {
      declare(schema, values);
      schema->alternatives("datasets", "data", "Other data.");
    }
    if (parse_yaml(text, "before.yaml").kind == YamlNode::Kind::map)
      before.load_text(text, "before.yaml");
    for (const ConfigChange& change : changes)
      before.override_with(change.path + "=" + change.value);
    after.load_text(edited, "after.yaml");
    for (const std::string& path : after.paths()) {
      EXPECT_EQ(after.value_text(path), before.value_text(path)) << path << " in\n" << edited;
      EXPECT_EQ(after.was_set(path), before.was_set(path)) << path << " in\n" << edited;
    }
    EXPECT_EQ(after.alternative_names(), before.alternative_names());
    return edited;
  }

  Settings settings_;
  Schema schema_;
};

const ConfigChange kBatch = {"training.batch_size", "32", "was 1; +212 % +-3"};
const ConfigChange kPlainBatch = {"training.batch_size", "32", ""};

TEST_F(ConfigEditTest, ChangesAValueInItsLine) {
  EXPECT_EQ(edit("# mine\nname: run   # a name\n\ntraining:\n  seed: 3\n  batch_size: 1   # small\n"
                 "  resume: true\n",
                 {kBatch}),
            "# mine\nname: run   # a name\n\ntraining:\n  seed: 3\n"
            "  batch_size: 32  # millrace doctor: was 1; +212 % +-3  # small\n"
            "  resume: true\n");
  EXPECT_EQ(edit("training:\n  batch_size:    1   # small\n", {kPlainBatch}),
            "training:\n  batch_size:    32   # small\n");
  EXPECT_EQ(edit("training:\n  batch_size:\n    1\n  seed: 2\n", {kPlainBatch}),
            "training:\n  batch_size:\n    32\n  seed: 2\n");
  EXPECT_EQ(edit("name: 'it''s # 1'  # x\nseed: 1\n", {{"name", "\"it's\"", "shorter"}}),
            "name: \"it's\"  # millrace doctor: shorter  # x\nseed: 1\n");
  EXPECT_EQ(edit("{name: größe, seed: 1} # ü\n", {{"training.seed", "2", ""}}),
            "{name: größe, seed: 2} # ü\n");
}

TEST_F(ConfigEditTest, FindsTheKeyHoweverItIsWritten) {
  EXPECT_EQ(edit("training:\n  learning_rate: 1e-3\n", {{"training.optimizer.lr", "2e-3", ""}}),
            "training:\n  learning_rate: 2e-3\n");
  EXPECT_EQ(edit("training.batch_size: 1\n", {kPlainBatch}), "training.batch_size: 32\n");
  EXPECT_EQ(edit("\"training\":\n  'batch_size' : 1\n", {kPlainBatch}),
            "\"training\":\n  'batch_size' : 32\n");
  EXPECT_EQ(edit("batch_size: 1  # top\n", {kPlainBatch}), "batch_size: 32  # top\n");
  EXPECT_EQ(edit("learning_rate: 1\nseed: 1\n", {{"training.optimizer.lr", "2", ""}}),
            "learning_rate: 2\nseed: 1\n");
  EXPECT_EQ(edit("training:\n  optimizer.lr: 1\n", {{"training.optimizer.lr", "2", ""}}),
            "training:\n  optimizer.lr: 2\n");
  EXPECT_EQ(edit("training.optimizer:\n  kind: sgd\n", {{"training.optimizer.lr", "2", ""}}),
            "training.optimizer:\n  kind: sgd\n  lr: 2\n");
  EXPECT_EQ(edit("? seed\n: 1\n", {{"training.seed", "5", "s"}}),
            "? seed\n: 5  # millrace doctor: s\n");
  // The same word in another place is not the key.
  EXPECT_EQ(edit("datasets:\n  a: {files: x}\ndata:\n  files: y\n", {{"data.files", "z", ""}}),
            "datasets:\n  a: {files: x}\ndata:\n  files: z\n");
}

TEST_F(ConfigEditTest, ReplacesWhatSpansLinesAsAWhole) {
  const ConfigChange files = {"data.files", "[c.txt, 'd e']", "why"};
  EXPECT_EQ(edit("data:\n  files:  # mine\n    - a\n    # not this\n    - b\n\n  # next\n"
                 "  buckets: [[1]]\n",
                 {files}),
            "data:\n  files: [c.txt, \"d e\"]  # millrace doctor: why  # mine\n\n  # next\n"
            "  buckets: [[1]]\n");
  EXPECT_EQ(edit("data:\n  files:\n  - a\n  - b\n  buckets: [[1]]", {files}),
            "data:\n  files: [c.txt, \"d e\"]  # millrace doctor: why\n  buckets: [[1]]");
  EXPECT_EQ(edit("data:\n  files: [a,\n    b, # one\n  'c ]']  # last\nseed: 1\n", {files}),
            "data:\n  files: [c.txt, \"d e\"]  # millrace doctor: why  # last\nseed: 1\n");
  EXPECT_EQ(edit("name: |-  # text\n  # no comment\n  b\n# end\nseed: 1\n", {{"name", "c", ""}}),
            "name: c  # text\n# end\nseed: 1\n");
  EXPECT_EQ(edit("name: one\n  two\n\n  three\nseed: 1\n", {{"name", "c", "x"}}),
            "name: c  # millrace doctor: x\nseed: 1\n");
  EXPECT_EQ(edit("name: \"one\ntwo\"  # n\nseed: 1\n", {{"name", "c", ""}}),
            "name: c  # n\nseed: 1\n");
  EXPECT_EQ(edit("data:\n  buckets:\n  -\n    - 1\n    - 2\n  - [3]\n",
                 {{"data.buckets", "[[4, 5], [6]]", ""}}),
            "data:\n  buckets: [[4, 5], [6]]\n");
}

TEST_F(ConfigEditTest, PutsAKeyAtTheEndOfItsSection) {
  EXPECT_EQ(edit("training:\n    seed: 3 # s\n    # resume: true\n\n# below\nname: x\n", {kBatch}),
            "training:\n    seed: 3 # s\n    # resume: true\n"
            "    batch_size: 32  # millrace doctor: was 1; +212 % +-3\n\n# below\nname: x\n");
  EXPECT_EQ(edit("training:\n  optimizer:\n    kind: sgd\n  resume: true\nname: x\n",
                 {{"training.optimizer.lr", "2", ""}}),
            "training:\n  optimizer:\n    kind: sgd\n    lr: 2\n  resume: true\nname: x\n");
  EXPECT_EQ(edit("training:\n  seed: 1\nname: x\n", {{"training.optimizer.lr", "2", "y"}}),
            "training:\n  seed: 1\n  optimizer:\n    lr: 2  # millrace doctor: y\nname: x\n");
  EXPECT_EQ(edit("training:  # empty\nname: x\n", {kPlainBatch}),
            "training:  # empty\n  batch_size: 32\nname: x\n");
  EXPECT_EQ(edit("training: ~\nname: x\n", {kPlainBatch}), "training: {batch_size: 32}\nname: x\n");
  EXPECT_EQ(edit("training:\n  seed: 1\n  optimizer:\n    kind: sgd\n", {kPlainBatch}),
            "training:\n  seed: 1\n  optimizer:\n    kind: sgd\n  batch_size: 32\n");
}

TEST_F(ConfigEditTest, AppendsASection) {
  EXPECT_EQ(edit("name: x\n", {kBatch, {"training.seed", "4", ""}}),
            "name: x\ntraining:\n  batch_size: 32  # millrace doctor: was 1; +212 % +-3\n"
            "  seed: 4\n");
  EXPECT_EQ(edit("name: x\n\nmodel:\n   dropout: 0.5\n# end\n", {kPlainBatch}),
            "name: x\n\nmodel:\n   dropout: 0.5\n# end\n\ntraining:\n   batch_size: 32\n");
  EXPECT_EQ(edit("---\nname: x\n...\n", {kPlainBatch}),
            "---\nname: x\ntraining:\n  batch_size: 32\n...\n");
  EXPECT_EQ(edit("  name: x\n", {kPlainBatch}), "  name: x\n  training:\n    batch_size: 32\n");
  EXPECT_EQ(edit("training:\n  seed: 1\n", {{"name", "x", ""}}), "training:\n  seed: 1\nname: x\n");
  EXPECT_EQ(edit("", {kBatch}),
            "training:\n  batch_size: 32  # millrace doctor: was 1; +212 % +-3\n");
  EXPECT_EQ(edit("{}\n", {kPlainBatch}), "training:\n  batch_size: 32\n");
  EXPECT_EQ(edit("# nothing yet\n", {kPlainBatch}), "# nothing yet\ntraining:\n  batch_size: 32\n");
}

TEST_F(ConfigEditTest, WorksInBraces) {
  EXPECT_EQ(edit("training: {batch_size: 1, seed: 2}  # t\nname: x\n", {kBatch}),
            "training: {batch_size: 32, seed: 2}  # millrace doctor: batch_size: was 1; +212 % +-3"
            "  # t\nname: x\n");
  EXPECT_EQ(edit("training: {seed: 2}\n", {kBatch, {"training.optimizer.lr", "2", "faster"}}),
            "training: {seed: 2, batch_size: 32, optimizer: {lr: 2}}  # millrace doctor: lr: faster"
            "  # millrace doctor: batch_size: was 1; +212 % +-3\n");
  EXPECT_EQ(edit("training: {}\n", {kPlainBatch}), "training: {batch_size: 32}\n");
  EXPECT_EQ(edit("training: {\n  seed: 2,  # s\n}\nname: x\n", {kBatch}),
            "training: {\n  seed: 2,  # s\n"
            "  batch_size: 32  # millrace doctor: batch_size: was 1; +212 % +-3\n}\nname: x\n");
  EXPECT_EQ(edit("training: {\n  seed: 2  # s\n}\nname: x\n", {kPlainBatch}),
            "training: {\n  seed: 2,  # s\n  batch_size: 32\n}\nname: x\n");
  EXPECT_EQ(edit("{name: x, data: {files: a}} # c\n", {{"data.files", "['b, c', d]", ""}}),
            "{name: x, data: {files: [\"b, c\", d]}} # c\n");
}

TEST_F(ConfigEditTest, JsonStaysJson) {
  auto json = [&](const std::string& text, const Changes& changes) {
    std::string edited = edit(text, changes);
    EXPECT_NO_THROW(parse_json(edited)) << edited;
    return edited;
  };
  const Changes changes = {kBatch,
                           {"memory.limit", "8GiB", "x"},
                           {"data.files", "[a.txt, \"b\\e\"]", "y"},
                           {"training.resume", "true", ""}};
  EXPECT_EQ(json("{\n  \"training\": {\n    \"batch_size\": 1,\n    \"seed\": 2\n  },\n"
                 "  \"name\": \"x\"\n}\n",
                 changes),
            "{\n  \"training\": {\n    \"batch_size\": 32,\n    \"seed\": 2,\n"
            "    \"resume\": true\n  },\n  \"name\": \"x\",\n  \"memory\": {\"limit\": \"8GiB\"},\n"
            "  \"data\": {\"files\": [\"a.txt\", \"b\\u001b\"]}\n}\n");
  EXPECT_EQ(json("{\"training\":{\"seed\":2}}", {kBatch}),
            "{\"training\":{\"seed\":2, \"batch_size\": 32}}");
  EXPECT_EQ(json("{\n\t\"training\": {\n\t\t\"seed\": 2\n\t}\n}", {kBatch, {"name", "y", ""}}),
            "{\n\t\"training\": {\n\t\t\"seed\": 2,\n\t\t\"batch_size\": 32\n\t},\n"
            "\t\"name\": \"y\"\n}");
  EXPECT_EQ(json("{\"training\": null, \"name\": \"}\"}", {kBatch}),
            "{\"training\": {\"batch_size\": 32}, \"name\": \"}\"}");
}

TEST_F(ConfigEditTest, LineEndsSurvive) {
  EXPECT_EQ(edit("training:\r\n  batch_size: 1\r\n  # c\r\nname: x\r\n",
                 {kBatch, {"training.seed", "1", ""}}),
            "training:\r\n  batch_size: 32  # millrace doctor: was 1; +212 % +-3\r\n  # c\r\n"
            "  seed: 1\r\nname: x\r\n");
  EXPECT_EQ(
      edit("training:\r\n  batch_size: 1 # s\r\nname: x", {kBatch, {"model.dropout", "0.5", "d"}}),
      "training:\r\n  batch_size: 32  # millrace doctor: was 1; +212 % +-3  # s\r\nname: x"
      "\r\nmodel:\r\n  dropout: 0.5  # millrace doctor: d");
  EXPECT_EQ(
      edit("data:\r\n  files:\r\n    - a\r\n    - b\r\nname: x\r\n", {{"data.files", "c", ""}}),
      "data:\r\n  files: c\r\nname: x\r\n");
  EXPECT_EQ(edit("batch_size: 1", {kPlainBatch}), "batch_size: 32");
  EXPECT_EQ(edit("\xEF\xBB\xBF"
                 "batch_size: 1\n",
                 {kPlainBatch}),
            "\xEF\xBB\xBF"
            "batch_size: 32\n");
}

TEST_F(ConfigEditTest, AnEarlierReasonMakesRoom) {
  const std::string first = edit("training:\n  batch_size: 1  # mine\n", {kBatch});
  EXPECT_EQ(edit(first, {{"training.batch_size", "64", "was 32; +5 %"}}),
            "training:\n  batch_size: 64  # millrace doctor: was 32; +5 %  # mine\n");
  EXPECT_EQ(edit(first, {{"training.batch_size", "64", ""}}),
            "training:\n  batch_size: 64  # mine\n");
  EXPECT_EQ(edit("seed: 1\n", {{"training.seed", "2", "two\nlines\x1b"}}),
            "seed: 2  # millrace doctor: two?lines?\n");
}

// What cannot be changed in place is written anew, with everything that was said.
TEST_F(ConfigEditTest, FallsBackToANewText) {
  const std::string head =
      "# millrace doctor: written anew, without the comments of the original\n";
  EXPECT_EQ(edit("? data.files\n: - a  # x\n  - b c\nname: \"7\"\n", {{"data.files", "d", "e"}}),
            head + "data.files: d  # millrace doctor: e\nname: \"7\"\n");
  // The blank line belongs to the text, and the key would come before it.
  EXPECT_EQ(edit("data: {files: ['a, b', c d]}\nmodel:\nname: |+\n  a\n\n", {kPlainBatch}),
            head +
                "data:\n  files:\n    - \"a, b\"\n    - c d\nmodel:\nname: \"a\\n\\n\"\n"
                "training:\n  batch_size: 32\n");
}

TEST_F(ConfigEditTest, RefusesWhatIsNoConfiguration) {
  for (const char* text : {"[1, 2]\n", "a: [\n", "\x01", "batch_size: 1\ntraining: {batch_size: 2}",
                           "training: 5\n", "word"}) {
    const ErrorFields fields =
        config_error_of([&] { edit_config(text, Changes{kBatch}, schema_, "f.yaml"); });
    EXPECT_NE(fields.where.find("f.yaml"), std::string::npos) << text;
  }
}

TEST_F(ConfigEditTest, MatchesSeesEveryDifference) {
  const std::string before = "name: x\ntraining: {batch_size: 1, seed: 2}\ndatasets: {a: {}}\n";
  auto matches = [&](const std::string& after, const Changes& changes = {}) {
    return edited_config_matches(before, after, changes, schema_);
  };
  EXPECT_TRUE(matches(before));
  EXPECT_TRUE(matches("seed: 2\nbatch_size: 1\nname: \"x\"\nmodel:\ndatasets: {a: {}}\n"));
  EXPECT_FALSE(matches("name: x\ntraining: {batch_size: 1, seed: 2}\n"));
  EXPECT_FALSE(matches("name: x\ntraining: {batch_size: 1}\ndatasets: {a: {}}\n"));
  EXPECT_FALSE(matches("name: x\ntraining: {batch_size: 1, seed: \"2\"}\ndatasets: {a: {}}\n"));
  EXPECT_FALSE(matches(before + "model: {dropout: 0.5}\n"));
  EXPECT_FALSE(matches(before, {kBatch}));
  EXPECT_FALSE(matches("]"));
  EXPECT_TRUE(
      matches("name: x\ntraining: {batch_size: 32, seed: 2}\ndatasets: {a: {}}\n", {kBatch}));
}

// Random damage: what the schema loads can be edited, and says the same but for the changes.
TEST_F(ConfigEditTest, SurvivesRandomDamage) {
  const std::string seed_text =
      "# c\nname: 'it''s'  # n\ntraining:\n  batch_size: 1\n  optimizer: {lr: 0.1, kind: sgd}\n"
      "data:\n  files:\n    - a b\n    - \"c\"\n  buckets: [[1, 2],\n    [3]]\n# d\n"
      "? seed\n: 4\nmodel:\nmemory: {\n  limit: 8GiB,\n}\ndatasets:\n  x: {files: y}\n";
  const std::string bytes = "[]{}:,-?&*!|>'\"%@`# \t\n\r\\~<=a0\xC3\xA9";
  const Changes changes = {kBatch,
                           {"data.files", "[x, 'y z']", "f"},
                           {"memory.cache", "1GiB", ""},
                           {"training.optimizer.lr", "0.5", "l"}};
  RandomStream random(1, RandomUse::test);
  int edited = 0;
  for (int round = 0; round < 4000; ++round) {
    std::string text = seed_text;
    for (uint64_t i = 0, edits = 1 + random.below(2); i < edits; ++i) {
      const size_t at = random.below(text.size());
      switch (random.below(3)) {
        case 0:
          text[at] = bytes[random.below(bytes.size())];
          break;
        case 1:
          text.insert(at, 1, bytes[random.below(bytes.size())]);
          break;
        default:
          text.erase(at, 1 + random.below(8));
          break;
      }
    }
    Settings values;
    Schema schema;
    declare(&schema, &values);
    schema.alternatives("datasets", "data", "Other data.");
    try {
      schema.load_text(text, "f.yaml");
    } catch (const Error&) {
      try {
        edit_config(text, changes, schema_, "f.yaml");
      } catch (const Error&) {
      }
      continue;
    }
    SCOPED_TRACE(text);
    edit(text, changes);
    ++edited;
  }
  EXPECT_GT(edited, 300);
}

}  // namespace
}  // namespace millrace
