#include "data/text_source.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "core/error.h"
#include "core/file.h"
#include "data/grammar.h"

namespace millrace {
namespace {

class TextSourceTest : public testing::Test {
 protected:
  void SetUp() override {
    const auto* info = testing::UnitTest::GetInstance()->current_test_info();
    folder_ = fs::path(testing::TempDir()) / fmt::format("text_source_{}", info->name());
    fs::remove_all(folder_);
    create_folders(folder_);
  }
  void TearDown() override { fs::remove_all(folder_); }

  std::string file(const std::string& name, std::string_view text) {
    const fs::path path = folder_ / name;
    create_folders(path.parent_path());
    write_file(path, text);
    return path.string();
  }
  std::string path(const std::string& name) const { return (folder_ / name).string(); }

  fs::path folder_;
};

std::string read(const std::vector<std::string>& paths) {
  return read_text_source(paths, "data.train").text;
}

// The Error that `run` throws; a failure when it throws none.
template <typename Run>
ErrorFields error_of(Run run) {
  try {
    run();
  } catch (const Error& e) {
    EXPECT_FALSE(e.fields().remedy.empty()) << e.what();
    EXPECT_FALSE(e.fields().where.empty()) << e.what();
    return e.fields();
  }
  ADD_FAILURE() << "no Error";
  return {};
}

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

TEST_F(TextSourceTest, PackedFiles) {
  const unsigned char packed[] = {0x1F, 0x8B, 0x08, 0x00, 0x00, 0x00, 0x00, 0x00,
                                  0x02, 0x03, 0x4B, 0x4F, 0x4D, 0x55, 0x00, 0x00,
                                  0x47, 0xA6, 0x4D, 0xEA, 0x04, 0x00, 0x00, 0x00};
  const std::string_view bytes(reinterpret_cast<const char*>(packed), sizeof packed);
  file("a.txt", "ay ");
  file("b.txt.gz", bytes);
  file("c.gz", bytes);  // not a text by its name, but it may be given
  EXPECT_EQ(read({folder_.string()}), "ay gee ");
  EXPECT_EQ(read({path("c.gz")}), "gee ");
  file("b.txt.gz", bytes.substr(0, bytes.size() - 3));
  EXPECT_TRUE(has(error_of([&] { read({folder_.string()}); }).where, "b.txt.gz"));
}

TEST_F(TextSourceTest, FileFolderPatternAndList) {
  file("b.txt", "bee ");
  file("a.txt", "ay ");
  file("c.md", "sea ");
  file("deeper/d.txt", "dee ");
  file("e.txt", "");
  create_folders(folder_ / "folder.txt");
  EXPECT_EQ(read({path("c.md")}), "sea ");
  EXPECT_EQ(read({folder_.string()}), "ay bee ");
  EXPECT_EQ(read({path("?.*")}), "ay bee sea ");
  EXPECT_EQ(read({path("*/*.txt")}), "dee ");
  EXPECT_EQ(read({path("c.md"), folder_.string(), path("[b]*")}), "sea ay bee bee ");
  const TextSource source = read_text_source({folder_.string(), path("c.md")}, "data.train");
  ASSERT_EQ(source.parts.size(), 4u);
  EXPECT_EQ(source.parts[1].name, path("b.txt"));
  EXPECT_EQ(source.parts[1].begin, 3u);
  EXPECT_EQ(source.parts[3].begin, 7u);
}

TEST_F(TextSourceTest, NameThatLooksLikeAPattern) {
  EXPECT_EQ(read({file("what?.txt", "x")}), "x");
}

TEST_F(TextSourceTest, FaultsNameThePath) {
  const std::string empty = file("empty.txt", "");
  create_folders(folder_ / "bare");
  create_folders(folder_ / "hollow");
  file("hollow/a.txt", "");
  const std::string bad[] = {path("missing.txt"), empty,           path("bare"),
                             path("hollow"),      path("bare/*"),  path("bar?"),
                             "/dev/null",         "builtin:poems", kBuiltinGrammar};
  for (const std::string& name : bad) {
    const ErrorFields e = error_of([&] { read({name}); });
    EXPECT_EQ(e.code, ErrorCode::config);
    EXPECT_TRUE(has(e.what, name)) << e.what;
    EXPECT_EQ(e.where, "data.train");
  }
  EXPECT_EQ(error_of([] { read({}); }).code, ErrorCode::config);
  EXPECT_EQ(error_of([] { read({""}); }).code, ErrorCode::config);
}

TEST_F(TextSourceTest, CutsValidationFromTheEnd) {
  std::string text;
  for (int i = 0; i < 100; ++i) text += static_cast<char>('0' + i / 10);
  const TextData data =
      load_text_data({.train = {file("a.txt", text)}, .validation_fraction = 0.25, .window = 25});
  EXPECT_EQ(data.tokenizer->vocab_size(), 10);  // 9 stands in the validation part only
  EXPECT_EQ(data.tokenizer->decode(data.train), text.substr(0, 75));
  EXPECT_EQ(data.tokenizer->decode(data.validation), text.substr(75));
  EXPECT_FALSE(data.entropy_per_token.has_value());
  EXPECT_TRUE(has(data.description, "75 training and 25 validation")) << data.description;
}

TEST_F(TextSourceTest, ValidationOfItsOwn) {
  TextDataOptions options{
      .train = {file("a.txt", "abcabc")}, .validation = {file("b.txt", "cba")}, .window = 3};
  const TextData data = load_text_data(options);
  EXPECT_EQ(data.train, (std::vector<int32_t>{0, 1, 2, 0, 1, 2}));
  EXPECT_EQ(data.validation, (std::vector<int32_t>{2, 1, 0}));
  options.validation.push_back(file("c.txt", "ab\nc"));
  const ErrorFields e = error_of([&] { load_text_data(options); });
  EXPECT_TRUE(has(e.where, "c.txt:1:3")) << e.where;
}

TEST_F(TextSourceTest, NoValidation) {
  const TextData data =
      load_text_data({.train = {file("a.txt", "abc")}, .validation_fraction = 0, .window = 3});
  EXPECT_EQ(data.train.size(), 3u);
  EXPECT_TRUE(data.validation.empty());
}

TEST_F(TextSourceTest, MaxCharsCountsTokens) {
  TextDataOptions options{.train = {file("a.txt", "\u00E9\u6C34a"), file("b.txt", "\u00E9bc")},
                          .validation_fraction = 0};
  const auto decoded = [&](int64_t max_chars) {
    options.max_chars = max_chars;
    const TextData data = load_text_data(options);
    return data.tokenizer->decode(data.train);
  };
  EXPECT_EQ(decoded(0), "\u00E9\u6C34a\u00E9bc");
  EXPECT_EQ(decoded(1), "\u00E9");
  EXPECT_EQ(decoded(3), "\u00E9\u6C34a");
  EXPECT_EQ(decoded(4), "\u00E9\u6C34a\u00E9");
  EXPECT_EQ(decoded(99), "\u00E9\u6C34a\u00E9bc");
  options.tokenizer = "byte";
  EXPECT_EQ(decoded(1), "\xC3");
  EXPECT_EQ(decoded(7), "\u00E9\u6C34a\xC3");
}

TEST_F(TextSourceTest, NotUtf8NamesTheFile) {
  TextDataOptions options{.train = {file("a.txt", "fine\n"), file("b.txt", "x\ny\xFF")},
                          .validation_fraction = 0};
  const ErrorFields e = error_of([&] { load_text_data(options); });
  EXPECT_EQ(e.where, path("b.txt") + ":2:2 (byte 3)");
  options.tokenizer = "byte";
  EXPECT_EQ(load_text_data(options).train.size(), 9u);
}

TEST_F(TextSourceTest, ShorterThanOneWindow) {
  const std::string text = file("a.txt", "0123456789");
  ErrorFields e =
      error_of([&] { load_text_data({.train = {text}, .validation_fraction = 0, .window = 11}); });
  EXPECT_EQ(e.code, ErrorCode::config);
  EXPECT_EQ(e.where, "data.train");
  EXPECT_TRUE(has(e.expected, "11 tokens"));
  EXPECT_EQ(e.got, "10 tokens");
  EXPECT_TRUE(has(e.remedy, "training.max_length=9"));
  load_text_data({.train = {text}, .validation_fraction = 0, .window = 10});

  e = error_of([&] { load_text_data({.train = {text}, .validation_fraction = 0.2, .window = 3}); });
  EXPECT_EQ(e.where, "data.validation_fraction");
  e = error_of([&] { load_text_data({.train = {text}, .validation = {text}, .window = 11}); });
  EXPECT_EQ(e.where, "data.train");
  e = error_of([&] {
    load_text_data({.train = {text}, .validation = {file("b.txt", "012")}, .window = 4});
  });
  EXPECT_EQ(e.where, "data.validation");
  e = error_of(
      [&] { load_text_data({.train = {kBuiltinGrammar}, .grammar_chars = 1, .window = 9999}); });
  EXPECT_TRUE(has(e.remedy, "data.grammar_chars"));
}

TEST_F(TextSourceTest, BadOptions) {
  const std::string text = file("a.txt", "0123456789");
  const double nan = std::numeric_limits<double>::quiet_NaN();
  for (const double fraction : {-0.1, 1.0, nan, HUGE_VAL}) {
    const ErrorFields e =
        error_of([&] { load_text_data({.train = {text}, .validation_fraction = fraction}); });
    EXPECT_EQ(e.where, "data.validation_fraction");
  }
  EXPECT_EQ(error_of([&] { load_text_data({.train = {text}, .tokenizer = "bpe"}); }).where,
            "data.tokenizer");
  EXPECT_EQ(error_of([&] { load_text_data({.train = {text}, .max_chars = -1}); }).where,
            "data.max_chars");
  EXPECT_EQ(
      error_of([&] { load_text_data({.train = {kBuiltinGrammar}, .grammar_chars = 0}); }).where,
      "data.grammar_chars");
  EXPECT_EQ(
      error_of([&] { load_text_data({.train = {kBuiltinGrammar}, .validation = {text}}); }).where,
      "data.validation");
  EXPECT_EQ(error_of([&] {
              load_text_data({.train = {kBuiltinGrammar, text}});
            }).where,
            "data.train");
  EXPECT_EQ(
      error_of([&] { load_text_data({.train = {text}, .validation = {kBuiltinGrammar}}); }).where,
      "data.validation");
}

TEST(TextData, Grammar) {
  for (const std::string tokenizer : {"char", "byte"}) {
    const TextData data = load_text_data({.train = {kBuiltinGrammar},
                                          .validation_fraction = 0.2,
                                          .tokenizer = tokenizer,
                                          .grammar_chars = 20'000,
                                          .seed = 4,
                                          .window = 257});
    const std::string train = data.tokenizer->decode(data.train);
    const std::string validation = data.tokenizer->decode(data.validation);
    EXPECT_EQ(train, grammar_stories(4, 20'000));
    EXPECT_GE(validation.size(), 4'000u);
    EXPECT_EQ(train.find(validation.substr(0, validation.find('\n'))), std::string::npos);
    EXPECT_EQ(data.entropy_per_token, grammar_entropy_per_char());
  }
}

TEST(TextData, TokenizerOfItsOwn) {
  EXPECT_EQ(error_of([] {
              load_text_data({.train = {kBuiltinGrammar}, .tokenizer = "nowhere.json"});
            }).where,
            "data.tokenizer");
  const ErrorFields unknown =
      error_of([] { load_text_data({.train = {kBuiltinGrammar}, .tokenizer = "chars"}); });
  EXPECT_EQ(unknown.where, "data.tokenizer");
  EXPECT_EQ(unknown.remedy, "did you mean `char`?");
}

TEST(TextData, GrammarVocabularyDoesNotDependOnTheDraw) {
  const auto vocabulary = [](uint64_t seed, int64_t chars) {
    return load_text_data({.train = {kBuiltinGrammar}, .grammar_chars = chars, .seed = seed})
        .tokenizer->file().bytes;
  };
  EXPECT_EQ(vocabulary(1, 100), vocabulary(2, 10'000));
}

}  // namespace
}  // namespace millrace
