#include "data/tokenizer_folder.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <nlohmann/json.hpp>

#include "core/error.h"
#include "core/text.h"

namespace millrace {
namespace {

using Json = nlohmann::json;

Json tokenizer_json() {
  Json vocabulary;  // every byte as GPT-2 writes it
  char32_t next = 0x100;
  for (int b = 0; b < 256; ++b) {
    const bool plain = (b >= '!' && b <= '~') || (b >= 0xA1 && b <= 0xAC) || b >= 0xAE;
    std::string text;
    append_utf8(plain ? static_cast<char32_t>(b) : next++, text);
    vocabulary[text] = b;
  }
  return {{"added_tokens",
           {{{"id", 256}, {"content", "<|endoftext|>"}},
            {{"id", 257}, {"content", "<|im_start|>"}},
            {{"id", 258}, {"content", "<|im_end|>"}}}},
          {"pre_tokenizer", {{"type", "ByteLevel"}, {"add_prefix_space", false}}},
          {"model", {{"type", "BPE"}, {"vocab", vocabulary}, {"merges", Json::array()}}}};
}

class TokenizerFolder : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::path(testing::TempDir()) /
              testing::UnitTest::GetInstance()->current_test_info()->name();
    fs::remove_all(folder_);
    create_folders(folder_);
    put("tokenizer.json", tokenizer_json().dump());
  }
  void TearDown() override { fs::remove_all(folder_); }
  void put(const char* name, const std::string& text) { write_new_file(folder_ / name, text); }
  std::vector<int32_t> start_and_ends() const {
    const auto tokenizer = read_tokenizer(folder_ / "tokenizer.json");
    std::vector<int32_t> ids{tokenizer->start_id()};
    ids.insert(ids.end(), tokenizer->end_ids().begin(), tokenizer->end_ids().end());
    return ids;
  }
  fs::path folder_;
};

using Ids = std::vector<int32_t>;

TEST_F(TokenizerFolder, SaysWhatOpensAndClosesTexts) {
  EXPECT_EQ(start_and_ends(), (Ids{256, 256})) << "by the names";
  put("config.json", R"({"bos_token_id": 257, "eos_token_id": 258})");
  EXPECT_EQ(start_and_ends(), (Ids{257, 258}));
  put("generation_config.json", R"({"eos_token_id": [256, 258]})");
  EXPECT_EQ(start_and_ends(), (Ids{257, 256, 258})) << "what is silent does not count";
  put("tokenizer_config.json", R"({"bos_token": null, "eos_token": {"content": "<|im_end|>"}})");
  EXPECT_EQ(start_and_ends(), (Ids{257, 258, 256})) << "the text is what is put there";
  const auto tokenizer = read_tokenizer(folder_ / "tokenizer.json");
  EXPECT_EQ(tokenizer->end_id(), 258);
  EXPECT_TRUE(tokenizer->is_end(256));
  EXPECT_FALSE(tokenizer->is_end(257));
}

// LlamaConfig's defaults, 1 and 2, stand in the config of many a folder with other tokens there.
TEST_F(TokenizerFolder, TokensOfTextEndNothing) {
  put("config.json", R"({"bos_token_id": 1, "eos_token_id": [2, 50256, -1, 1000000000000]})");
  put("tokenizer_config.json", R"({"eos_token": "a", "bos_token": "<|no|>"})");
  EXPECT_EQ(start_and_ends(), (Ids{256, 256}));
}

TEST_F(TokenizerFolder, DamagedFilesAreRefused) {
  for (const char* text : {"", "[]", R"({"eos_token_id": "2"})", R"({"eos_token_id": [1.5]})"}) {
    put("generation_config.json", text);
    try {
      start_and_ends();
      FAIL() << text;
    } catch (const Error& e) {
      EXPECT_NE(std::string(e.what()).find("generation_config.json"), std::string::npos);
      EXPECT_EQ(e.fields().code, ErrorCode::config);
    }
  }
}

TEST_F(TokenizerFolder, CompanionsAreFilesOfKnownNames) {
  put("chat_template.jinja", "{{ messages }}");
  put("vocab.txt", "a");
  create_folders(folder_ / "special_tokens_map.json");
  ASSERT_EQ(mkfifo((folder_ / "generation_config.json").c_str(), 0600), 0);
  EXPECT_EQ(tokenizer_companions(folder_),
            (TokenizerCompanions{{"chat_template.jinja", "{{ messages }}"}}));
}

