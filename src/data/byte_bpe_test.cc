#include "data/byte_bpe.h"

#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>
#include <thread>

#include "core/error.h"
#include "core/rng.h"
#include "core/text.h"

namespace millrace {
namespace {

using Json = nlohmann::json;

// A byte as GPT-2 writes it.
std::string written(unsigned char byte) {
  char32_t next = 0x100;
  for (int b = 0; b <= byte; ++b) {
    const bool plain = (b >= '!' && b <= '~') || (b >= 0xA1 && b <= 0xAC) || b >= 0xAE;
    std::string out;
    append_utf8(plain ? static_cast<char32_t>(b) : next++, out);
    if (b == byte) return out;
  }
  return {};
}
std::string written(std::string_view bytes) {
  std::string out;
  for (const char c : bytes) out += written(static_cast<unsigned char>(c));
  return out;
}

const std::vector<std::pair<std::string, std::string>> kMerges = {
    {"h", "e"}, {"l", "l"},   {"he", "ll"},     {" ", "he"}, {"o", " "}, {"hell", "o"},
    {"a", "a"}, {"aa", "aa"}, {"\xC3", "\xA9"}, {"b", "c"},  {"a", "b"}};

Json file() {
  Json vocabulary;
  for (int b = 0; b < 256; ++b) vocabulary[written(static_cast<unsigned char>(b))] = b;
  Json merges = Json::array();
  int id = 256;
  for (const auto& [a, b] : kMerges) {
    vocabulary[written(a + b)] = id++;
    merges.push_back(written(a) + " " + written(b));
  }
  vocabulary[written("abc")] = id++;  // a word no merge makes
  return {{"version", "1.0"},
          {"normalizer", nullptr},
          {"pre_tokenizer", {{"type", "ByteLevel"}, {"add_prefix_space", false}}},
          {"added_tokens",
           {{{"id", 300}, {"content", "<|end|>"}, {"special", true}},
            {{"id", 301}, {"content", "<|end|>s"}, {"special", true}},
            {{"id", 302}, {"content", "<|pad|>"}, {"lstrip", true}, {"rstrip", true}}}},
          {"model", {{"type", "BPE"}, {"vocab", vocabulary}, {"merges", merges}}}};
}

std::vector<int32_t> ids_of(const Tokenizer& tokenizer, std::string_view text) {
  std::vector<int32_t> ids;
  tokenizer.encode(text, {"test"}, ids);
  return ids;
}
std::vector<int32_t> ids_of(const Json& json, std::string_view text) {
  return ids_of(*tokenizer_from_json(json.dump(), "tokenizer.json"), text);
}

// Merging as it is defined: the pair of the lowest rank, the leftmost of those, again and again.
std::vector<int32_t> merged_plainly(std::string_view word) {
  std::vector<std::string> parts;
  for (const char c : word) parts.emplace_back(1, c);
  std::map<std::string, int32_t> ids;
  for (int b = 0; b < 256; ++b) ids[std::string(1, static_cast<char>(b))] = b;
  for (size_t i = 0; i < kMerges.size(); ++i)
    ids[kMerges[i].first + kMerges[i].second] = 256 + static_cast<int32_t>(i);
  for (;;) {
    size_t best_rank = kMerges.size(), best = 0;
    for (size_t i = 0; i + 1 < parts.size(); ++i)
      for (size_t rank = 0; rank < best_rank; ++rank)
        if (kMerges[rank] == std::pair(parts[i], parts[i + 1])) {
          best_rank = rank;
          best = i;
        }
    if (best_rank == kMerges.size()) break;
    parts[best] += parts[best + 1];
    parts.erase(parts.begin() + static_cast<ptrdiff_t>(best) + 1);
  }
  std::vector<int32_t> out;
  for (const std::string& part : parts) out.push_back(ids.at(part));
  return out;
}

TEST(ByteBpeTest, Merges) {
  EXPECT_EQ(ids_of(file(), "hello"), (std::vector<int32_t>{261}));
  EXPECT_EQ(ids_of(file(), "hello hello"), (std::vector<int32_t>{261, ' ', 261}));
  EXPECT_EQ(ids_of(file(), "aaaaa"), (std::vector<int32_t>{263, 'a'}));
  EXPECT_EQ(ids_of(file(), "é"), (std::vector<int32_t>{264}));
  // `abc` is a token, but merging b and c comes first.
  EXPECT_EQ(ids_of(file(), "abc"), (std::vector<int32_t>{'a', 265}));
  Json whole = file();
  whole["model"]["ignore_merges"] = true;
  EXPECT_EQ(ids_of(whole, "abc"), (std::vector<int32_t>{267}));
  EXPECT_EQ(ids_of(whole, "abcb"), merged_plainly("abcb"));
}

TEST(ByteBpeTest, ShortAndLongWordsAreMergedByTheRule) {
  const auto tokenizer = tokenizer_from_json(file().dump(), "tokenizer.json");
  RandomStream random(1, RandomUse::test, 0);
  for (int round = 0; round < 600; ++round) {
    std::string word;
    const uint64_t length = 1 + random.below(round % 2 ? 12 : 120);  // with the heap and without
    for (uint64_t i = 0; i < length; ++i) word += "heloabc"[random.below(7)];
    ASSERT_EQ(ids_of(*tokenizer, word), merged_plainly(word)) << word;
    ASSERT_EQ(ids_of(*tokenizer, word), merged_plainly(word)) << word << ", remembered";
  }
}

TEST(ByteBpeTest, AddedTokens) {
  EXPECT_EQ(ids_of(file(), "he<|end|>he"), (std::vector<int32_t>{256, 300, 256}));
  EXPECT_EQ(ids_of(file(), "<|end|>s<|end|>"), (std::vector<int32_t>{301, 300}));
  EXPECT_EQ(ids_of(file(), "he \u3000<|pad|> \n he"), (std::vector<int32_t>{256, 302, 256}));
  EXPECT_EQ(ids_of(file(), " <|pad|>  <|pad|>"), (std::vector<int32_t>{302, 302}));
  EXPECT_EQ(ids_of(file(), "<|en"), (std::vector<int32_t>{'<', '|', 'e', 'n'}));
}

TEST(ByteBpeTest, PrefixSpace) {
  Json json = file();
  json["pre_tokenizer"]["add_prefix_space"] = true;
  EXPECT_EQ(ids_of(json, "he"), (std::vector<int32_t>{259}));
  EXPECT_EQ(ids_of(json, " he"), (std::vector<int32_t>{259}));
  EXPECT_EQ(ids_of(json, "<|end|>he"), (std::vector<int32_t>{300, 259}));
  EXPECT_EQ(ids_of(json, ""), (std::vector<int32_t>{}));
}

TEST(ByteBpeTest, DecodesToTheSameBytes) {
  const auto tokenizer = tokenizer_from_json(file().dump(), "tokenizer.json");
  std::string all;
  for (int b = 0; b < 256; ++b) all += static_cast<char>(b);
  RandomStream random(1, RandomUse::test, 1);
  for (int round = 0; round < 200; ++round) {
    EXPECT_EQ(tokenizer->decode(ids_of(*tokenizer, all)), all);
    std::swap(all[random.below(256)], all[random.below(256)]);
  }
  EXPECT_EQ(tokenizer->vocab_size(), 303);
  EXPECT_EQ(tokenizer->decode(std::vector<int32_t>{300, 299}), "<|end|>");
  EXPECT_THROW(tokenizer->decode(std::vector<int32_t>{303}), Error);
  EXPECT_EQ(tokenizer->file().bytes, file().dump());
}

TEST(ByteBpeTest, ThreadsEncodeAtTheSameTime) {
  const auto tokenizer = tokenizer_from_json(file().dump(), "tokenizer.json");
  std::string text;
  for (int i = 0; i < 3000; ++i) text += i % 3 ? "hello " : "abc helloa" + std::to_string(i);
  const auto want = ids_of(*tokenizer, text);
  std::vector<std::vector<int32_t>> got(4);
  std::vector<std::thread> threads;
  for (auto& ids : got) threads.emplace_back([&] { ids = ids_of(*tokenizer, text); });
  for (auto& t : threads) t.join();
  for (const auto& ids : got) EXPECT_EQ(ids, want);
}

// A run without spaces: looking at all pairs for every merge would take minutes here.
TEST(ByteBpeTest, LongRuns) {
  const auto tokenizer = tokenizer_from_json(file().dump(), "tokenizer.json");
  EXPECT_EQ(ids_of(*tokenizer, std::string(1 << 19, 'a')).size(), size_t{1} << 17);
}

TEST(ByteBpeTest, RefusesWhatItDoesNotKnow) {
  auto message = [](const Json& json) -> std::string {
    try {
      tokenizer_from_json(json.dump(), "tokenizer.json");
    } catch (const Error& e) {
      return e.what();
    }
    return "accepted";
  };
  auto changed = [](const char* pointer, Json value) {
    Json json = file();
    json[Json::json_pointer(pointer)] = std::move(value);
    return json;
  };
  EXPECT_NE(message(changed("/model/type", "Unigram")).find("`Unigram`"), std::string::npos);
  EXPECT_NE(message(changed("/model/dropout", 0.1)).find("model.dropout"), std::string::npos);
  EXPECT_NE(message(changed("/normalizer", Json{{"type", "NFC"}})).find("normalizer"),
            std::string::npos);
  EXPECT_NE(message(changed("/model/vocab/!", 34)).find("id 34 twice"), std::string::npos);
  EXPECT_NE(message(changed("/model/vocab/!", -1)).find("an id from 0"), std::string::npos);
  EXPECT_NE(message(changed("/model/vocab/!", 1e9)).find("an id from 0"), std::string::npos);
  EXPECT_EQ(message(changed("/added_tokens/0/id", 60000)), "accepted");
  EXPECT_NE(message(changed("/added_tokens/0/id", 1 << 20)).find("an id from 0"),
            std::string::npos);
  EXPECT_NE(message(changed("/model/merges/0", "h x y")).find("model.merges[0]"),
            std::string::npos);
  EXPECT_NE(message(changed("/model/merges/0", "h x")).find("model.merges[0]"), std::string::npos);
  EXPECT_NE(message(changed("/model/merges/0", 7)).find("two tokens"), std::string::npos);
  EXPECT_NE(message(changed("/added_tokens/0/content", "")).find("added_tokens[0].content"),
            std::string::npos);
  EXPECT_NE(message(changed("/added_tokens/0/id", 65)).find("`A`, which is token 65"),
            std::string::npos);
  EXPECT_NE(message(changed("/added_tokens/0/single_word", true)).find("single_word"),
            std::string::npos);
  EXPECT_NE(message(changed("/pre_tokenizer/type", "Digits")).find("`Digits`"), std::string::npos);
  Json no_byte = file();
  no_byte["model"]["vocab"].erase("!");
  EXPECT_NE(message(no_byte).find("byte 0x21"), std::string::npos) << message(no_byte);
  Json pairs = file();
  pairs["model"]["merges"][0] = Json::array({"h", "e"});
  EXPECT_EQ(message(pairs), "accepted");
}

// As Llama 3 has it, alone or behind another processor; GPT-2's ByteLevel puts nothing there.
TEST(ByteBpe, ATemplateSaysWhatStandsBeforeAText) {
  auto opening_of = [](const Json& processor) {
    Json json = file();
    json["post_processor"] = processor;
    return make_byte_bpe_tokenizer(json.dump(), "tokenizer.json")->opening();
  };
  const Json special = {{"SpecialToken", {{"id", "<|end|>"}, {"type_id", 0}}}},
             text = {{"Sequence", {{"id", "A"}, {"type_id", 0}}}}, bytes = {{"type", "ByteLevel"}};
  auto with = [&](const Json& single) -> Json {
    return {{"type", "TemplateProcessing"},
            {"single", single},
            {"special_tokens", {{"<|end|>", {{"id", "<|end|>"}, {"ids", {300}}}}}}};
  };
  const std::vector<int32_t> none, one{300};
  EXPECT_EQ(opening_of(nullptr), none);
  EXPECT_EQ(opening_of(bytes), none);
  EXPECT_EQ(opening_of(with({special, text})), one);
  EXPECT_EQ(opening_of(with({special, text, special})), one);
  EXPECT_EQ(opening_of(with({text, special})), none);
  EXPECT_EQ(opening_of({{"type", "Sequence"}, {"processors", {bytes, with({special, text})}}}),
            one);
}

}  // namespace
}  // namespace millrace
