#include "data/gguf_tokenizer.h"

#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "core/text.h"
#include "data/sentence_piece.h"
#include "data/sentence_piece_testing.h"

namespace millrace {
namespace {

using namespace sentence_piece_testing;

using Entries = std::map<std::string, GgufEntry>;
Entries entries_of(const Tokenizer& tokenizer, std::span<const int32_t> opening) {
  Entries map;
  for (const GgufEntry& e : gguf_tokenizer(tokenizer, 300, opening)) map[e.key] = e;
  return map;
}
template <typename T>
T get(const Entries& entries, const std::string& key) {
  const auto found = entries.find("tokenizer.ggml." + key);
  EXPECT_NE(found, entries.end()) << key;
  return found == entries.end() ? T{} : std::get<T>(found->second.value);
}

// What is not said llama.cpp takes from the kind of tokenizer, whatever the model was trained on.
TEST(GgufTokenizer, SaysWhatIsPutAroundAText) {
  for (const uint64_t kind : {kBpe, kUnigram}) {
    const auto tokenizer = make_sentence_piece_tokenizer(
        start_pieces() + piece("\xE2\x96\x81", -1) + piece("a", -2) + trainer(kind),
        "tokenizer.model");
    const Entries plain = entries_of(*tokenizer, {});
    EXPECT_EQ(get<std::string>(plain, "model"), kind == kBpe ? "llama" : "t5");
    EXPECT_FALSE(get<bool>(plain, "add_bos_token"));
    EXPECT_FALSE(get<bool>(plain, "add_eos_token"));
    EXPECT_EQ(get<uint32_t>(plain, "bos_token_id"), 1u);
    const int32_t start[] = {tokenizer->start_id()};
    const Entries opened = entries_of(*tokenizer, start);
    EXPECT_TRUE(get<bool>(opened, "add_bos_token"));
    EXPECT_FALSE(get<bool>(opened, "add_eos_token"));
    EXPECT_EQ(get<uint32_t>(opened, "bos_token_id"), 1u);
  }
}

nlohmann::json byte_file() {
  nlohmann::json vocabulary;  // every byte as GPT-2 writes it
  char32_t next = 0x100;
  for (int b = 0; b < 256; ++b) {
    const bool plain = (b >= '!' && b <= '~') || (b >= 0xA1 && b <= 0xAC) || b >= 0xAE;
    std::string text;
    append_utf8(plain ? static_cast<char32_t>(b) : next++, text);
    vocabulary[text] = b;
  }
  return {{"added_tokens",
           {{{"id", 256}, {"content", "<|endoftext|>"}, {"special", true}},
            {{"id", 257}, {"content", "<|begin|>"}, {"special", true}}}},
          {"pre_tokenizer", {{"type", "ByteLevel"}, {"add_prefix_space", false}}},
          {"model", {{"type", "BPE"}, {"vocab", vocabulary}, {"merges", nlohmann::json::array()}}}};
}

TEST(GgufTokenizer, TheTokenOfATemplateIsTheOneThatOpens) {
  const auto tokenizer = tokenizer_from_json(byte_file().dump(), "tokenizer.json");
  const int32_t begin[] = {257}, two[] = {257, 256};
  EXPECT_EQ(get<uint32_t>(entries_of(*tokenizer, begin), "bos_token_id"), 257u);
  EXPECT_TRUE(get<bool>(entries_of(*tokenizer, begin), "add_bos_token"));
  // Of more than one it has no way to say.
  EXPECT_FALSE(get<bool>(entries_of(*tokenizer, two), "add_bos_token"));
  EXPECT_FALSE(get<bool>(entries_of(*tokenizer, {}), "add_bos_token"));
}

TEST(GgufTokenizer, AllDeclaredEndsAreSaid) {
  const auto tokenizer = tokenizer_from_json(byte_file().dump(), "tokenizer.json");
  EXPECT_FALSE(entries_of(*tokenizer, {}).contains("tokenizer.ggml.eot_token_id"));
  tokenizer->declare({.start = 256, .ends = {257, 256}});
  const Entries all = entries_of(*tokenizer, {});
  EXPECT_EQ(get<uint32_t>(all, "bos_token_id"), 256u);
  EXPECT_EQ(get<uint32_t>(all, "eos_token_id"), 257u);
  EXPECT_EQ(get<uint32_t>(all, "eot_token_id"), 256u);
}

TEST(GgufTokenizer, DigitsApartHaveAName) {
  const nlohmann::json bytes{{"type", "ByteLevel"}, {"add_prefix_space", false}};
  auto of = [&](bool each) {
    nlohmann::json file = byte_file();
    file["pre_tokenizer"] = {
        {"type", "Sequence"},
        {"pretokenizers", {{{"type", "Digits"}, {"individual_digits", each}}, bytes}}};
    return entries_of(*tokenizer_from_json(file.dump(), "tokenizer.json"), {});
  };
  EXPECT_EQ(get<std::string>(of(true), "pre"), "smollm");
  EXPECT_THROW(of(false), Error);
}

}  // namespace
}  // namespace millrace