TEST_F(TokenizerFolder, CompanionsSayHowPromptsLookAndWhatEndsThem) {
  const auto tokenizer = read_tokenizer(folder_ / "tokenizer.json");
  tokenizer->declare({.start = 257, .ends = {258, 256}});
  const TokenizerCompanions given{
      {"tokenizer_config.json", R"({"add_bos_token": false, "eos_token": "<|im_end|>"})"},
      {"generation_config.json", R"({"top_k": 5, "eos_token_id": 3})"},
      {"chat_template.jinja", "x"}};
  const auto made = companions_of(*tokenizer, true, {true, false}, given);
  ASSERT_EQ(made.size(), 3u);
  EXPECT_EQ(Json::parse(made.at("tokenizer_config.json")),
            (Json{{"add_bos_token", true}, {"eos_token", "<|im_end|>"}}));
  EXPECT_EQ(Json::parse(made.at("generation_config.json")),
            (Json{{"top_k", 5}, {"bos_token_id", 257}, {"eos_token_id", {258, 256}}}));
  EXPECT_EQ(companions_of(*tokenizer, true, {true, false}, made), made) << "bytes are kept";
  // A config that is silent stays so where the tokenizer itself says it.
  EXPECT_FALSE(companions_of(*tokenizer, true, {true, false}, {}).contains(kTokenizerConfigFile));
  const auto said = companions_of(*tokenizer, false, {true, true}, {}).at(kTokenizerConfigFile);
  EXPECT_EQ(read_prompt_form(said, "written"), (PromptForm{true, true}));
  // Without an end token there is nothing to say.
  EXPECT_TRUE(companions_of(*make_byte_tokenizer(), false, {}, {}).empty());
}

TEST_F(TokenizerFolder, AFrameIsPutIntoTokenizerJson) {
  const Json bytes{{"type", "ByteLevel"}, {"trim_offsets", false}},
      plain{{"type", "TemplateProcessing"},
            {"single", {{{"Sequence", {{"id", "A"}, {"type_id", 0}}}}}},
            {"pair", Json::array()},
            {"special_tokens", Json::object()}};
  for (const Json& processor :
       {Json(), bytes, plain, Json{{"type", "Sequence"}, {"processors", {bytes}}},
        Json{{"type", "Sequence"}, {"processors", {bytes, plain}}}}) {
    SCOPED_TRACE(processor.dump());
    Json file = tokenizer_json();
    file["post_processor"] = processor;
    const auto tokenizer = tokenizer_from_json(file.dump(), "tokenizer.json");
    ASSERT_TRUE(tokenizer->opening().empty());
    const auto text = with_frame(tokenizer->file(), *tokenizer, 257, 258);
    ASSERT_TRUE(text);
    const auto opened = tokenizer_from_json(*text, "tokenizer.json");
    EXPECT_EQ(opened->opening(), (Ids{257}));
    EXPECT_EQ(opened->vocabulary_file(), tokenizer->vocabulary_file());
    EXPECT_EQ(*with_frame({"tokenizer.json", *text}, *opened, 257, 258), *text) << "only once";
    // Everything there is stays as it is.
    const Json all = Json::parse(*text);
    EXPECT_NE(all["post_processor"].dump().find(R"("tokens":["<|im_start|>"])"), std::string::npos);
    EXPECT_NE(all["post_processor"].dump().find(
                  R"(},{"SpecialToken":{"id":"<|im_end|>","type_id":0}}],"special)"),
              std::string::npos);
    EXPECT_EQ(all["post_processor"].dump().find("ByteLevel") != std::string::npos,
              processor.dump().find("ByteLevel") != std::string::npos);
  }
  Json other = tokenizer_json();
  other["post_processor"] = {{"type", "RobertaProcessing"}};
  const auto tokenizer = tokenizer_from_json(other.dump(), "tokenizer.json");
  EXPECT_FALSE(with_frame(tokenizer->file(), *tokenizer, 257, 258));
  const auto own = make_byte_tokenizer(true);
  EXPECT_FALSE(with_frame(own->file(), *own, 256, -1));
}

}  // namespace
}  // namespace millrace
