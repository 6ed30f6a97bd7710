#include "io/weight_folder.h"

#include <gtest/gtest.h>

#include <array>

#include "core/error.h"

namespace millrace {
namespace {

class WeightFolderTest : public testing::Test {
 protected:
  WeightFolderTest() {
    fs::remove_all(folder);
    create_folders(folder);
  }
  ~WeightFolderTest() override { fs::remove_all(folder); }

  void put(const std::string& file, const std::string& tensor, float value) const {
    const TensorToWrite t{tensor, "F32", {1}, std::as_bytes(std::span(&value, 1))};
    OutputFile written(folder / file, OutputFile::Mode::truncate);
    write_safetensors(written, std::span(&t, 1), {});
  }
  void index(const std::string& text) const {
    write_file(folder / "model.safetensors.index.json", text);
  }
  // What the refusal says; fails when there is none.
  std::string refusal() const {
    try {
      const WeightFolder weights(folder);
    } catch (const Error& e) {
      return e.what();
    }
    ADD_FAILURE() << "it was taken";
    return "";
  }

  fs::path folder = fs::path(testing::TempDir()) / "weight_folder_test";
};

TEST_F(WeightFolderTest, OneFile) {
  put("model.safetensors", "a", 5);
  const WeightFolder weights(folder);
  ASSERT_TRUE(weights.find("a"));
  EXPECT_EQ(weights.find("a").file->to_f32(*weights.find("a").entry), std::vector<float>{5});
  EXPECT_FALSE(weights.find("b"));
}

TEST_F(WeightFolderTest, SeveralFiles) {
  put("model-00001-of-00002.safetensors", "a", 1);
  put("model-00002-of-00002.safetensors", "b", 2);
  index(R"({"metadata": {"total_size": 8}, "weight_map": {
           "a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}})");
  const WeightFolder weights(folder);
  for (const auto& [name, value] : {std::pair{"a", 1.0f}, {"b", 2.0f}}) {
    const auto found = weights.find(name);
    ASSERT_TRUE(found) << name;
    EXPECT_EQ(found.file->to_f32(*found.entry), std::vector<float>{value});
  }
  EXPECT_FALSE(weights.find("c"));
}

// Which of the two the index names may be either.
TEST_F(WeightFolderTest, OneTensorInTwoFiles) {
  const std::array<float, 2> values{1, 2};
  const auto bytes = std::as_bytes(std::span(values));
  const std::vector<TensorToWrite> both{{"a", "F32", {1}, bytes.first(4)},
                                        {"b", "F32", {1}, bytes.last(4)}};
  write_file(folder / "one.safetensors", safetensors_bytes(both, {}));
  put("two.safetensors", "c", 3);
  index(R"({"weight_map": {"a": "one.safetensors", "c": "two.safetensors"}})");
  EXPECT_EQ(WeightFolder(folder).names(), (std::vector<std::string>{"a", "b", "c"}));
  put("two.safetensors", "a", 3);
  index(R"({"weight_map": {"a": "two.safetensors", "b": "one.safetensors"}})");
  const std::string text = refusal();
  for (const char* word : {"tensor `a`", "`one.safetensors`", "`two.safetensors`"})
    EXPECT_NE(text.find(word), std::string::npos) << text;
}

TEST_F(WeightFolderTest, NothingThere) {
  EXPECT_NE(refusal().find("no weights"), std::string::npos);
}

TEST_F(WeightFolderTest, TheIndexIsNotTrusted) {
  put("a.safetensors", "a", 1);
  put("../outside.safetensors", "a", 1);
  const std::string hostile[] = {
      "",
      "[]",
      "{",
      "{}",
      "null",
      R"({"weight_map": []})",
      R"({"weight_map": {"a": 1}})",
      R"({"weight_map": {"a": null}})",
      R"({"weight_map": {"a": ["a.safetensors"]}})",
      R"({"weight_map": {"a": ""}})",
      R"({"weight_map": {"a": "../outside.safetensors"}})",
      R"({"weight_map": {"a": "/etc/x.safetensors"}})",
      R"({"weight_map": {"a": "sub/a.safetensors"}})",
      R"({"weight_map": {"a": ".safetensors"}})",
      R"({"weight_map": {"a": "a.safetensors\u0000.safetensors"}})",
      R"({"weight_map": {"a": "model.bin"}})",
      R"({"weight_map": {"a": "missing.safetensors"}})",
      R"({"weight_map": {"b": "a.safetensors"}})",
      std::string(200'000, '['),
      std::string(100'000, '[') + std::string(100'000, ']'),
      "{\"weight_map\": {\"a\": \"\xff\xfe.safetensors\"}}",
  };
  for (const std::string& text : hostile) {
    SCOPED_TRACE(text.substr(0, 60));
    index(text);
    EXPECT_FALSE(refusal().empty());
  }
  index(R"({"weight_map": {"a": "a.safetensors"}})");
  EXPECT_TRUE(WeightFolder(folder).find("a"));
  fs::remove(folder / "../outside.safetensors");
}

}  // namespace
}  // namespace millrace
